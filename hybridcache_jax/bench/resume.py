"""Time to first token after a hit, against running the suffix's steps alone.

The floor runs the same compiled step over the same positions on a row that already
stands at the resume point: no match, no lease, no publication.  And a prompt resumed
from disk, against recomputing it: does it gain what the planner said?
"""

import time
from collections.abc import Iterator

import jax
import numpy as np

from hybridcache_jax.bench.measure import Factor, Measurement, Report
from hybridcache_jax.bench.restored import foretold_and_measured
from hybridcache_jax.bench.small_engine import VOCABULARY, small_engine
from hybridcache_jax.codes import Verdict
from hybridcache_jax.lease import batch_inputs
from hybridcache_jax.models.bundled import (
    GEMMA3_270M_SHA256,
    bundled_gemma3_270m,
    gemma3_270m_installed,
)
from hybridcache_jax.models.load import LoadedModel, load_model
from hybridcache_jax.models.tiny_v4 import NAME as TINY_V4
from hybridcache_jax.models.tiny_v4 import load_tiny_v4
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.serving.sampling import sampling_inputs

_SUFFIX = 96


def run(prefix: int = 4096, saved: int = 1536, *, repeat: int = 7) -> Report:
    """Serves a prefix with new suffixes, and prompts of the demo models from disk.

    Args:
      prefix: tokens of the one.
      saved: tokens of the others; of a model that takes its time at most 512.
      repeat: suffixes, and prompts.
    """
    lines: list[Measurement | Factor] = [*_suffixes(prefix, repeat)]
    lines += _from_disk(TINY_V4, load_tiny_v4(), saved, repeat)
    if gemma3_270m_installed():
        source = bundled_gemma3_270m()
        loaded = load_model(source, weights_digest=GEMMA3_270M_SHA256)
        lines += _from_disk("Gemma 3 270M", loaded, min(saved, 512), repeat)
    return Report(
        "resume",
        f"6 layers, prefix of {prefix} tokens, suffix of {_SUFFIX}; demo models",
        tuple(lines),
    )


def _suffixes(count: int, repeat: int) -> Iterator[Measurement]:
    """The first token after a hit and after none, against the suffix's step."""
    engine = small_engine(count, _SUFFIX + 8)
    rng = np.random.default_rng(0)

    def draw(tokens: int) -> np.ndarray:
        return rng.integers(3, VOCABULARY, tokens, dtype=np.int32)

    prefix = draw(count)
    cold = _serve(engine, Request(prefix, max_new_tokens=1))
    resumed, alone = [], []
    for _ in range(repeat):
        prompt = np.concatenate([prefix, draw(_SUFFIX)])
        result = _serve(engine, Request(prompt, max_new_tokens=1))
        if result.plan.verdict != Verdict.RESUMABLE:
            raise AssertionError(f"The bench missed: {result.plan.explain()}")
        resumed.append(result.seconds_to_first_token)
        prompt = np.concatenate([prefix, draw(_SUFFIX)])
        alone.append(_suffix_alone(engine, prompt))
    floor = float(np.median(alone))
    for what, seconds, goal in (
        ("first token, prefix resumed", float(np.median(resumed)), 1.1),
        ("first token, all cold", cold.seconds_to_first_token, None),
    ):
        yield Measurement(what, seconds, "the suffix's step alone", floor, goal)


def _from_disk(
    name: str, loaded: LoadedModel, tokens: int, repeat: int
) -> Iterator[Measurement | Factor]:
    """A prompt resumed from disk and recomputed, against what the planner said."""
    foretold, measured = foretold_and_measured(loaded, tokens=tokens, repeat=repeat)
    what = f"{name}, {tokens} tokens"
    for way in ("restored", "recomputed"):
        seconds, said = getattr(measured, way), getattr(foretold, way)
        yield Measurement(f"{what} {way}", seconds, "predicted", said)
    yield Factor(
        f"{what}: gain of restoring",
        measured.factor,
        "predicted",
        foretold.factor,
        goal=0.3,
    )


def _suffix_alone(engine: Engine, prompt: np.ndarray) -> float:
    """Seconds of the step over the suffix, everything else done beforehand."""
    prefixes = engine.prefixes
    plan = prefixes.match(engine.cache, prompt, engine.identity)
    cache, lease = prefixes.acquire(engine.cache, plan)
    shape = engine.buckets.fit(1, len(prompt) - plan.start)
    inputs = batch_inputs(
        [(lease, prompt[plan.start :])], batch=shape[0], width=shape[1]
    )
    sampling = sampling_inputs([], shape[0])
    jax.block_until_ready(cache)
    start = time.perf_counter()
    cache, output = engine.compiled_step(cache, inputs, sampling)
    np.array(output.tokens)
    seconds = time.perf_counter() - start
    engine.cache = prefixes.release(cache, lease, publish=False)
    return seconds


def _serve(engine: Engine, request: Request):
    return engine.run([request])[0]
