"""``hybridcache generate``: continue one prompt."""

import argparse
import json
import sys

import numpy as np
from rich.console import Console

from hybridcache_jax.cli.metrics_table import show
from hybridcache_jax.cli.session import load, read_text, tokenizer_of, warm_up
from hybridcache_jax.observe import MemoryRegistry, Metrics
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.build import build_engine
from hybridcache_jax.serving.request import Progress, Request
from hybridcache_jax.serving.sampling import SamplingParams


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; see ``hybridcache generate --help``."""
    sampling = SamplingParams(arguments.temperature, arguments.top_p, arguments.seed)
    prompt = arguments.prompt
    if prompt is None:
        prompt = read_text(arguments.prompt_file)
    if not prompt.strip():
        raise ValueError("The prompt is empty; give --prompt some text.")
    notes = Console(stderr=True)
    loaded = load(arguments.model, notes)
    tokenizer = tokenizer_of(loaded)
    tokens = np.array(tokenizer.encode(prompt), np.int32)
    registry = MemoryRegistry()
    engine = build_engine(
        loaded,
        max_length=len(tokens) + max(arguments.max_new_tokens, 1),
        max_sequences=1,
        stored_tokens=0,
        buckets=Buckets(batch=(1,), chunk=(1, 128)).within(
            len(tokens) + max(arguments.max_new_tokens, 1)
        ),
        metrics=Metrics(registry),
    )
    request = Request(
        tokens,
        max_new_tokens=arguments.max_new_tokens,
        sampling=sampling,
        stop_tokens=tuple(tokenizer.eos_ids),
        reuse=False,
    )
    engine.check(request)
    warm_up(engine, notes)
    tokens_seen: list[int] = []
    shown = ""

    def stream(progress: Progress) -> None:
        nonlocal shown
        if progress.kind != "token" or arguments.json:
            return
        tokens_seen.append(progress.token)
        text = tokenizer.decode(tokens_seen)
        # A character may span tokens: wait until it is whole.
        if text.startswith(shown) and not text.endswith("\ufffd"):
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text

    result = engine.run([request], stream)[0]
    text = tokenizer.decode(result.tokens)
    if arguments.json:
        print(
            json.dumps(
                {
                    "text": text,
                    "tokens": list(result.tokens),
                    "finish": result.finish,
                    "prompt_tokens": len(tokens),
                    "seconds_to_first_token": result.seconds_to_first_token,
                    "seconds": result.seconds,
                    "plan": result.plan.to_dict(),
                    "metrics": registry.snapshot(),
                }
            )
        )
    else:
        print(text[len(shown) :] if text.startswith(shown) else "")
        notes.print(
            f"{len(tokens)} prompt tokens, first token after "
            f"{result.seconds_to_first_token:.2f} s; {len(result.tokens)} tokens in "
            f"{result.seconds:.2f} s ({result.finish})",
            style="dim",
        )
    if arguments.metrics:
        show(notes, registry)
    return 0
