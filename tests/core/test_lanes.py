"""Where entries lie in rows of 128 lanes, and that nothing but they is read."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridcache_jax.append import write
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.planes import (
    block_in_memory,
    blocks_inside,
    blocks_outside,
    storage_dtype,
)
from hybridcache_jax.testing.audit import places_in_lanes
from pallas_kernels.gather import at_positions, whole_blocks
from pallas_kernels.lanes import Lanes
from pallas_kernels.values import dequantise

BLOCKS, LAYERS = 5, 2
ENTRY = Entry(
    (
        Plane("k", 1, 320, "float8_e4m3fn", scale="s", run=64),
        Plane("s", 1, 6, "float8_e8m0fnu"),
        Plane("r", 1, 40, "bfloat16"),
        Plane("v", 2, 96, "float4_e2m1fn", scale="t", run=96),
        Plane("t", 2, 1),
    ),
    key=("k", "r"),
)


def pool_of(entries) -> Any:
    return types.SimpleNamespace(
        name="pool",
        entry=ENTRY,
        block_tokens=entries,
        entry_tokens=1,
        block_entries=entries,
    )


@pytest.mark.parametrize(
    "entries",
    [24, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 64))],
)
def test_entries_lie_where_they_should(entries):
    """Written one by one into memory full of NaN, with each block's last slot dead."""
    pool, random = pool_of(entries), np.random.default_rng(entries)
    memory, dead = {}, {}
    for plane in ENTRY.planes:
        block = block_in_memory(pool, plane, "cpu", lanes=True)
        full = np.full((LAYERS, BLOCKS, *block.shape), 0xFF, np.uint8)
        full = np.repeat(full, block.dtype.itemsize, axis=-1).view(block.dtype)
        memory[plane.name], dead[plane.name] = jnp.asarray(full), full
    table = jnp.asarray([[3, 1], [0, BLOCKS]], jnp.int32)
    position = np.arange(2 * entries)
    alive = position % entries < entries - 1
    ids: Any = np.where(alive, np.repeat(table, entries, axis=1), -7).astype(np.int32)
    positions = jnp.asarray(np.tile(position, (2, 1)), jnp.int32)
    values = {
        name: jnp.asarray(
            random.normal(size=(*ids.shape, ENTRY[name].heads, ENTRY[name].dim)),
            jnp.float32,
        )
        for name in "krv"
    }
    rows = {
        plane.name: jnp.zeros((LAYERS, BLOCKS, entries, *_row(pool, plane).shape[1:]))
        .astype(jnp.uint8)
        .astype(_row(pool, plane).dtype)
        for plane in ENTRY.planes
    }
    run = jax.jit(lambda memory: write(pool, memory, 1, ids, positions, values, "cpu"))
    padded, plain = run(memory), run(rows)
    there = ids[(ids >= 0) & (ids < BLOCKS)].size
    for plane in ENTRY.planes:
        dtype = storage_dtype(plane.dtype, "cpu")
        got, want = np.array(padded[plane.name]), np.array(plain[plane.name])
        flat = got.view(dtype).reshape(LAYERS, BLOCKS, -1)
        places = places_in_lanes(pool, plane)
        live = np.zeros((BLOCKS, entries), bool)
        live[[3, 1, 0], :-1] = True
        assert live.sum() == there
        assert np.array_equal(flat[1][:, places][live], want[1][live])
        # Nothing else was written but zeros beside it.
        changed = (got != dead[plane.name]).reshape(LAYERS, -1)
        assert not changed[0].any()
        outside = blocks_outside(pool, plane, padded[plane.name], "cpu")
        assert outside.dtype == dtype
        assert np.array_equal(np.asarray(outside)[1][live], want[1][live])
        inside = blocks_inside(pool, plane, outside, padded[plane.name])
        again = blocks_outside(pool, plane, inside, "cpu")
        assert np.asarray(again).tobytes() == np.asarray(outside).tobytes()
    ways = [
        (at_positions(pool, held, 1, table, positions, BLOCKS)[0], whole(pool, held))
        for held in (padded, plain)
    ]
    for name in "krv":
        (one, by_block), (other, others_block) = (
            [np.asarray(dequantise(ENTRY, loaded, name)) for loaded in way]
            for way in ways
        )
        live = (ids >= 0) & (ids < BLOCKS)
        assert np.array_equal(one[live], other[live])
        assert np.array_equal(by_block[live], others_block[live])
        assert np.isfinite(one[live]).all()


def whole(pool, memory):
    table = jnp.asarray([[3, 1], [0, BLOCKS]], jnp.int32)
    return whole_blocks(pool, memory, 1, table)


def _row(pool, plane):
    return block_in_memory(pool, plane, "cpu", lanes=False)


def test_scales_take_what_they_need():
    """An index key of 128 bytes and one scale: 132, not 640."""
    entry = Entry(
        (
            Plane("k", 1, 128, "float8_e4m3fn", scale="s", run=128),
            Plane("s", 1, 1),
        )
    )
    pool: Any = types.SimpleNamespace(entry=entry, block_entries=128)
    each = [Lanes.of(pool, plane).nbytes for plane in entry.planes]
    assert [size / 128 for size in each] == [128, 4]
