"""Llama 4: reference outputs over the real cache, spellings of its config."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from windowed_golden import check_reference, read_config

from hybridcache_jax.configs.llama4 import Llama4Config
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models import rope
from hybridcache_jax.models.llama4 import Llama4, MoE

NAME = "llama4_text"


def published(**changes):
    """The spelling of published checkpoints, with no trace of the new one."""
    config = read_config(NAME, "hub_config.json")
    new = ("rope_parameters", "layer_types")
    return {k: v for k, v in config.items() if k not in new} | changes


def test_logits_and_cache_equal_the_reference():
    check_reference(NAME, Llama4, Llama4Config.from_hf(read_config(NAME)))


def test_the_config_spellings_are_one():
    config = Llama4Config.from_hf(read_config(NAME))
    hub = Llama4Config.from_hf(read_config(NAME, "hub_config.json"))
    assert hub == config == Llama4Config.from_hf(published())
    assert hub.digest == config.digest
    multimodal = {"model_type": "llama4", "text_config": published()}
    assert Llama4Config.from_hf(multimodal) == config
    # First releases: an empty list of layers, and a number for true.
    first = published(no_rope_layers=[], moe_layers=None, attn_temperature_tuning=4)
    assert Llama4Config.from_hf(first) == config


def test_no_chunks_make_all_layers_full():
    config = Llama4Config.from_hf(published(attention_chunk_size=None))
    assert config.roped == (True, True, True, False)
    assert all(layer.local is None for layer in config.layers())


def test_frequencies_of_long_waves_are_stretched_and_of_short_ones_kept():
    config = Llama4Config.from_hf(read_config(NAME))
    plain = rope.inverse_frequencies(config.head_dim, config.rope.theta)
    found, magnitude = rope.frequencies(config.rope, config.head_dim)
    turns = config.rope.original_length * plain / (2 * np.pi)
    assert magnitude == 1.0
    assert {bool(t > 4) for t in turns} == {bool(t < 1) for t in turns} == {True, False}
    for kept, old, new in zip(turns, plain, found, strict=True):
        between = (kept - 1) / 3 * old + (4 - kept) / 3 * old / 8
        want = old if kept > 4 else old / 8 if kept < 1 else between
        np.testing.assert_allclose(new, want, rtol=1e-6)


def test_weights_of_experts_act_on_their_inputs():
    """Two experts per token: each sees the token scaled by its own weight."""
    config = Llama4Config.from_hf(published(num_experts_per_tok=2))
    moe = MoE(config, rngs=nnx.Rngs(0), param_dtype=jnp.float32)
    x = 3 * jax.random.normal(jax.random.key(1), (5, config.hidden_size))
    scores = moe.router(x)
    best = jnp.argsort(-scores, axis=-1)[:, :2]
    rows = []
    for row, chosen in zip(range(5), best, strict=True):
        out = moe.shared_expert(x[row])
        for expert in chosen:
            scaled = x[row] * jax.nn.sigmoid(scores[row, expert])
            inner = scaled @ moe.experts.gate_up_proj[...][expert]
            gate, up = jnp.split(inner, 2)
            out += jax.nn.silu(gate) * up @ moe.experts.down_proj[...][expert]
        rows.append(out)
    np.testing.assert_allclose(moe(x), jnp.stack(rows), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type = 'llama'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"no_rope_layers": [1, 1, 1, 2]}, "no_rope_layers"),
        ({"moe_layers": [4]}, "moe_layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"attn_temperature_tuning": "on"}, "attn_temperature_tuning = 'on'"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        Llama4Config.from_hf(published(**changes))
