"""Specs of published recurrent hybrids: bytes, pools, schedules."""

import dataclasses

import pytest

import hybridcache_jax as hc
from hybridcache_jax.configs.kimi_linear import KimiLinearConfig
from hybridcache_jax.configs.minimax import MinimaxConfig
from hybridcache_jax.configs.qwen3_next import Qwen3NextConfig
from hybridcache_jax.entry import Entry
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.layers import Entries, LayerSpec, RecurrentState

MIB = 2**20
QWEN3_NEXT_80B = {
    "model_type": "qwen3_next",
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
KIMI_LINEAR_48B = {
    "model_type": "kimi_linear",
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [
            *(1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15),
            *(17, 18, 19, 21, 22, 23, 25, 26),
        ],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
MINIMAX_M1 = {
    "model_type": "minimax_m1",
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "max_position_embeddings": 10240000,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000000,
    "rotary_dim": 64,
    "tie_word_embeddings": False,
    "vocab_size": 200064,
}
QWEN = (Qwen3NextConfig, QWEN3_NEXT_80B)
KIMI = (KimiLinearConfig, KIMI_LINEAR_48B)
MINIMAX = (MinimaxConfig, MINIMAX_M1)


def spec(model, cache_format="bfloat16", **changes):
    make, published = model
    config = make.from_hf({**published, **changes})
    return hc.CacheSpec.from_layers(config.layers(cache_format))


@pytest.mark.parametrize(
    ("model", "per_token", "fixed"),
    [
        (QWEN, 24_576, 36 * (2 * MIB + 3 * 8_192 * 2)),
        (KIMI, 8_064, 20 * (2 * MIB + 3 * 3 * 4_096 * 2)),
        (MINIMAX, 10 * 4_096, 70 * 4 * MIB),
    ],
    ids=["qwen3-next-80b", "kimi-linear-48b", "minimax-m1"],
)
def test_bytes_of_a_token_and_of_a_sequence(model, per_token, fixed):
    found = spec(model)
    assert found.bytes_per_token() == per_token
    assert found.fixed_bytes() == fixed


@pytest.mark.parametrize(
    ("model", "published"), [(QWEN, 73.7), (KIMI, 41.4)], ids=["qwen3-next", "kimi"]
)
def test_states_take_the_published_mebibytes(model, published):
    assert spec(model).fixed_bytes() / MIB == pytest.approx(published, abs=0.05)


@pytest.mark.parametrize(
    ("model", "full"),
    [
        (QWEN, tuple(range(3, 48, 4))),
        (KIMI, (3, 7, 11, 15, 19, 23, 26)),
        (MINIMAX, tuple(range(7, 80, 8))),
    ],
    ids=["qwen3-next-80b", "kimi-linear-48b", "minimax-m1"],
)
def test_linear_layers_share_one_pool_and_full_layers_another(model, full):
    found = spec(model)
    pools = {pool.form: pool.layers for pool in found.pools}
    assert pools == {
        hc.Form.RECURRENT_STATE: tuple(
            layer for layer in range(len(found.layers)) if layer not in full
        ),
        hc.Form.FULL_KV: full,
    }


@pytest.mark.parametrize("cache_format", ["bfloat16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize(
    "model", [QWEN, KIMI, MINIMAX], ids=["qwen", "kimi", "minimax"]
)
def test_states_are_float32_in_every_cache_format(model, cache_format):
    conv = "float32" if cache_format == "float32" else "bfloat16"
    states = {"state": "float32", "conv": conv}
    for pool in spec(model, cache_format).pools:
        for plane in pool.entry.planes:
            assert plane.dtype == states.get(plane.name, cache_format)


def planes(layer):
    return {
        plane.name: (plane.heads, plane.dim) for plane in layer.recurrent.state.planes
    }


def test_planes_of_the_states():
    qwen, kimi, minimax = (spec(model).layers[0] for model in (QWEN, KIMI, MINIMAX))
    assert planes(qwen) == {"state": (32, 128 * 128), "conv": (1, 3 * 8_192)}
    assert planes(kimi) == {"state": (32, 128 * 128), "conv": (1, 3 * 3 * 4_096)}
    assert planes(minimax) == {"state": (64, 128 * 128)}


def test_planes_follow_unequal_dimensions():
    """Values twice as wide as keys: heads, products and channels are not mixed up."""
    found = spec(
        QWEN,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=3,
    )
    channels = 2 * 2 * 8 + 6 * 16
    assert planes(found.layers[0]) == {"state": (6, 8 * 16), "conv": (1, 2 * channels)}


def test_full_layers_of_kimi_keep_an_unrotated_latent():
    entry = spec(KIMI).pools[1].entry
    assert [(p.name, p.heads, p.dim) for p in entry.planes] == [
        ("latent", 1, 512),
        ("rope", 1, 64),
    ]
    assert (entry.key, entry.value) == (("latent", "rope"), ("latent",))
    assert entry.convention == "not rotated"
    quantised = spec(KIMI, "fp8")
    assert quantised.bytes_per_token() == 7 * 656
    assert quantised.fixed_bytes() == spec(KIMI).fixed_bytes()


def test_minimax_in_both_spellings():
    listed = dict(MINIMAX_M1)
    kinds = ("linear_attention",) * 7 + ("full_attention",)
    del listed["attn_type_list"]
    converted = {**listed, "model_type": "minimax", "layer_types": list(kinds * 10)}
    config = MinimaxConfig.from_hf(converted)
    assert config == MinimaxConfig.from_hf(MINIMAX_M1)
    assert config.digest == MinimaxConfig.from_hf(MINIMAX_M1).digest
    text_01 = {**MINIMAX_M1, "model_type": "minimax_text_01"}
    assert MinimaxConfig.from_hf(text_01) == config


def test_minimax_without_a_schedule_alternates_full_layer_first():
    short = {**MINIMAX_M1, "num_hidden_layers": 4, "attn_type_list": None}
    kinds = MinimaxConfig.from_hf(short).layer_types
    assert kinds == ("full_attention", "linear_attention") * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "minimax_m2"}, "model_type"),
        ({"attn_type_list": [0, 2] * 40}, "attn_type_list"),
        ({"attn_type_list": [0, 1]}, "layer_types"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_minimax_refuses_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        MinimaxConfig.from_hf({**MINIMAX_M1, **changes})


def test_a_transposed_state_is_another_layout():
    """Equal shapes where keys are as wide as values: only the convention tells."""
    entry = spec(KIMI).pools[0].entry
    other = dataclasses.replace(entry, convention="state [value, key]")
    prints = {
        hc.CacheSpec.from_layers(
            [LayerSpec(recurrent=RecurrentState(state))]
        ).fingerprint
        for state in (entry, other)
    }
    assert len(prints) == 2


def test_full_layers_of_qwen_are_plain_heads():
    assert spec(QWEN).layers[3] == LayerSpec(
        global_=Entries(Entry.kv(2, 256, "bfloat16"))
    )
