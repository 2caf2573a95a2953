"""Specs of the published DeepSeek-V4 models: schedule, layout, bytes, replay."""

import dataclasses

import numpy as np
import pytest

import hybridcache_jax as hc
from hybridcache_jax.configs.deepseek_v4 import CSA, HCA, WINDOW, DeepseekV4Config
from hybridcache_jax.layers import TopK
from hybridcache_jax.replay import replay_start

MIB = 2**20
COMMON = {
    "model_type": "deepseek_v4",
    "compress_rope_theta": 160000,
    "head_dim": 512,
    "hidden_act": "silu",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "num_hash_layers": 3,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "sliding_window": 128,
    "vocab_size": 129280,
}
# One ratio per layer, the last one for the draft layer.
FLASH = {
    **COMMON,
    "compress_ratios": [0, 0, *(4, 128) * 20, 4, 0],
    "hidden_size": 4096,
    "index_topk": 512,
    "num_attention_heads": 64,
    "num_hidden_layers": 43,
    "o_groups": 8,
    "q_lora_rank": 1024,
}
PRO = {
    **COMMON,
    "compress_ratios": [128, 128, *(4, 128) * 29, 4, 0],
    "hidden_size": 7168,
    "index_topk": 1024,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "o_groups": 16,
    "q_lora_rank": 1536,
}
MODELS = {"flash": FLASH, "pro": PRO}


def config_of(model):
    return DeepseekV4Config.from_hf(MODELS[model])


def spec_of(model, cache_format):
    return hc.CacheSpec.from_layers(config_of(model).layers(cache_format))


@pytest.mark.parametrize(
    ("model", "counts"), [("flash", (2, 21, 20)), ("pro", (0, 30, 31))]
)
def test_the_schedule_is_the_released_one(model, counts):
    kinds = config_of(model).layer_types
    assert tuple(kinds.count(kind) for kind in (WINDOW, CSA, HCA)) == counts
    assert kinds[:4] == ((WINDOW if counts[0] else HCA,) * 2 + (CSA, HCA))
    assert kinds[-1] == CSA


@pytest.mark.parametrize(
    ("model", "cache_format", "expected"),
    [
        ("flash", "fp8_fp4", 3_514.25),
        ("flash", "fp8", 3_850.25),
        ("flash", "bfloat16", 6_880),
        ("pro", "fp8_fp4", 5_031.4375),
        ("pro", "fp8", 5_511.4375),
        ("pro", "bfloat16", 9_848),
    ],
)
def test_bytes_of_a_token(model, cache_format, expected):
    assert spec_of(model, cache_format).bytes_per_token() == expected


@pytest.mark.parametrize(
    ("model", "cache_format", "gib"),
    [
        ("flash", "fp8_fp4", 3.43),
        ("flash", "fp8", 3.76),
        ("flash", "bfloat16", 6.72),
        ("pro", "fp8_fp4", 4.91),
        ("pro", "fp8", 5.38),
        ("pro", "bfloat16", 9.62),
    ],
)
def test_a_million_tokens_take_the_published_gib(model, cache_format, gib):
    found = spec_of(model, cache_format).bytes_per_token() * 2**20 / 2**30
    assert found == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize("cache_format", ["fp8_fp4", "fp8", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "windows", "tails"),
    # MiB of 128 window rows per layer in 8 bits, and of 8 and 128 raw float32 rows.
    [("flash", 3.06, 11.64), ("pro", 4.35, 17.84)],
)
def test_fixed_bytes_are_windows_and_tails(model, windows, tails, cache_format):
    found = spec_of(model, cache_format)
    by_form = {
        form: sum(
            len(pool.layers) * pool.entry.nbytes * rows(pool)
            for pool in found.pools
            if pool.form == form
        )
        for form in (hc.Form.SWA_WINDOW, hc.Form.UNCOMPRESSED_TAIL)
    }
    if cache_format == "bfloat16":
        windows *= 1024 / 584
    assert by_form[hc.Form.SWA_WINDOW] / MIB == pytest.approx(windows, rel=2e-3)
    assert by_form[hc.Form.UNCOMPRESSED_TAIL] / MIB == pytest.approx(tails, abs=5e-3)
    assert found.fixed_bytes() == sum(by_form.values())


def rows(pool):
    """Rows in use at once: the window, or the blocks that an entry pools."""
    geometry = pool.geometry
    return geometry.local.size if geometry.local else geometry.ratio + geometry.halo


