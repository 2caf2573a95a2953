"""A serving step with a save beside it, and without."""

import pathlib
import tempfile
import time

import numpy as np
from flax import nnx

from hybridcache_jax.bench.resume import CONFIG
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.identity import Identity
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.store.objects import ObjectStore


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
        engine = _engine(pathlib.Path(folder), steps, tokens)
        rng = np.random.default_rng(0)
        saving, alone = [], []
        for _ in range(repeat):
            for times, flushed in ((saving, False), (alone, True)):
                prompt = rng.integers(3, 8192, tokens, dtype=np.int32)
                engine.run([Request(prompt, max_new_tokens=1)])
                if flushed:
                    engine.flush()
                times.append(_decoded(engine, rng, steps))
                engine.flush()
        engine.prefixes.close()
    return float(np.median(saving)), float(np.median(alone))


def _decoded(engine: Engine, rng: np.random.Generator, steps: int) -> float:
    """Mean seconds of decode steps of one row; if a save goes on, while it does."""
    short = rng.integers(3, 8192, 8, dtype=np.int32)
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


def _engine(folder: pathlib.Path, steps: int, tokens: int) -> Engine:
    # Entries large enough to be saved for longer than the steps take.
    shape = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128}
    config = Gemma3Config.from_hf({**CONFIG, **shape})
    spec = CacheSpec.from_layers(config.layers("float32"))
    buckets = Buckets(batch=(1,), chunk=(1, 128))
    plan = plan_capacity(
        spec,
        budget="4GiB",
        max_sequences=1,
        max_length=tokens + steps + 16,
        max_chunk=buckets.max_chunk,
        stored_tokens=2 * tokens,
        staging_blocks=4,
    )
    engine = Engine(
        CompiledStep(Gemma3(config, rngs=nnx.Rngs(0)), config.vocab_size),
        plan,
        Identity(weights="random", config=config.digest, layout=spec.fingerprint),
        vocab_size=config.vocab_size,
        buckets=buckets,
        policy=ReusePolicy(scope="namespace"),
        tier=HostTier(plan, budget="256MiB", known_tokens=tokens),
        store=ObjectStore(folder),
    )
    engine.warm_up()
    return engine
