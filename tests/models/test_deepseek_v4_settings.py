"""DeepSeek-V4's settings and weights: read, refused, initialised."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_deepseek_v4 import REAL, TINY, config_of, stored

from hybridcache_jax.configs.deepseek_v4 import (
    CSA,
    HASHED,
    HCA,
    ROUTED,
    WINDOW,
    DeepseekV4Config,
)
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.deepseek_v4 import DeepseekV4, published_names
from hybridcache_jax.models.deepseek_v4_moe import MoE, Router, clamped_swiglu
from hybridcache_jax.models.hyper_connections import (
    HyperConnection,
    sinkhorn,
    write,
)
from hybridcache_jax.models.parameters import parameter_structs

HUB = {
    "model_type": "deepseek_v4",
    "compress_ratios": [0, 4, 128, 4, 0],
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_hidden_layers": 4,
    "vocab_size": 129280,
}


def read(**changes):
    return DeepseekV4Config.from_hf({**HUB, **changes})


def test_both_spellings_give_the_same_config():
    config, hub = config_of(REAL), config_of(REAL, "hub_config.json")
    assert config == hub
    assert config.digest == hub.digest


def test_ratios_and_kinds_of_layers_are_the_same_schedule():
    kinds = (WINDOW, CSA, HCA, CSA)
    assert read().layer_types == kinds
    assert read(compress_ratios=[0, 4, 128, 4]) == read()
    assert read(compress_ratios=None, layer_types=list(kinds)) == read()
    rates = {CSA: 4, HCA: 8}
    other = read(compress_ratios=None, layer_types=list(kinds), compress_rates=rates)
    assert (other.csa_ratio, other.hca_ratio) == (4, 8)
    assert other.digest != read().digest


def test_what_a_config_leaves_out_is_as_in_the_released_models():
    config = read()
    assert (config.head_dim, config.rope_head_dim) == (512, 64)
    assert (config.index_heads, config.index_head_dim) == (64, 128)
    assert config.index_topk == 512
    assert config.sliding_window == 128
    assert config.mlp_layer_types == (HASHED, HASHED, HASHED, ROUTED)
    assert (config.rope_main.theta, config.rope_compress.theta) == (1e4, 1.6e5)
    assert config.rope_compress.scaling == "default"


YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_only_layers_with_compression_are_stretched_and_none_is_scaled(name):
    config = read(**{name: {**YARN, "rope_theta": 5.0}})
    assert config.rope_main == read().rope_main
    rope = config.rope_compress
    assert (rope.scaling, rope.factor, rope.attention_factor) == ("yarn", 16, 1.0)
    assert (rope.theta, rope.original_length) == (1.6e5, 65536)


def test_a_config_without_a_schedule_is_refused():
    with pytest.raises(CheckpointError, match="neither compress_ratios nor layer"):
        read(compress_ratios=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"compress_ratios": [0, 4, 128]}, "compress_ratios"),
        ({"compress_ratios": [0, 4, 128, 4, 0, 0]}, "compress_ratios"),
        ({"compress_ratios": [0, 2, 128, 4, 0]}, "only 0, 4 and 128"),
        ({"layer_types": [WINDOW]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"compress_rates": {CSA: 1}}, "compress_rates"),
        ({"mlp_layer_types": [HASHED]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["dense"] * 4}, "mlp_layer_types"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"swiglu_limit": 0}, "swiglu_limit"),
        ({"o_groups": 7}, "o_groups"),
        ({"num_experts_per_tok": 257}, "num_experts_per_tok"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
        ({"qk_rope_head_dim": 512}, "qk_rope_head_dim"),
        ({"index_head_dim": 32}, "index_head_dim"),
        ({"rope_scaling": {"type": "llama3"}}, "rope_type"),
        (
            {
                "rope_parameters": {
                    "main": {"partial_rotary_factor": 0.5},
                    "compress": {},
                }
            },
            "partial_rotary_factor",
        ),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        read(**changes)


@pytest.mark.parametrize("name", [TINY, REAL])
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


def test_what_is_computed_in_float32_is_kept_so():
    structs = parameter_structs(DeepseekV4, config_of(TINY), jnp.bfloat16)
    kinds = {}
    for name, leaf in structs.items():
        kinds.setdefault(leaf.dtype.name, set()).add(name.split(".", 2)[-1])
    assert kinds["int32"] == {"mlp.gate.tid2eid"}
    narrow = kinds["bfloat16"]
    assert {"self_attn.q_a_proj.weight", "mlp.experts.down_proj"} <= narrow
    exact = ("norm", "hc", "sinks", "gate.", "compressor.kv", "compressor.gate", "bias")
    for name in narrow:
        assert not any(part in name for part in exact), name


def test_a_tied_head_has_no_parameters_of_its_own():
    config = dataclasses.replace(config_of(TINY), tie_word_embeddings=True)
    names = parameter_structs(DeepseekV4, config).keys()
    assert names == published_names(config).keys()
    assert "lm_head.weight" not in names
    logits = nnx.eval_shape(
        lambda: DeepseekV4(config, rngs=nnx.Rngs(0)).logits(jnp.ones((1, 32)))
    )
    assert logits.shape == (1, 64)


def test_sinkhorn_sums_to_one_over_rows_and_columns():
    logits = jax.random.normal(jax.random.key(0), (3, 4, 4))
    matrix = np.asarray(jax.jit(sinkhorn, static_argnums=(1, 2))(logits, 20, 1e-6))
    np.testing.assert_allclose(matrix.sum(axis=-2), 1, atol=1e-5)
    np.testing.assert_allclose(matrix.sum(axis=-1), 1, atol=1e-3)
    once = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    once = once / once.sum(axis=-2, keepdims=True)
    np.testing.assert_allclose(sinkhorn(logits, 1, 0.0), once, atol=1e-6)


def test_an_untrained_connection_is_an_even_residual():
    """Weights start near one half, one, and 1 / streams."""
    connection = HyperConnection(
        4, 8, iterations=20, norm_eps=1e-6, eps=0.0, rngs=nnx.Rngs(0)
    )
    connection.fn[...] = jnp.zeros_like(connection.fn[...])
    x = jax.random.normal(jax.random.key(1), (1, 2, 4, 8))

    @jax.jit
    def run(x):
        seen, weights, mixing = connection.read(x)
        return seen, write(x, seen, weights, mixing)

    seen, after = run(x)
    np.testing.assert_allclose(seen, x.sum(axis=2) / 2, atol=1e-6)
    want = x.mean(axis=2, keepdims=True) + seen[:, :, None]
    np.testing.assert_allclose(after, jnp.broadcast_to(want, x.shape), atol=1e-5)


def test_experts_start_spread_over_tokens_and_every_weight_gets_a_gradient():
    config = config_of(TINY)
    moe = MoE(config, hashed=True, rngs=nnx.Rngs(0), param_dtype=jnp.float32)
    table = np.asarray(moe.gate.tid2eid[...])
    assert (np.sort(table)[:, :-1] < np.sort(table)[:, 1:]).all()
    assert np.unique(np.bincount(table.ravel())).size == 1
    x = jax.random.normal(jax.random.key(0), (1, 8, config.hidden_size))
    tokens = jnp.arange(8, dtype=jnp.int32)[None]
    graph, params, rest = nnx.split(moe, nnx.Param, ...)

    @jax.jit
    def gradient(params):
        def total(params):
            return jnp.sum(nnx.merge(graph, params, rest)(x, tokens) ** 2)

        return jax.grad(total)(params)

    for leaf in jax.tree.leaves(gradient(params)):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


@pytest.mark.parametrize("hashed", [True, False])
def test_ids_of_padding_tokens_change_nothing(hashed):
    config = config_of(TINY)
    moe = MoE(config, hashed=hashed, rngs=nnx.Rngs(0), param_dtype=jnp.float32)
    x = jax.random.normal(jax.random.key(0), (1, 4, config.hidden_size))
    x = x.at[0, 3].set(jnp.nan)
    run = jax.jit(lambda tokens: moe(x, tokens))
    for id_ in (-1, 10**9):
        got = run(jnp.array([[5, 6, 7, id_]], jnp.int32))
        np.testing.assert_array_equal(got[0, :3], run(jnp.array([[5, 6, 7, 0]]))[0, :3])
        assert np.isfinite(got[0, :3]).all()


def test_sigmoid_scores():
    config = dataclasses.replace(config_of(TINY), scoring="sigmoid")
    router = Router(config, hashed=False, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (1, 3, config.hidden_size))
    chosen, weights = router(x, jnp.zeros((1, 3), jnp.int32))
    scores = jax.nn.sigmoid(x @ router.weight[...].T)
    best, where = jax.lax.top_k(scores, 2)
    np.testing.assert_array_equal(chosen, where)
    want = 1.5 * best / best.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, want, atol=1e-5)


def test_the_clamp_holds_the_gate_above_and_the_other_on_both_sides():
    gate, up = jnp.array([-9.0, 0.5, 9.0]), jnp.array([-9.0, 0.5, 9.0])
    got = clamped_swiglu(gate, up, limit=2.0)
    want = jax.nn.silu(jnp.array([-9.0, 0.5, 2.0])) * jnp.array([-2.0, 0.5, 2.0])
    np.testing.assert_allclose(got, want, atol=1e-6)
