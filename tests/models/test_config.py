"""Gemma3Config from every spelling it is published in."""

import json
from pathlib import Path

import pytest

from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.configs.gemma3_gguf import gemma3_from_gguf
from hybridcache_jax.configs.rope import RopeConfig
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.errors import CheckpointError

GOLDENS = Path(__file__).parents[1] / "goldens"


def hf_config(**changes):
    config = json.loads((GOLDENS / "gemma3_text" / "hub_config.json").read_text())
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def linear(theta, factor):
    return RopeConfig(theta=theta, scaling="linear", factor=factor)


@pytest.fixture
def meta_270m():
    return json.loads((GOLDENS / "gemma3_270m_meta.json").read_text())


def test_both_spellings_give_one_config():
    nested = json.loads((GOLDENS / "gemma3_text" / "config.json").read_text())
    config = Gemma3Config.from_hf(nested)
    assert config == Gemma3Config.from_hf(hf_config())
    assert config.digest == Gemma3Config.from_hf(hf_config()).digest
    assert config.rope_full == linear(1e6, 8.0)
    assert config.rope_sliding == RopeConfig(theta=1e4)
    assert config.query_scale == pytest.approx(20**-0.5)
    assert config.layer_types == (SLIDING,) * 5 + (FULL,)


def test_the_digest_tells_settings_apart():
    digests = {
        Gemma3Config.from_hf(hf_config(**changes)).digest
        for changes in ({}, {"sliding_window": 9}, {"rope_theta": 2e6})
    }
    assert len(digests) == 3


def test_flat_rope_parameters_belong_to_the_full_layers():
    config = Gemma3Config.from_hf(
        hf_config(
            rope_scaling=...,
            rope_theta=...,
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
        )
    )
    assert config.rope_full == linear(5e5, 4.0)
    assert config.rope_sliding == RopeConfig(theta=1e4)


@pytest.mark.parametrize(
    ("changes", "full_layers"),
    [
        ({}, [5]),
        ({"_sliding_window_pattern": ...}, [5]),
        ({"_sliding_window_pattern": 3}, [2, 5]),
        ({"_sliding_window_pattern": ..., "sliding_window_pattern": 2}, [1, 3, 5]),
    ],
)
def test_schedule_from_the_pattern(changes, full_layers):
    config = Gemma3Config.from_hf(hf_config(layer_types=..., **changes))
    full = [i for i, kind in enumerate(config.layer_types) if kind == FULL]
    assert full == full_layers


def test_multimodal_config_with_class_defaults():
    """The text part of the published 4B config says no more than this."""
    config = Gemma3Config.from_hf(
        {
            "model_type": "gemma3",
            "eos_token_id": [1, 106],
            "vision_config": {},
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        }
    )
    assert config.eos_token_ids == (1, 106)
    assert (config.vocab_size, config.head_dim) == (262_208, 256)
    assert (config.num_heads, config.num_kv_heads) == (8, 4)
    assert config.layer_types.count(FULL) == 5
    assert config.rope_full == linear(1e6, 8.0)


def test_gguf_metadata_of_the_270m(meta_270m):
    from_gguf = gemma3_from_gguf(meta_270m["gguf_metadata"], vocab_size=262_144)
    assert from_gguf == Gemma3Config.from_hf(meta_270m["config_in_use"])


def test_gguf_metadata_of_larger_models(meta_270m):
    metadata = meta_270m["gguf_metadata"] | {
        "gemma3.block_count": 62,
        "gemma3.embedding_length": 5376,
        "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16,
        "gemma3.attention.key_length": 128,
        "gemma3.attention.value_length": 128,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
        "tokenizer.ggml.tokens": ["a"] * 7,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 106,
    }
    config = gemma3_from_gguf(metadata)
    assert config.query_pre_attn_scalar == 168
    assert config.rope_full == linear(1e6, 8.0)
    assert config.vocab_size == 7
    assert config.eos_token_ids == (1, 106)


def test_layer_specs():
    config = Gemma3Config.from_hf(hf_config())
    specs = config.layers("bfloat16")
    assert [spec.local is not None for spec in specs] == [True] * 5 + [False]
    assert specs[0].local.size == 8
    assert specs[0].local.entry == specs[5].global_.entry
    plane = specs[5].global_.entry.planes[0]
    assert (plane.heads, plane.dim, plane.dtype) == (2, 16, "bfloat16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "'llama'"),
        ({"model_type": ...}, "gemma3_text"),
        ({"model_type": "gemma3"}, "text_config"),
        ({"model_type": "gemma3", "text_config": {"model_type": "t5"}}, "'t5'"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"hidden_activation": "silu"}, "'silu'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"query_pre_attn_scalar": float("nan")}, "query_pre_attn_scalar"),
        ({"vocab_size": True}, "vocab_size"),
        ({"vocab_size": 2**31}, "vocab_size"),
        ({"eos_token_id": "<eos>"}, "eos_token_id"),
        ({"eos_token_id": [1, 2**31]}, "eos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
        ({"head_dim": 15}, "even"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": None}, "sliding_window"),
        ({"num_hidden_layers": 5}, "one kind for each of 5"),
        ({"layer_types": ["linear_attention"] * 6}, "linear_attention"),
        ({"layer_types": ..., "_sliding_window_pattern": 0}, "pattern"),
        ({"layer_types": ..., "num_hidden_layers": "six"}, "gemma3.*'six'"),
    ],
)
def test_unsupported_hf_settings(changes, message):
    with pytest.raises(CheckpointError, match=message):
        Gemma3Config.from_hf(hf_config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "gemma2"}, "'gemma2'"),
        ({"gemma3.attention.sliding_window": None}, "attention.sliding_window"),
        ({"gemma3.attention.value_length": 128}, "value_length"),
        ({"gemma3.rope.scaling.type": "yarn"}, "'yarn'"),
        ({"gemma3.block_count": "many"}, "gemma3.*'many'"),
        ({"gemma3.block_count": 2**31}, "block_count"),
        ({"gemma3.block_count": 2**30}, "at most 1024"),
    ],
)
def test_unsupported_gguf_metadata(meta_270m, changes, message):
    with pytest.raises(CheckpointError, match=message):
        gemma3_from_gguf(meta_270m["gguf_metadata"] | changes, vocab_size=8)
