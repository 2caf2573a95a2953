"""MiMo-V2-Flash: reference outputs over the real cache, spellings of its config."""

import numpy as np
import pytest
from windowed_golden import check_reference, read_config, stored

from hybridcache_jax.configs.mimo_v2_flash import MimoV2FlashConfig
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.mimo_v2_flash import MimoV2Flash, published_names

NAME = "mimo_v2_flash"
SPELLINGS = (
    "layer_types",
    "mlp_layer_types",
    "rms_norm_eps",
    "rope_parameters",
    "sliding_window",
)


def published(**changes):
    """The golden's config as the publisher spells it."""
    config = read_config(NAME, "config.json")
    old = {k: v for k, v in config.items() if k not in SPELLINGS}
    new = {
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "hybrid_layer_pattern": [0, 1, 1, 1, 0],
        "layernorm_epsilon": 1e-5,
        "moe_layer_freq": [0, 1, 1, 1, 1],
        "n_shared_experts": None,
        "partial_rotary_factor": 0.334,
        "rope_theta": 5_000_000,
        "routed_scaling_factor": None,
        "scoring_func": "sigmoid",
        # Both are there in published configs and count the keys before the own one.
        "sliding_window": 8,
        "sliding_window_size": 8,
        "swa_head_dim": 24,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_rope_theta": 10_000,
        "swa_v_head_dim": 16,
        "topk_method": "noaux_tc",
    }
    return old | new | changes


def test_logits_and_cache_equal_the_reference():
    check_reference(NAME, MimoV2Flash, MimoV2FlashConfig.from_hf(read_config(NAME)))


def test_the_config_spellings_are_one():
    config = MimoV2FlashConfig.from_hf(read_config(NAME))
    hub = MimoV2FlashConfig.from_hf(published())
    assert hub == config
    assert hub.digest == config.digest
    assert {layer.local.size for layer in config.layers() if layer.local} == {9}


def test_the_weight_spellings_are_one():
    names = published_names(MimoV2FlashConfig.from_hf(read_config(NAME)))
    ours, theirs = (
        stored(NAME, "model.safetensors"),
        stored(NAME, "hub_names.safetensors"),
    )
    assert names.keys() == ours.keys()
    used = [name for recipe in names.values() for name in recipe.names]
    assert sorted(used) == sorted(theirs)
    for name, recipe in names.items():
        made = recipe.make([theirs[part] for part in recipe.names])
        np.testing.assert_array_equal(made, ours[name])


def test_a_value_scale_of_null_is_one():
    assert MimoV2FlashConfig.from_hf(published()).value_scale == 0.707
    config = MimoV2FlashConfig.from_hf(published(attention_value_scale=None))
    assert config.value_scale == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mimo"}, "model_type = 'mimo'"),
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias"),
        ({"add_swa_attention_sink_bias": False}, "add_swa_attention_sink_bias"),
        ({"swa_head_dim": 16}, "swa_head_dim = 16"),
        ({"swa_num_key_value_heads": 3}, "swa_num_key_value_heads = 3"),
        ({"hybrid_layer_pattern": [0, 1, 2, 1, 0]}, "hybrid_layer_pattern"),
        ({"moe_layer_freq": [0, 1]}, "mlp_layer_types"),
        ({"n_group": 3}, "n_group = 3"),
        ({"n_shared_experts": 1}, "n_shared_experts = 1"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        MimoV2FlashConfig.from_hf(published(**changes))
