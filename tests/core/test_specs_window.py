"""Specs of published window, chunk and full-attention models.

From each model's published config: bytes per token, bytes that do not grow, and how
far back an exact replay starts when every window is lost.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from published_window_configs import (
    COMMAND_A,
    FULL,
    GEMMA_2_27B,
    GEMMA_3_12B,
    GEMMA_3_27B,
    GEMMA_4_31B,
    GPT_OSS_20B,
    GPT_OSS_120B,
    LLAMA_4_SCOUT,
    MIMO_V2_FLASH,
    MISTRAL_7B,
    OLMO_3_32B,
    SLIDING,
)

import hybridcache_jax as hc
from hybridcache_jax.configs.gemma2 import Gemma2Config
from hybridcache_jax.configs.llama4 import Llama4Config
from hybridcache_jax.configs.registry import load_config
from hybridcache_jax.entry import Entry
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.layers import Chunk, Entries, LayerSpec, Window
from hybridcache_jax.replay import replay_start

MIB = 2**20
FAR = 1_000_003


@dataclasses.dataclass(frozen=True)
class Case:
    config: Mapping[str, Any]
    per_token: int  # bytes, bfloat16
    fixed: float  # bytes of windows, the running token's own row included
    replay: int  # tokens run again before FAR


CASES = {
    "gpt-oss-120b": Case(GPT_OSS_120B, 36_864, 4.5 * MIB, 2_286),
    "gpt-oss-20b": Case(GPT_OSS_20B, 24_576, 3 * MIB, 1_524),
    "gemma-3-27b": Case(GEMMA_3_27B, 81_920, 416 * MIB, 53_196),
    "gemma-3-12b": Case(GEMMA_3_12B, 65_536, 320 * MIB, 40_920),
    "gemma-4-31b": Case(GEMMA_4_31B, 81_920, 800 * MIB, 51_150),
    "gemma-2-27b": Case(GEMMA_2_27B, 188_416, 736 * MIB, 94_185),
    "olmo-3-32b": Case(OLMO_3_32B, 65_536, 768 * MIB, 196_560),
    "command-a": Case(COMMAND_A, 65_536, 768 * MIB, 196_560),
    "mistral-7b-v0.1": Case(MISTRAL_7B, 0, 512 * MIB, 131_040),
    "mistral-7b-v0.3": Case(MISTRAL_7B | {"sliding_window": None}, 131_072, 0, 0),
    # The window holds 129 rows; with 128 it would be 24.375 MiB.
    "mimo-v2-flash": Case(MIMO_V2_FLASH, 23_040, 39 * 129 * 5_120, 4_992),
    "llama-4-scout": Case(LLAMA_4_SCOUT, 49_152, 1_152 * MIB, FAR % 8_192),
}


def layers_of(config, cache_format="bfloat16"):
    return load_config(config).layers(cache_format)


def spec_of(config):
    return hc.CacheSpec.from_layers(layers_of(config))


def starts(config, points):
    return replay_start(spec_of(config), np.array(points, np.int32)).tolist()


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_replay(name):
    case = CASES[name]
    spec = spec_of(case.config)
    assert spec.bytes_per_token() == case.per_token
    assert spec.fixed_bytes() == case.fixed
    assert starts(case.config, [FAR, case.replay]) == [FAR - case.replay, 0]


def test_within_its_context_olmo_3_can_only_run_from_the_start():
    assert starts(OLMO_3_32B, [65_536]) == [0]


def test_chunks_do_not_add_up_over_layers():
    """All layers share the boundary: p mod C tokens, and none at the boundary."""
    size = 8_192
    points = [0, 1, size - 1, size, size + 1, 5 * size, 5 * size + 77]
    want = [point - point % size for point in points]
    assert starts(LLAMA_4_SCOUT, points) == want


def test_a_replay_starts_no_earlier_than_the_sequence():
    assert starts(GPT_OSS_20B, [1, 100, 1_524, 1_525]) == [0, 0, 0, 1]


def test_mimo_counts_previous_tokens_and_has_two_entry_layouts():
    windows = [layer.local for layer in layers_of(MIMO_V2_FLASH) if layer.local]
    fulls = [layer.global_ for layer in layers_of(MIMO_V2_FLASH) if layer.global_]
    assert {window.size for window in windows} == {129}
    assert (len(windows), len(fulls)) == (39, 9)
    for part, heads in ((windows[0], 8), (fulls[0], 4)):
        planes = [(plane.name, plane.heads, plane.dim) for plane in part.entry.planes]
        assert planes == [("k", heads, 192), ("v", heads, 128)]
    places = [i for i, x in enumerate(layers_of(MIMO_V2_FLASH)) if x.global_]
    assert places == [0, *range(5, 48, 6)]


def test_llama_4_chunks_three_of_four_layers():
    entry = Entry.kv(8, 128, "bfloat16")
    chunk = LayerSpec(local=Chunk(8_192, entry))
    full = LayerSpec(global_=Entries(entry))
    assert layers_of(LLAMA_4_SCOUT) == (chunk, chunk, chunk, full) * 12


def test_maverick_keeps_in_the_cache_what_scout_keeps():
    """The larger Llama 4: every second layer has experts; no scaling of rope."""
    text = LLAMA_4_SCOUT["text_config"] | {
        "attn_temperature_tuning": True,
        "interleave_moe_layer_step": 2,
        "moe_layers": None,
        "no_rope_layers": [],
        "num_local_experts": 128,
        "rope_scaling": None,
        "use_qk_norm": False,
    }
    config = Llama4Config.from_hf({"model_type": "llama4", "text_config": text})
    assert config.moe_layers == tuple(range(1, 48, 2))
    assert (config.rope.scaling, config.qk_norm) == ("default", False)
    assert config.layers() == layers_of(LLAMA_4_SCOUT)


def test_schedules_of_cohere_and_gemma_2():
    entry = Entry.kv(8, 128, "bfloat16")
    window = LayerSpec(local=Window(4_096, entry))
    full = LayerSpec(global_=Entries(entry))
    assert layers_of(COMMAND_A) == (window, window, window, full) * 16
    kinds = Gemma2Config.from_hf(GEMMA_2_27B).layer_types
    assert kinds == (SLIDING, FULL) * 23


@pytest.mark.parametrize("config", [COMMAND_A, GEMMA_2_27B, MISTRAL_7B])
def test_the_newer_spelling_of_rope_is_the_same_model(config):
    old = load_config(config)
    new = {k: v for k, v in config.items() if k != "rope_theta"}
    ropes = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    other = load_config(new | {"rope_parameters": ropes})
    assert other == old
    assert other.digest == old.digest


def test_soft_caps_of_null_are_none():
    config = Gemma2Config.from_hf(GEMMA_2_27B | {"attn_logit_softcapping": None})
    assert config.attn_logit_softcapping is None
    assert config.final_logit_softcapping == 30.0


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GEMMA_2_27B, {"use_bidirectional_attention": True}, "bidirectional"),
        (GEMMA_2_27B, {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        (GEMMA_2_27B, {"sliding_window": None}, "sliding_window = None"),
        (COMMAND_A, {"use_qk_norm": True}, "use_qk_norm = True"),
        (COMMAND_A, {"attention_bias": True}, "attention_bias = True"),
        (COMMAND_A, {"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        (MISTRAL_7B, {"sliding_window": 0}, "sliding_window = 0"),
        (MISTRAL_7B, {"layer_types": [SLIDING, FULL] * 16}, "layer_types"),
        (MISTRAL_7B, {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load_config(config | changes)
