"""Specs of published latent-attention models: bytes, pools, owners, conventions."""

import pytest

import hybridcache_jax as hc
from hybridcache_jax.configs.deepseek_v32 import DeepseekV32Config
from hybridcache_jax.layers import LayerSpec, TopK

DEEPSEEK_V32 = {
    "model_type": "deepseek_v32",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8"},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GLM_5 = {
    "model_type": "glm_moe_dsa",
    "attention_bias": False,
    "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 3,
    "head_dim": 192,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "indexer_rope_interleave": True,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 2048,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 256,
    "vocab_size": 154880,
}
# One indexer for four layers from the third on, as in GLM-5.2.
GLM_SHARED = {**GLM_5, "index_topk_freq": 4, "index_skip_topk_offset": 3}


def layers(config, cache_format):
    return DeepseekV32Config.from_hf(config).layers(cache_format)


def spec(config, cache_format):
    return hc.CacheSpec.from_layers(layers(config, cache_format))


@pytest.mark.parametrize(
    ("config", "cache_format", "expected"),
    [
        (DEEPSEEK_V32, "fp8", 48_068),
        (DEEPSEEK_V32, "bfloat16", 85_888),
        (GLM_5, "fp8", 61_464),
        (GLM_5, "bfloat16", 78 * 1_408),
        (GLM_SHARED, "fp8", 61_464 - 57 * 132),
        (GLM_SHARED, "bfloat16", 78 * 1_408 - 57 * 256),
    ],
    ids=["v3.2-fp8", "v3.2-bf16", "glm-fp8", "glm-bf16", "glm5.2-fp8", "glm5.2-bf16"],
)
def test_bytes_of_a_token(config, cache_format, expected):
    found = spec(config, cache_format)
    assert found.bytes_per_token() == expected
    assert found.fixed_bytes() == 0


def test_a_million_tokens_of_v32_take_the_published_84_gib():
    found = spec(DEEPSEEK_V32, "bfloat16").bytes_per_token()
    assert found * 2**20 / 2**30 == pytest.approx(83.9, abs=0.05)


def test_the_quantised_entries_have_the_published_layout():
    layer = layers(DEEPSEEK_V32, "fp8")[0]
    assert layer.global_ is not None
    assert layer.index is not None
    entry, key = layer.global_.entry, layer.index.entry
    assert (entry.nbytes, key.nbytes) == (656, 132)
    assert [(p.name, p.dim, p.dtype, p.run) for p in entry.planes] == [
        ("latent", 512, "float8_e4m3fn", 128),
        ("latent_scale", 4, "float32", 0),
        ("rope", 64, "bfloat16", 0),
    ]
    assert [(p.name, p.dim, p.dtype, p.run) for p in key.planes] == [
        ("k", 128, "float8_e4m3fn", 128),
        ("k_scale", 1, "float32", 0),
    ]
    assert sum(plane.width for plane in entry.key_planes) == 576
    assert [plane.name for plane in entry.value_planes] == ["latent"]


def test_all_layers_of_v32_are_one_group():
    found = spec(DEEPSEEK_V32, "fp8")
    assert [group.layers for group in found.groups] == [tuple(range(61))]
    assert [pool.form for pool in found.pools] == [
        hc.Form.FULL_KV,
        hc.Form.INDEXER_STATE,
    ]
    assert {layer.select for layer in found.layers} == {TopK(2048)}


def test_shared_layers_keep_no_index_keys_and_read_the_full_layer_before_them():
    found = spec(GLM_SHARED, "fp8")
    full = (0, 1, 2, *range(6, 78, 4))
    assert [pool.layers for pool in found.pools if pool.name.startswith("index")] == [
        full
    ]
    # Which layer they read does not split the shared layers.
    assert len(found.groups) == 2
    for number, layer in enumerate(found.layers):
        if number in full:
            assert layer.select_owner is None
            assert layer.index is not None
        else:
            nearest = max(owner for owner in full if owner < number)
            assert layer == LayerSpec(
                global_=found.layers[0].global_, select_owner=nearest
            )


def test_layouts_of_other_conventions_are_not_taken_for_each_other():
    other = {**DEEPSEEK_V32, "indexer_rope_interleave": True}
    prints = {
        spec(config, cache_format).fingerprint
        for config in (DEEPSEEK_V32, other)
        for cache_format in ("fp8", "bfloat16", "float32")
    }
    assert len(prints) == 6


def test_an_unknown_cache_format_is_refused():
    with pytest.raises(ValueError, match="Unknown dtype 'fp7'"):
        layers(DEEPSEEK_V32, "fp7")
