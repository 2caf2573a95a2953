"""gpt-oss against reference outputs, and the spellings of its config."""

import json

import numpy as np
import pytest
from whole_logits import whole_sequence_logits
from windowed_golden import check_reference, read_config, stored

from hybridcache_jax.configs.gpt_oss import GptOssConfig
from hybridcache_jax.configs.windowed import FULL, SLIDING
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.gpt_oss import GptOss
from hybridcache_jax.models.parameters import from_params

GOLDEN = "gpt_oss"


def from_hf(**changes):
    content = read_config(GOLDEN, "hub_config.json") | changes
    return GptOssConfig.from_hf({k: v for k, v in content.items() if v is not ...})


def test_logits_and_cache_equal_the_reference():
    check_reference(GOLDEN, GptOss, from_hf())


@pytest.mark.parametrize(
    "wrong",
    [
        {"sliding_window": 7},
        {"swiglu_limit": 2.0},
        {"swiglu_alpha": 1.0},
        {"num_experts_per_tok": 1},
        {"layer_types": [FULL, SLIDING] * 2},
    ],
    ids=json.dumps,
)
def test_wrong_settings_change_the_logits(wrong):
    config, expected = from_hf(**wrong), stored(GOLDEN, "expected.safetensors")
    model = from_params(GptOss, config, stored(GOLDEN, "model.safetensors"))
    layers = config.layers("float32")
    logits = whole_sequence_logits(model, layers, expected["tokens"])
    assert np.abs(logits - expected["logits"]).max() > 0.1


def test_both_spellings_give_one_config():
    config = GptOssConfig.from_hf(read_config(GOLDEN))
    assert config.digest == from_hf().digest
    old = from_hf(rope_parameters=..., layer_types=...)
    assert old.digest == config.digest


def test_published_config_with_class_defaults():
    """The largest model, of whose config we keep what the class does not know."""
    config = GptOssConfig.from_hf(
        {
            "model_type": "gpt_oss",
            "vocab_size": 201_088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "eos_token_id": 200_002,
            "quantization_config": {"quant_method": "mxfp4"},
        }
    )
    layers = config.layers()
    assert [spec.local is None for spec in layers] == [False, True] * 18
    assert layers[0].local.size == 128
    assert (config.num_experts, config.experts_per_token) == (128, 4)
    assert (config.rope.scaling, config.rope.factor) == ("yarn", 32)
    assert (config.rope.original_length, config.rope.truncate) == (4096, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "'mixtral'"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"num_experts_per_tok": 5}, "at most 4"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"sliding_window": None}, "sliding_window"),
        ({"swiglu_limit": 0}, "swiglu_limit"),
        ({"head_dim": 15}, "even"),
        ({"num_key_value_heads": 3}, "divisor"),
    ],
    ids=json.dumps,
)
def test_unsupported_settings(changes, message):
    with pytest.raises(CheckpointError, match=message):
        from_hf(**changes)