@pytest.mark.parametrize(("model", "extent"), [("flash", 5461), ("pro", 7747)])
def test_replay_extent_at_an_aligned_point(model, extent):
    found = spec_of(model, "fp8_fp4")
    points = np.array([128 * 100, 128 * 8000], np.int32)
    assert (points - replay_start(found, points)).tolist() == [extent, extent]


def test_every_resume_point_is_a_multiple_of_the_larger_ratio():
    assert spec_of("flash", "fp8_fp4").grid == 128


def planes(entry):
    return [(p.name, p.dim, p.dtype, p.run) for p in entry.planes]


def test_the_quantised_entries_have_the_published_layout():
    window, csa, hca = (config_of("flash").layers("fp8_fp4")[i] for i in (0, 2, 3))
    entry = window.local.entry
    assert entry.nbytes == 584
    assert planes(entry) == [
        ("k", 448, "float8_e4m3fn", 64),
        ("k_scale", 8, "float8_e8m0fnu", 0),
        ("k_rope", 64, "bfloat16", 0),
    ]
    # Keys and values are the same 512 elements.
    assert sum(plane.width for plane in entry.key_planes) == 512
    assert entry.value_planes == entry.key_planes
    assert {layer.global_.entry for layer in (csa, hca)} == {entry}
    assert csa.index.entry.nbytes == 68
    assert planes(csa.index.entry) == [
        ("k", 128, "float4_e2m1fn", 32),
        ("k_scale", 4, "float8_e8m0fnu", 0),
    ]
    key = config_of("flash").layers("fp8")[2].index.entry
    assert key.nbytes == 132
    assert planes(key) == [
        ("k", 128, "float8_e4m3fn", 128),
        ("k_scale", 1, "float32", 0),
    ]


@pytest.mark.parametrize("cache_format", ["fp8_fp4", "bfloat16"])
def test_compressed_layers_pool_float32_rows_without_position_bias(cache_format):
    csa, hca = config_of("flash").layers(cache_format)[2:4]
    found = [
        (part.ratio, part.overlap, planes(part.raw))
        for part in (csa.global_, csa.index, hca.global_)
    ]
    assert found == [
        (ratio, overlap, [(name, dim, "float32", 0) for name in ("value", "gate")])
        for ratio, overlap, dim in ((4, 1, 1024), (4, 1, 256), (128, 0, 512))
    ]
    for part in (csa.global_, csa.index, hca.global_):
        assert part.raw.convention == "gate without position bias"
    assert csa.select == TopK(512, unit=4)
    assert hca.select is None
    assert hca.index is None


def test_the_layer_kinds_are_three_groups_with_a_pool_per_form():
    found = spec_of("flash", "fp8_fp4")
    assert [len(group.layers) for group in found.groups] == [2, 21, 20]
    assert [
        [found.pools[number].form for number in group.pools] for group in found.groups
    ] == [
        [hc.Form.SWA_WINDOW],
        [
            hc.Form.SWA_WINDOW,
            hc.Form.COMPRESSED_KV,
            hc.Form.UNCOMPRESSED_TAIL,
            hc.Form.INDEXER_STATE,
            hc.Form.UNCOMPRESSED_TAIL,
        ],
        [hc.Form.SWA_WINDOW, hc.Form.COMPRESSED_KV, hc.Form.UNCOMPRESSED_TAIL],
    ]


@pytest.mark.parametrize("cache_format", ["fp8", "fp8_fp4"])
@pytest.mark.parametrize(("head_dim", "index_dim"), [(16, 16), (136, 40), (264, 64)])
def test_scales_fit_dimensions_that_are_no_multiple_of_a_run(
    cache_format, head_dim, index_dim
):
    config = dataclasses.replace(
        config_of("flash"),
        head_dim=head_dim,
        rope_head_dim=8,
        index_head_dim=index_dim,
    )
    layer = config.layers(cache_format)[2]
    for entry, dim in (
        (layer.global_.entry, head_dim - 8),
        (layer.index.entry, index_dim),
    ):
        plane = entry["k"]
        assert plane.dim == dim
        assert dim % plane.run == 0
        assert entry["k_scale"].dim >= dim // plane.run


def test_an_unknown_cache_format_is_refused():
    with pytest.raises(ValueError, match=r"Unknown cache format 'fp7'.*fp8_fp4"):
        config_of("flash").layers("fp7")
