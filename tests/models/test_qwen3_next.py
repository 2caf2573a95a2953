"""Qwen3-Next over the real cache, against reference outputs.

Logits and every cached tensor within 2e-3, however the tokens are split into steps and
wherever a stored prefix is resumed.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from recurrent_golden import (
    WAYS,
    WIDTH,
    Golden,
    Runner,
    check_batch,
    check_logits,
    check_published_names,
    check_resumed,
    check_state,
)

from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.configs.qwen3_next import Qwen3NextConfig
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.parameters import from_params, parameter_shapes
from hybridcache_jax.models.qwen3_next import Qwen3Next, published_names

GOLDEN = Golden("qwen3_next", Qwen3NextConfig, Qwen3Next)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_running_gives_the_reference_logits(way):
    check_logits(GOLDEN, way)


@pytest.mark.parametrize(
    "length", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 101)), 150]
)
def test_cache_tensors_equal_the_reference(length):
    check_state(GOLDEN, length)


@pytest.mark.slow
def test_resumed_at_every_checkpoint():
    check_resumed(GOLDEN)


@pytest.mark.slow
def test_all_tokens_of_a_batch_at_once():
    check_batch(GOLDEN, [(150, 150)])


@pytest.mark.slow
def test_rows_of_unequal_length_in_one_batch():
    check_batch(GOLDEN, [(41, 1), (2, 99), (57, 1), (1, 49)])


def test_published_names_make_every_parameter():
    check_published_names(GOLDEN, published_names)


@pytest.mark.slow
def test_a_wrong_rotation_changes_the_logits():
    rope = dataclasses.replace(GOLDEN.config.rope, partial=1.0)
    _, logits, _ = Runner(GOLDEN, rope=rope).run_alone(0, [WIDTH], WIDTH)
    assert np.abs(logits - GOLDEN.expected["logits"][0][:WIDTH]).max() > 0.1


def test_decay_parameters_stay_float32():
    config = GOLDEN.config
    model = nnx.eval_shape(
        lambda: Qwen3Next(config, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    )
    kept = {
        ".".join(map(str, path)).split(".", 2)[2]
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if leaf.dtype == jnp.float32
    }
    assert kept == {"linear_attn.A_log", "linear_attn.dt_bias"}


def test_options_of_the_family_change_the_parameters():
    """Dense layers, biases and a tied head; no reference outputs have them."""
    plain = parameter_shapes(Qwen3Next, GOLDEN.config)
    config = Qwen3NextConfig.from_hf(
        hub(mlp_only_layers=[0], attention_bias=True, tie_word_embeddings=True)
    )
    changed = parameter_shapes(Qwen3Next, config)
    assert plain.keys() - changed.keys() == {
        "lm_head.weight",
        *(name for name in plain if name.startswith("layers.0.mlp.")),
    }
    assert {name: changed[name] for name in changed.keys() - plain.keys()} == {
        "layers.0.mlp.gate_proj.weight": (48, 32),
        "layers.0.mlp.up_proj.weight": (48, 32),
        "layers.0.mlp.down_proj.weight": (32, 48),
        "layers.3.self_attn.q_proj.bias": (128,),
        "layers.3.self_attn.k_proj.bias": (32,),
        "layers.3.self_attn.v_proj.bias": (32,),
        "layers.3.self_attn.o_proj.bias": (32,),
    }


def test_a_tied_head_is_the_embedding():
    config = dataclasses.replace(GOLDEN.config, tie_word_embeddings=True)
    params = {
        name: jnp.asarray(tensor)
        for name, tensor in GOLDEN.tensors("model.safetensors").items()
        if name != "lm_head.weight"
    }
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32)), jnp.float32)
    logits = from_params(Qwen3Next, config, params).logits(hidden)
    want = np.array(hidden) @ np.array(params["embed_tokens.weight"]).T
    np.testing.assert_allclose(logits, want, atol=1e-5)


def hub(**changes):
    return {**read_json(GOLDEN.folder / "hub_config.json"), **changes}


def test_both_spellings_give_the_same_config():
    config = Qwen3NextConfig.from_hf(hub())
    assert config == GOLDEN.config
    assert config.digest == GOLDEN.config.digest


def test_the_older_spelling_gives_the_same_config():
    old = hub(full_attention_interval=4)
    for field in ("rope_parameters", "layer_types", "mlp_only_layers"):
        del old[field]
    assert Qwen3NextConfig.from_hf(old) == GOLDEN.config


def test_experts_are_left_out_of_dense_layers():
    config = Qwen3NextConfig.from_hf(hub(decoder_sparse_step=2, mlp_only_layers=[1]))
    assert config.mlp_types == ("dense", "dense", "dense", "sparse")
    assert Qwen3NextConfig.from_hf(hub(num_experts=0)).mlp_types == ("dense",) * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_moe"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.2}}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 2.0}}, "partial_rotary_factor"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        Qwen3NextConfig.from_hf(hub(**changes))
