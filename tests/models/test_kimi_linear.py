"""Kimi Linear over the real cache, against reference outputs.

Logits and every cached tensor within 2e-3, however the tokens are split into steps and
wherever a stored prefix is resumed.
"""

import jax.numpy as jnp
import pytest
from flax import nnx
from recurrent_golden import (
    WAYS,
    Golden,
    check_batch,
    check_logits,
    check_published_names,
    check_resumed,
    check_state,
)

from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.configs.kimi_linear import KimiLinearConfig
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.kimi_linear import KimiLinear, published_names

GOLDEN = Golden("kimi_linear", KimiLinearConfig, KimiLinear)
LINEAR, FULL = "linear_attention", "full_attention"


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


def test_decay_and_router_parameters_stay_float32():
    config = GOLDEN.config
    model = nnx.eval_shape(
        lambda: KimiLinear(config, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    )
    kept = {
        ".".join(map(str, path)).split(".", 2)[2]
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if leaf.dtype == jnp.float32
    }
    assert kept == {
        "self_attn.forget_gate.A_log",
        "self_attn.forget_gate.dt_bias",
        "mlp.gate.weight",
        "mlp.gate.e_score_correction_bias",
    }


def hub(**changes):
    return {**read_json(GOLDEN.folder / "hub_config.json"), **changes}


def linear(**changes):
    """The publisher's part on linear layers, changed."""
    part = {**hub()["linear_attn_config"], **changes}
    return {"linear_attn_config": part}


def test_both_spellings_give_the_same_config():
    config = KimiLinearConfig.from_hf(hub())
    assert config == GOLDEN.config
    assert config.digest == GOLDEN.config.digest


def test_layers_are_counted_from_one_in_the_publishers_lists():
    config = hub(**linear(full_attn_layers=[1, 3], kda_layers=[4, 2]))
    kinds = KimiLinearConfig.from_hf(config).layer_types
    assert kinds == (FULL, LINEAR, FULL, LINEAR)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "kimi_k2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"kv_lora_rank": None}, "lacks 'kv_lora_rank'"),
        ({"num_experts_per_token": 5}, "1 to 4 experts"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"num_hidden_layers": 5}, "each of the layers 1 to 5"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
        (linear(full_attn_layers=[3, 4]), "each of the layers 1 to 4"),
        (linear(full_attn_layers=[4, 4]), "each of the layers 1 to 4"),
        (linear(kda_layers=None), "lacks 'kda_layers'"),
        (linear(short_conv_kernel_size=1), "short_conv_kernel_size"),
        (linear(num_heads=0), "num_heads"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        KimiLinearConfig.from_hf(hub(**changes))
