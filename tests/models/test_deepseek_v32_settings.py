"""Settings of DeepSeek-V3.2 and GLM-5: read, refused, and seen in the logits."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_latent_view import DenseLatentView
from flax import nnx
from test_deepseek_v32 import GOLDENS, NAMES, config_of, golden, stored

from hybridcache_jax.configs.deepseek_v32 import DeepseekV32Config
from hybridcache_jax.configs.latent import LatentConfig
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.deepseek_v32 import DeepseekV32, published_names
from hybridcache_jax.models.latent_attention import LatentAttention
from hybridcache_jax.models.parameters import from_params


def run_dense(config, weights, tokens):
    """Logits of all tokens in one step, without a cache."""
    graph, state = nnx.split(from_params(DeepseekV32, config, weights))

    @jax.jit
    def run(state, tokens):
        model = nnx.merge(graph, state)
        view: Any = DenseLatentView.of(config.layers("float32"), *tokens.shape)
        hidden, _ = model(tokens, view)
        return model.logits(hidden)

    with jax.default_matmul_precision("highest"):
        return np.asarray(run(state, jnp.asarray(tokens)))


def changed(name, part, **changes):
    return dataclasses.replace(getattr(config_of(name), part), **changes)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("deepseek_v32", {"index_topk": 5}),
        pytest.param("deepseek_v32", {"index_topk": 7}, marks=pytest.mark.slow),
        ("deepseek_v32", {"index_interleaved": True}),
        ("deepseek_v32", {"rope": changed(NAMES[0], "rope", mscale_all_dim=0.0)}),
        pytest.param(
            "deepseek_v32",
            {"rope": changed(NAMES[0], "rope", scaling="default")},
            marks=pytest.mark.slow,
        ),
        ("deepseek_v32", {"routing": changed(NAMES[0], "routing", chosen_groups=4)}),
        pytest.param(
            "deepseek_v32",
            {"routing": changed(NAMES[0], "routing", normalize=False)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "deepseek_v32",
            {"routing": changed(NAMES[0], "routing", scaling=1.0)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "glm_moe_dsa", {"index_interleaved": False}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_wrong_settings_change_the_logits(name, wrong):
    expected = golden(name)
    config = dataclasses.replace(config_of(name), **wrong)
    logits = run_dense(
        config, stored(name, "model.safetensors"), expected["tokens"][:1]
    )
    assert np.abs(logits[0] - expected["logits"][0]).max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_right_settings_give_the_reference_logits(name):
    expected = golden(name)
    weights = stored(name, "model.safetensors")
    logits = run_dense(config_of(name), weights, expected["tokens"][:1])
    np.testing.assert_allclose(logits[0], expected["logits"][0], atol=1e-4)


def test_bfloat16_parameters_leave_what_decides_choices_in_float32():
    config, tokens = config_of("deepseek_v32"), golden("deepseek_v32")["tokens"][:1, :1]
    weights = stored("deepseek_v32", "model.safetensors")
    model = from_params(DeepseekV32, config, weights, param_dtype=jnp.bfloat16)
    wide = {
        ".".join(map(str, path[2:]))
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if leaf.dtype == jnp.float32
    }
    assert wide == {
        "self_attn.indexer.weights_proj.weight",
        "mlp.gate.weight",
        "mlp.gate.e_score_correction_bias",
    }
    graph, state = nnx.split(model)

    @jax.jit
    def first(state, tokens):
        model = nnx.merge(graph, state)
        view: Any = DenseLatentView.of(config.layers("float32"), *tokens.shape)
        return model.logits(model(tokens, view)[0])

    want = golden("deepseek_v32")["logits"][:1, :1]
    np.testing.assert_allclose(first(state, jnp.asarray(tokens)), want, atol=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_published_names_make_every_parameter(name):
    wanted = stored(name, "model.safetensors")
    published = stored(name, "hub_names.safetensors")
    recipes = published_names(config_of(name))
    assert recipes.keys() == wanted.keys()
    for parameter, recipe in recipes.items():
        made = recipe.make([published[tensor] for tensor in recipe.names])
        np.testing.assert_array_equal(made, wanted[parameter])
    used = [tensor for recipe in recipes.values() for tensor in recipe.names]
    assert sorted(used) == sorted(published)


def test_latent_attention_without_query_latent_and_rotation_has_fewer_parameters():
    settings = LatentConfig(
        query_rank=None, kv_rank=4, nope_dim=3, rope_dim=2, value_dim=5
    )
    attention = LatentAttention(
        settings, hidden=8, num_heads=2, rngs=nnx.Rngs(0), param_dtype=jnp.float32
    )
    shapes = {
        ".".join(map(str, path)): leaf.shape
        for path, leaf in nnx.to_flat_state(nnx.state(attention))
    }
    assert shapes == {
        "q_proj.weight": (10, 8),
        "kv_a_proj_with_mqa.weight": (6, 8),
        "kv_a_layernorm.weight": (4,),
        "kv_b_proj.weight": (16, 4),
        "o_proj.weight": (8, 10),
    }
    assert attention.scale == 5**-0.5


def hub(name="deepseek_v32", **changes):
    file = "hub_config.json" if name == "deepseek_v32" else "config.json"
    return {**json.loads((GOLDENS / name / file).read_text()), **changes}


def test_both_spellings_give_the_same_config():
    config = DeepseekV32Config.from_hf(hub())
    assert config == config_of("deepseek_v32")
    assert config.digest == config_of("deepseek_v32").digest


def test_fields_that_equal_the_class_defaults_may_be_left_out():
    short = hub("glm_moe_dsa")
    for field in ("layer_types", "mlp_layer_types", "rms_norm_eps", "n_group"):
        del short[field]
    assert DeepseekV32Config.from_hf(short) == config_of("glm_moe_dsa")


@pytest.mark.parametrize(
    "schedule",
    [
        {"indexer_types": ["full", "full", "shared", "shared", "full"]},
        {"index_topk_pattern": "FFSSF"},
        {"index_topk_freq": 3},
    ],
    ids=str,
)
def test_indexer_types_from_a_list_a_pattern_or_a_period(schedule):
    config = {**hub("glm_moe_dsa", indexer_types=None), **schedule}
    assert DeepseekV32Config.from_hf(config).indexer_types == (
        *("full", "full", "shared", "shared", "full"),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"kv_lora_rank": None}, "lacks 'kv_lora_rank'"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ({"index_head_dim": 4}, "index_head_dim"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"rope_scaling": {"type": "llama3"}}, "rope_scaling.type"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"n_group": 3}, "8 experts must split into 3 groups"),
        ({"topk_group": 5}, "5 chosen"),
        ({"n_group": 8}, "8 groups of 1"),
        ({"num_experts_per_tok": 5}, "1 to 4 experts"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"indexer_types": ["shared", *("full",) * 3]}, "first layer"),
        ({"indexer_types": ["half", *("full",) * 3]}, "indexer_types"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        DeepseekV32Config.from_hf(hub(**changes))
