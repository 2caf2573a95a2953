"""The restart of the demo: one process saves the document, another one resumes it."""

import dataclasses
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.engine import Engine, OnProgress
from hybridcache_jax.serving.request import Request, Result
from hybridcache_jax.store.objects import ObjectStore

HOST_MEMORY = "256MiB"


@dataclasses.dataclass(frozen=True)
class Saved:
    """What the first process left.

    Attributes:
      tokens: of the prompt.
      seconds: until all of it was in the store, after the last token.
      nbytes: of all objects.
      objects: how many.
    """

    tokens: int
    seconds: float
    nbytes: int
    objects: int


def over_store(engine: Engine, folder: str, vocab_size: int) -> Engine:
    """An engine like another one, with an empty cache over a store.

    Args:
      engine: its plan has staging blocks; nothing of its step is compiled again.
      folder: of the store.
      vocab_size: of the model.
    """
    plan = engine.plan
    return Engine(
        engine.compiled_step,
        plan,
        engine.identity,
        vocab_size=vocab_size,
        buckets=engine.buckets,
        policy=ReusePolicy(scope="namespace"),
        tier=HostTier(plan, budget=HOST_MEMORY, known_tokens=plan.max_length),
        store=ObjectStore(folder),
    )


def save(engine: Engine, folder: str, tokens: np.ndarray, listen: OnProgress) -> Saved:
    """Runs a prompt for one token, and waits until it is saved.

    Args:
      engine: from :func:`over_store`, warm.
      folder: of its store.
      tokens: ``[n]`` int32.
      listen: is told how the run goes.
    """
    engine.run([Request(tokens, max_new_tokens=1)], listen)
    begun = time.perf_counter()
    engine.flush()
    seconds = time.perf_counter() - begun
    store = ObjectStore(folder)
    sizes = [len(store.get(name) or b"") for name in store.names("")]
    return Saved(len(tokens), seconds, sum(sizes), len(sizes))


def resume(
    engine: Engine, tokens: np.ndarray, max_new_tokens: int, listen: OnProgress
) -> dict[str, Any]:
    """Answers a prompt from the store, and once more cold.

    Args:
      engine: from :func:`over_store`, warm, in a process of its own.
      tokens: ``[n]`` int32.
      max_new_tokens: of the answer.
      listen: is told how the runs go.

    Returns:
      JSON-ready data.
    """
    request = Request(tokens, max_new_tokens=max_new_tokens)
    (result,) = engine.run([request], listen)
    (cold,) = engine.run([dataclasses.replace(request, reuse=False)], listen)
    return _as_data(result, cold)


def in_another_process(arguments: list[str]) -> dict[str, Any]:
    """What ``hybridcache demo`` says as the second process.

    Args:
      arguments: of the command, those of the restart among them.

    Raises:
      OSError: if it fails.
    """
    command = [sys.executable, "-m", "hybridcache_jax", "demo", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise OSError(f"The second process failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def _as_data(result: Result, cold: Result) -> dict[str, Any]:
    waited = result.waited
    return {
        "equal": result.tokens == cold.tokens,
        "waited_for": None if waited is None else waited.verdict.name,
        "bytes_loaded": 0 if waited is None else waited.bytes_to_load,
        "verdict": result.plan.verdict.name,
        "length": result.plan.length,
        "prompt_tokens": result.plan.num_tokens,
        "tokens_run": result.tokens_run,
        "seconds_to_first_token": result.seconds_to_first_token,
        "cold_seconds_to_first_token": cold.seconds_to_first_token,
        "tokens": list(result.tokens),
        "cold_tokens": list(cold.tokens),
    }
