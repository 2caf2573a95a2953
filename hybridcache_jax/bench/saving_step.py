"""A serving step with a save beside it, and without."""

import pathlib
import tempfile
import time

import numpy as np

from hybridcache_jax.bench.small_engine import VOCABULARY, small_engine
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request

# Entries large enough to be saved for longer than the steps take.
_SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128}


def step_seconds(steps: int, repeat: int, tokens: int) -> tuple[float, float]:
    """Decodes one row while a prefix is saved, and while none is.

    Args:
      steps: how many are timed of each, in every round; of those with a save fewer if
        it ends before.
      repeat: rounds.
      tokens: of the prefix.

    Returns:
      Mean seconds of :meth:`Engine.step`, the median over the rounds: with a save, and
      without.
    """
    with tempfile.TemporaryDirectory() as folder:
        engine = small_engine(tokens, steps + 16, folder=pathlib.Path(folder), **_SHAPE)
        rng = np.random.default_rng(0)
        saving, alone = [], []
        for _ in range(repeat):
            for times, flushed in ((saving, False), (alone, True)):
                prompt = rng.integers(3, VOCABULARY, tokens, dtype=np.int32)
                engine.run([Request(prompt, max_new_tokens=1)])
                if flushed:
                    engine.flush()
                times.append(_decoded(engine, rng, steps))
                engine.flush()
        engine.prefixes.close()
    return float(np.median(saving)), float(np.median(alone))


def _decoded(engine: Engine, rng: np.random.Generator, steps: int) -> float:
    """Mean seconds of decode steps of one row; if a save goes on, while it does."""
    short = rng.integers(3, VOCABULARY, 8, dtype=np.int32)
    engine.submit(Request(short, max_new_tokens=steps + 2))
    # Admitted, and its prompt run.
    engine.step()
    saving, seconds = engine.prefixes.saving > 0, []
    while len(seconds) < steps and saving == (engine.prefixes.saving > 0):
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    engine.run([])
    return float(np.mean(seconds))
