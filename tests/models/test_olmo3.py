"""OLMo 3: reference outputs over the real cache, spellings of its config."""

import numpy as np
import pytest
from windowed_golden import check_reference, read_config

from hybridcache_jax.configs.olmo3 import Olmo3Config
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models import rope
from hybridcache_jax.models.olmo3 import Olmo3

NAME = "olmo3"


def published(**changes):
    """The spelling of published checkpoints, with no trace of the new one."""
    config = read_config(NAME, "hub_config.json")
    return {k: v for k, v in config.items() if k != "rope_parameters"} | changes


def test_logits_and_cache_equal_the_reference():
    check_reference(NAME, Olmo3, Olmo3Config.from_hf(read_config(NAME)))


def test_the_config_spellings_are_one():
    config = Olmo3Config.from_hf(read_config(NAME))
    hub = Olmo3Config.from_hf(read_config(NAME, "hub_config.json"))
    assert hub == config == Olmo3Config.from_hf(published())
    assert hub.digest == config.digest
    # The schedule of the family is that of the golden.
    assert Olmo3Config.from_hf(published(layer_types=None)) == config


def test_yarn_is_on_full_layers_only():
    config = Olmo3Config.from_hf(read_config(NAME))
    plain = rope.inverse_frequencies(config.head_dim, 500_000.0)
    sliding, one = rope.frequencies(config.rope_sliding, config.head_dim)
    full, magnitude = rope.frequencies(config.rope_full, config.head_dim)
    np.testing.assert_array_equal(sliding, plain)
    assert (one, magnitude) == (1.0, 1.2079441541679836)
    assert (full <= plain).all()
    assert full[-1] == plain[-1] / np.float32(8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "olmo2"}, "model_type = 'olmo2'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"head_dim": 7}, "head_dim = 7"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type = 'dynamic'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        Olmo3Config.from_hf(published(**changes))


def test_a_window_model_without_a_window_is_refused():
    config = published() | {"sliding_window": None}
    with pytest.raises(CheckpointError, match="sliding_window = None"):
        Olmo3Config.from_hf(config)
