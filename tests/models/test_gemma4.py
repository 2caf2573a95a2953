"""Gemma 4 text model against reference outputs, and the spellings of its config."""

import json

import numpy as np
import pytest
from whole_logits import whole_sequence_logits
from windowed_golden import check_reference, read_config, stored

from hybridcache_jax.configs.gemma4 import Gemma4Config
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.gemma4 import Gemma4
from hybridcache_jax.models.parameters import from_params, parameter_shapes

GOLDEN = "gemma4_text"


def from_hf(**changes):
    content = read_config(GOLDEN) | changes
    return Gemma4Config.from_hf({k: v for k, v in content.items() if v is not ...})


def test_logits_and_cache_equal_the_reference():
    check_reference(GOLDEN, Gemma4, from_hf())


@pytest.mark.parametrize(
    "wrong",
    [
        {"sliding_window": 7},
        {"final_logit_softcapping": None},
        {"rope_parameters": {SLIDING: {}, FULL: {"rope_theta": 1e6}}},
    ],
    ids=json.dumps,
)
def test_wrong_settings_change_the_logits(wrong):
    config, expected = from_hf(**wrong), stored(GOLDEN, "expected.safetensors")
    model = from_params(Gemma4, config, stored(GOLDEN, "model.safetensors"))
    layers = config.layers("float32")
    logits = whole_sequence_logits(model, layers, expected["tokens"])
    assert np.abs(logits - expected["logits"]).max() > 0.1


def test_both_spellings_give_one_config():
    published = from_hf(per_layer_config=..., layer_types=[SLIDING, SLIDING, FULL] * 2)
    assert published.digest == from_hf(global_head_dim=...).digest
    assert (published.head_dim, published.full_head_dim) == (16, 24)
    assert from_hf(rope_parameters=...).digest == published.digest
    forced = from_hf(layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, SLIDING])
    assert forced.digest == published.digest
    nested = {"model_type": "gemma4", "text_config": read_config(GOLDEN)}
    assert Gemma4Config.from_hf(nested).digest == published.digest


def test_layers_that_share_keys_and_values():
    config = from_hf()
    assert config.kv_owners == (None, None, None, None, 3, 2)
    layers = config.layers("bfloat16")
    assert [spec.kv_owner for spec in layers] == list(config.kv_owners)
    assert layers[0].local.size == 8
    assert layers[0].local.entry.planes[0].dim == 16
    assert layers[2].global_.entry.planes[0].dim == 24


def test_heads_of_full_layers_with_keys_as_values():
    config = from_hf(
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        per_layer_config=...,
    )
    assert config.heads(FULL) == (1, 24)
    assert config.heads(SLIDING) == (2, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3_text"}, "'gemma3_text'"),
        ({"use_bidirectional_attention": "all"}, "'all'"),
        ({"hidden_activation": "silu"}, "'silu'"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"per_layer_config": {"2": {"head_dim": 24}}}, "per_layer_config"),
        ({"per_layer_config": {"2": {}, "5": {"head_dim": 8}}}, "per_layer_config"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters"),
        ({"rope_parameters": {SLIDING: {"rope_theta": 1e4}}}, "full_attention"),
        ({"vocab_size_per_layer_input": 63}, "vocab_size_per_layer_input"),
        ({"enable_moe_block": True}, "num_experts"),
        ({"per_layer_config": ..., "global_head_dim": 7}, "even"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping"),
    ],
    ids=str,
)
def test_unsupported_settings(changes, message):
    with pytest.raises(CheckpointError, match=message):
        from_hf(**changes)


def with_experts():
    """A model with experts and joint projections, which the golden has not."""
    config = from_hf(
        enable_moe_block=True,
        num_experts=5,
        top_k_experts=2,
        moe_intermediate_size=7,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        per_layer_config=...,
        num_global_key_value_heads=1,
        num_kv_shared_layers=0,
    )
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(0.5, 0.5, shape).astype(np.float32)
        for name, shape in parameter_shapes(Gemma4, config).items()
    }
    return config, params


def test_experts_equal_a_loop_over_tokens():
    config, params = with_experts()
    block = from_params(Gemma4, config, params).layers[0]
    own = {
        name.removeprefix("layers.0."): array
        for name, array in params.items()
        if name.startswith("layers.0.")
    }
    x = np.random.default_rng(1).normal(0, 1, (6, config.hidden_size))

    def normed(x, weight=1.0):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * weight

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    scores = normed(x, own["router.scale"]) / np.sqrt(config.hidden_size)
    scores = np.exp(scores @ own["router.proj.weight"].T)
    inputs = normed(x, own["pre_feedforward_layernorm_2.weight"])
    want = np.zeros_like(x)
    for token, shares in enumerate(scores / scores.sum(-1, keepdims=True)):
        best = np.argsort(-shares)[:2]
        for expert in best:
            both = own["experts.gate_up_proj"][expert] @ inputs[token]
            out = own["experts.down_proj"][expert] @ (gelu(both[:7]) * both[7:])
            weight = shares[expert] / shares[best].sum()
            want[token] += weight * own["router.per_expert_scale"][expert] * out
    want = normed(want, own["post_feedforward_layernorm_2.weight"])
    got = block._mix(x[None].astype(np.float32))
    np.testing.assert_allclose(got[0], want, atol=1e-4)


def test_full_layers_may_have_one_projection_for_keys_and_values():
    config, params = with_experts()
    assert "layers.0.self_attn.v_proj.weight" in params
    assert "layers.2.self_attn.v_proj.weight" not in params
    appended = {}

    class View:
        def append(self, layer, **planes):
            appended.update(planes)
            return self

        def attend(self, layer, q, *, scale):
            assert scale == 1.0
            return q

    attention = from_params(Gemma4, config, params).layers[2].self_attn
    x = np.random.default_rng(1).normal(0, 1, (1, 3, config.hidden_size))
    still = np.ones((1, 3, 1, 12), np.float32), np.zeros((1, 3, 1, 12), np.float32)
    attention(x.astype(np.float32), View(), 2, still)
    weight = params["layers.2.self_attn.k_norm.weight"]
    np.testing.assert_allclose(appended["k"], appended["v"] * weight, atol=1e-5)
    np.testing.assert_allclose(np.mean(appended["v"] ** 2, -1), 1, atol=1e-4)
