"""The TPU kernels that rank the history and read what was selected, interpreted.

The twins are NumPy: a sort of all units at once, and the float64 softmax of
``twin.py``.  Pools hold NaN wherever nothing is read, beside selected entries too.
"""

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twin
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mosaic_tpu import LAYOUTS, SCALE, Drawn, cases, slow_but
from test_selected_reads import ROWS as HISTORIES
from test_selected_reads import (
    WIDTH,
    Choice,
    best_units,
    histories,
    integers,
    paged,
    seen_by,
)

from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.planes import storage_dtype, to_storage
from hybridcache_jax.testing.audit import places_in_lanes
from pallas_kernels.indexed_decode import mosaic_tpu as indexed
from pallas_kernels.indexer_scores import mosaic_tpu as indexer
from pallas_kernels.lanes import Lanes
from pallas_kernels.merge import merge
from pallas_kernels.mosaic_tpu import turns
from pallas_kernels.mosaic_tpu.schedule import held, lying
from pallas_kernels.mosaic_tpu.sizes import BlockSizes
from pallas_kernels.mosaic_tpu.strips import distinct
from pallas_kernels.source import Source

# Blocks of two strips of 8 entries; entries selected.
SIZE, COLUMNS, COUNT = 16, 3, 6
HEADS, DIM = 6, 16

SCALED = Entry((Plane("k", 1, DIM, "int8", scale="s", run=DIM), Plane("s", 1, 1)))
# Name: entry, and how units are ranked.
RANKED = {
    "float32 in groups": (
        Entry((Plane("k", 1, DIM),)),
        Choice(k=5, key_tokens=2, unit=4, groups=2, columns=5, tile=8),
    ),
    "bfloat16": (
        Entry((Plane("k", 1, DIM, "bfloat16"),)),
        Choice(k=4, columns=5, size=8, local_units=1),
    ),
    "scaled": (SCALED, Choice(k=4, groups=3, columns=5, size=8)),
}


@functools.partial(jax.jit, static_argnames=("layout", "groups", "interpret"))
def read_selected(
    query, memory, table, positions, since, end, selected, *, layout, groups, interpret
):
    entry, per_entry, _, _, soft_cap = LAYOUTS[layout]
    # Shares that do not divide the queries, and a call for each of them.
    with mock.patch.object(indexed, "_TOGETHER", 3), mock.patch.object(turns, "IDS", 1):
        part = indexed.selected_attention(
            query,
            Source(memory, 1, twin.Pool(entry, SIZE, per_entry)),
            table,
            selected,
            positions=positions,
            since=since,
            end=end,
            scale=SCALE,
            soft_cap=soft_cap,
            sizes=BlockSizes(2, 8),
            interpret=interpret,
        )
    return merge([part]), part


@pytest.mark.parametrize("groups", slow_but({1}, [1, 0]))
@pytest.mark.parametrize("layout", slow_but({"grouped"}, LAYOUTS))
@settings(max_examples=12)
@given(case=cases(), absent=st.sampled_from([0.1, 0.9]))
def test_selected_entries(layout, groups, case, absent):
    check_selected(layout, groups, case, absent)


def check_selected(layout, groups, case, absent, interpret: Any = True):
    drawn = Drawn(case, layout, COLUMNS, size=SIZE)
    random = np.random.default_rng(case["seed"])
    rows, width, heads = drawn.query.shape[:3]
    groups, count = groups or heads, drawn.keys.shape[1]
    shape = (rows, width, groups)
    selected = random.permuted(np.tile(np.arange(count + 2), (*shape, 1)), axis=-1)
    selected = selected[..., :COUNT]
    selected = np.where(random.random(selected.shape) < absent, -1, selected)
    seen = twin.visible(drawn.pool, count, drawn.positions, drawn.since, drawn.end)
    seen = (seen & ~drawn.lost[:, None])[:, :, None] & (
        selected[..., None] == np.arange(count)
    ).any(axis=3)
    poison(drawn, ~seen.any(axis=(1, 2)))
    got, part = read_selected(
        *drawn.arguments(),
        jnp.asarray(selected),
        layout=layout,
        groups=groups,
        interpret=interpret,
    )
    want = np.concatenate(
        [
            twin.attention(
                drawn.query[:, :, head : head + 1],
                drawn.keys[:, :, head : head + 1],
                drawn.values[:, :, head : head + 1],
                seen[:, :, head if groups > 1 else 0],
                SCALE,
                drawn.soft_cap,
            )
            for head in range(heads)
        ],
        axis=2,
    )
    dtypes = {plane.dtype for plane in drawn.pool.entry.key_planes}
    near = 1e-2 if "bfloat16" in dtypes else 1e-5
    np.testing.assert_allclose(got, want, atol=near * max(1, abs(want).max()))
    nothing = np.broadcast_to(~seen.any(axis=3)[..., None], (*part.m.shape[:3], 1))
    nothing = np.broadcast_to(nothing, part.m.shape)
    assert np.isneginf(np.asarray(part.m)[nothing]).all()
    assert (np.asarray(part.l)[nothing] == 0).all()


