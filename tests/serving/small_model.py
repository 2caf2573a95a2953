"""A small random Gemma 3 and the sizes it is served with."""

import numpy as np
from flax import nnx

import hybridcache_jax as hc
from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.serving.buckets import Buckets

VOCABULARY = 61
CONFIG = Gemma3Config.from_hf(
    {
        "model_type": "gemma3_text",
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 10,
        "sliding_window_pattern": 3,
        "max_position_embeddings": 512,
    }
)
SPEC = hc.CacheSpec.from_layers(CONFIG.layers("float32"), block_tokens=4)
PLAN = hc.plan_capacity(
    SPEC,
    budget="8MiB",
    max_sequences=3,
    max_length=96,
    max_chunk=16,
    stored_tokens=160,
    staging_blocks=4,
)
IDENTITY = hc.Identity(weights="w", config=CONFIG.digest, layout=SPEC.fingerprint)
BUCKETS = Buckets(batch=(1, 3), chunk=(1, 16))
SHARED = hc.ReusePolicy(scope="namespace")


def random_model(seed):
    """Weights large enough that greedy choices depend on the whole context."""
    model = Gemma3(CONFIG, rngs=nnx.Rngs(seed))
    graph, state = nnx.split(model)
    rng = np.random.default_rng(seed)
    state = nnx.map_state(
        lambda _, leaf: leaf.replace(rng.normal(0, 0.4, leaf.shape).astype(np.float32)),
        state,
    )
    return nnx.merge(graph, state)
