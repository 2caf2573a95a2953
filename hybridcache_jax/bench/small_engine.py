"""The engine that benches of serving share: a small Gemma 3 with random weights."""

import pathlib
from typing import Any

from flax import nnx

from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.identity import Identity
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.store.objects import ObjectStore

VOCABULARY = 8192
"""Ids of its tokens lie below."""

_CONFIG = {
    "model_type": "gemma3_text",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "sliding_window": 512,
    "max_position_embeddings": 8192,
}


def small_engine(
    prefix: int, more: int, *, folder: pathlib.Path | None = None, **shape: Any
) -> Engine:
    """Serves one sequence at a time, in chunks of 128; everything is compiled.

    Args:
      prefix: tokens of the prefixes of which it keeps two.
      more: tokens of a sequence beyond those.
      folder: of the store that keeps what is published; None for none.
      **shape: settings of the model that are others than usual.
    """
    config = Gemma3Config.from_hf({**_CONFIG, **shape})
    spec = CacheSpec.from_layers(config.layers("float32"))
    buckets = Buckets(batch=(1,), chunk=(1, 128))
    plan = plan_capacity(
        spec,
        budget="4GiB",
        max_sequences=1,
        max_length=prefix + more,
        max_chunk=buckets.max_chunk,
        stored_tokens=2 * prefix,
        staging_blocks=0 if folder is None else 4,
    )
    tier = store = None
    if folder is not None:
        tier = HostTier(plan, budget="256MiB", known_tokens=prefix)
        store = ObjectStore(folder)
    engine = Engine(
        CompiledStep(Gemma3(config, rngs=nnx.Rngs(0)), config.vocab_size),
        plan,
        Identity(weights="random", config=config.digest, layout=spec.fingerprint),
        vocab_size=config.vocab_size,
        buckets=buckets,
        policy=ReusePolicy(scope="namespace"),
        tier=tier,
        store=store,
    )
    engine.warm_up()
    return engine