def poison(drawn, dead):
    """NaN where no query reads; ``dead`` is ``[B, N]``."""
    size = drawn.pool.block_entries
    for plane in drawn.pool.entry.planes:
        array = np.array(drawn.planes[plane.name])
        flat = array.reshape(*array.shape[:2], -1)
        flat = flat.view(storage_dtype(plane.dtype, "cpu"))
        places = places_in_lanes(drawn.pool, plane)
        for row, number in zip(*np.nonzero(dead & ~drawn.lost), strict=True):
            block = flat[1, drawn.table[row, number // size]].view("uint8")
            block = block.reshape(-1, flat.dtype.itemsize)
            block[places[number % size]] = 0xFF
        drawn.planes[plane.name] = jnp.asarray(array)


@functools.partial(jax.jit, static_argnames=("name", "interpret"))
def ranked(query, weights, memory, table, positions, since, end, name, interpret):
    entry, choice = RANKED[name]
    tokens = choice.key_tokens
    return indexer.top_units(
        query,
        weights,
        Source(memory, 1, twin.Pool(entry, tokens * choice.size, tokens)),
        table,
        scale=0.25,
        groups=choice.groups,
        k=choice.k,
        unit=choice.unit,
        local_units=choice.local_units,
        skip_open=choice.skip_open,
        positions=positions,
        since=since,
        end=end,
        tile_keys=choice.tile,
        interpret=interpret,
    )


@pytest.mark.parametrize("name", slow_but({"float32 in groups"}, RANKED))
@settings(max_examples=12)
@given(data=st.data())
def test_the_best_units(name, data):
    choice = RANKED[name][1]
    check_ranked(
        name,
        data.draw(
            histories(choice.key_tokens, choice.size, choice.columns, choice.unit)
        ),
    )


def check_ranked(name, history, interpret: Any = True):
    entry, choice = RANKED[name]
    layout = choice.key_tokens, choice.size
    random, length = history["random"], choice.columns * choice.size
    query = random.integers(-2, 3, (HISTORIES, WIDTH, HEADS, DIM))
    weights = random.integers(-1, 4, (HISTORIES, WIDTH, HEADS))
    keys = random.integers(-1, 2, (HISTORIES, length, DIM))
    scales = 2.0 ** random.integers(-1, 2, (HISTORIES, length, 1))
    memory, pool = {}, twin.Pool(entry, layout[0] * choice.size, layout[0])
    for plane in entry.planes:
        logical = scales if plane.name == "s" else keys
        array = paged(history, logical, *layout)
        if plane.dtype == "int8":
            array = jnp.where(jnp.isnan(array), 100, array)
        array = array.astype(plane.dtype)[..., None, :]
        stored = Lanes.of(pool, plane).block(to_storage(plane, array, "cpu"))
        memory[plane.name] = jnp.stack([jnp.zeros_like(stored), stored])
    if "s" in memory:
        keys = keys * scales
    got = ranked(
        jnp.asarray(query, jnp.float32),
        jnp.asarray(weights, jnp.float32),
        memory,
        *integers(history, "table", "positions", "since", "end"),
        name=name,
        interpret=interpret,
    )
    got = np.array(got)
    heads = np.arange(HEADS).reshape(choice.groups, -1)
    for row, column, group in np.ndindex(HISTORIES, history["upto"] + 1, choice.groups):
        position = history["positions"][row, column]
        if position >= history["end"][row]:
            continue
        seen = seen_by(history, row, column, *layout)
        dots = 0.25 * query[row, column, heads[group]] @ keys[row].T
        scores = weights[row, column, heads[group]] @ np.maximum(dots, 0)
        want = best_units(scores, seen, position, choice)
        assert got[row, column, group].tolist() == want


@functools.partial(jax.jit, static_argnames=("most", "count"))
def scheduled(entry, most, count):
    number, words = distinct(entry, size=4, most=most)
    # No two rows read the same block.
    apart = number + 100 * jnp.arange(len(number))[:, None]
    return number, words, held(jnp.where(number >= 0, apart, -1), count)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16), count=st.sampled_from([1, 3]), few=st.booleans())
def test_each_strip_that_is_read_is_fetched_once(seed, count, few):
    random = np.random.default_rng(seed)
    rows, queries, most = 4, 2, 12
    entry = random.integers(0, 40, (rows, queries, 5))
    entry = np.where(random.random(entry.shape) < (0.8 if few else 0.1), -1, entry)
    number, words, places = map(
        np.asarray, scheduled(jnp.asarray(entry, jnp.int32), most, count)
    )
    needed = [sorted({e // 4 for e in row.ravel().tolist() if e >= 0}) for row in entry]
    for row in range(rows):
        found = number[row, : len(needed[row])]
        assert found.tolist() == needed[row]
        assert (number[row, len(needed[row]) :] == -1).all()
        for query in range(queries):
            read = {
                4 * strip + bit
                for strip, word in zip(found, words[row, query], strict=False)
                for bit in range(4)
                if word >> bit & 1
            }
            assert read == {e for e in entry[row, query].tolist() if e >= 0}
    apart = number + 100 * np.arange(rows)[:, None]
    assert np.where(number >= 0, places == apart, places < 0).all()
    steps = np.asarray(lying(places)).reshape(-1, count)
    fetches = count + (steps[1:] != steps[:-1]).sum()
    # Something lies in every place, also in one that no row reads.
    idle = (places.reshape(-1, count) < 0).all(axis=0).sum()
    assert fetches == sum(map(len, needed)) + idle
