"""What the GPU kernels accept, and that what they take fits a thread block."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import Pool

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.contracts import MOSAIC_GPU, MOSAIC_GPU_ENTRIES
from pallas_kernels.mosaic_gpu.sizes import BlockSizes, fitting, tiles_at_once

# What a thread block may have on H200 and B200, in bytes and in words.
SHARED, REGISTERS = 227 << 10, 65536

REFUSED = {
    "head dim 96": Pool(Entry.kv(2, 96), 64),
    "dtype float16": Pool(Entry.kv(2, 64, "float16"), 64),
    "entries per block": Pool(Entry.kv(2, 64), 48),
    "shared memory": Pool(Entry.kv(1, 512), 64),
    "runs of 32": Pool(
        Entry((Plane("k", 1, 64, "int8", scale="s", run=32), Plane("s", 1, 2))), 64
    ),
    "float8_e8m0fnu": Pool(
        Entry(
            (
                Plane("k", 1, 128, "float8_e4m3fn", scale="s", run=64),
                Plane("s", 1, 8, "float8_e8m0fnu"),
            )
        ),
        64,
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_is_said(reason):
    assert reason in (MOSAIC_GPU.refusal_of(REFUSED[reason]) or "")
    with pytest.raises(ValueError, match="do not accept this pool"):
        fitting(REFUSED[reason], rows=8, groups=1, most_tiles=8)


def test_single_entries_are_whole_copies_and_their_scales_are_free():
    narrow = Pool(Entry.kv(1, 64, "int8"), 64)
    assert "128 bytes" in (MOSAIC_GPU_ENTRIES.refusal_of(narrow) or "")
    assert MOSAIC_GPU.refusal_of(narrow) is None
    assert MOSAIC_GPU_ENTRIES.refusal_of(REFUSED["float8_e8m0fnu"]) is None


@settings(max_examples=80)
@given(
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    dtype=st.sampled_from(["bfloat16", "float32", "int8"]),
    rows=st.integers(1, 300),
    groups=st.integers(1, 300),
)
def test_what_fits_fits(dims, dtype, rows, groups):
    key, value = (64 * dim for dim in dims)
    entry = Entry((Plane("k", 1, key, dtype), Plane("v", 1, value, dtype)))
    pool = Pool(entry, 64)
    nbytes = {"bfloat16": 2, "float32": 4, "int8": 1}[dtype]
    if MOSAIC_GPU.refusal_of(pool) is not None:
        assert 64 * (key + value) * nbytes + 64 * 8 * 4 > SHARED - (5 << 10)
        return
    tile = 64 * (key + value) * nbytes
    assert tiles_at_once(pool) * tile <= SHARED - (3 << 10)
    sizes = fitting(pool, rows=rows, groups=groups, most_tiles=100)
    weights = 64 * sizes.queries * 4
    assert tile * sizes.stages + weights <= SHARED - (3 << 10)
    assert value * sizes.queries <= REGISTERS // 4
    assert sizes.queries < rows + 8
    assert 1 <= sizes.splits <= 25


@pytest.mark.parametrize("wrong", [{"queries": 12}, {"stages": 0}, {"splits": 0}])
def test_sizes_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="BlockSizes needs"):
        BlockSizes(**({"queries": 8, "stages": 1, "splits": 1} | wrong))
