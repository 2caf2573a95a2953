"""The TPU kernels, interpreted, against the float64 twin; and which blocks they fetch.

Pools are full of NaN and infinity wherever nothing counts: in slots that were never
written, in blocks of other rows, before a row's first position.
"""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twin
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import Chunk, Window
from hybridcache_jax.planes import block_in_memory, quantise, to_storage
from hybridcache_jax.testing.audit import places_in_lanes
from pallas_kernels.merge import merge
from pallas_kernels.mosaic_tpu import turns
from pallas_kernels.mosaic_tpu.schedule import fetches, row_range
from pallas_kernels.mosaic_tpu.sizes import BlockSizes
from pallas_kernels.paged_decode import mosaic_tpu as paged
from pallas_kernels.reach import Reach
from pallas_kernels.source import Source
from pallas_kernels.values import keys_and_values
from pallas_kernels.window_decode import mosaic_tpu as windowed

SIZE, ROWS, COLUMNS, BLOCKS, LAYERS = 8, 3, 6, 23, 2
SCALE = 0.3


def planes(*shapes, dtype="float32"):
    return tuple(Plane(name, 1, dim, dtype) for name, dim in shapes)


def scaled(dtype):
    """Keys and values of two heads of 16 in runs of 8."""
    return Entry(
        (
            Plane("k", 2, 16, dtype, scale="ks", run=8),
            Plane("v", 2, 16, dtype, scale="vs", run=8),
            Plane("ks", 2, 2),
            Plane("vs", 2, 2, "bfloat16"),
        )
    )


def powers(run):
    """A shared row of two planes, one of them with two powers of two; six to spare."""
    return Entry(
        (
            Plane("k", 1, 2 * run, "float8_e4m3fn", scale="s", run=run),
            Plane("s", 1, 8, "float8_e8m0fnu"),
            Plane("r", 1, 16, "bfloat16"),
        ),
        key=("k", "r"),
    )


# Name: entry, tokens per entry, query heads per KV head, queries per row, soft cap.
LAYOUTS = {
    "grouped": (Entry.kv(2, 16), 1, 3, 4, None),
    "grouped bf16": (Entry.kv(2, 16, "bfloat16"), 1, 3, 4, None),
    "shared row of two planes": (
        Entry(planes(("k", 24), ("r", 8)), key=("k", "r")),
        4,
        5,
        3,
        None,
    ),
    "latent": (
        Entry(planes(("c", 32), ("r", 8)), key=("c", "r"), value=("c",)),
        1,
        4,
        1,
        2.0,
    ),
    "three pieces": (Entry.kv(5, 64), 1, 1, 2, None),
    "powers of two": (powers(96), 1, 3, 2, None),
    "few entries": (powers(8), 2, 3, 1, None),
    "int8": (scaled("int8"), 1, 2, 2, None),
    "fp8": (scaled("float8_e4m3fn"), 1, 2, 2, None),
}
LOCALS = {
    "itself": Window(1, Entry.kv(1, 1)),
    "block": Window(SIZE, Entry.kv(1, 1)),
    "more than a block": Window(SIZE + 3, Entry.kv(1, 1)),
    "chunk": Chunk(12, Entry.kv(1, 1)),
}
SOME = {"grouped", "powers of two"}


def slow_but(some, names):
    """Every name; those outside of ``some`` in the slow suite."""
    marks = {False: [pytest.mark.slow], True: []}
    return [pytest.param(name, marks=marks[name in some]) for name in names]


def edges(*more):
    return st.sampled_from([0, 1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 40, *more])


@st.composite
def cases(draw, reach=0):
    starts = draw(st.lists(edges(reach, reach + 1), min_size=ROWS, max_size=ROWS))
    start = np.minimum(np.array(starts), COLUMNS * SIZE - 4)
    return {
        "seed": draw(st.integers(0, 2**16)),
        "start": start,
        "since": np.array([draw(st.integers(0, int(s))) for s in start])
        * draw(st.booleans()),
        "runs": np.array(draw(st.lists(st.booleans(), min_size=3, max_size=3))),
        "lost": draw(st.booleans()),
    }


class Drawn:
    """Arrays of a case: what a read gets, and what it must give."""

    def __init__(self, case, layout, columns=COLUMNS, ring=False, size=SIZE):
        entry, per_entry, group, width, self.soft_cap = LAYOUTS[layout]
        random = np.random.default_rng(case["seed"])
        self.pool = twin.Pool(entry, size, per_entry)
        heads = entry.key_planes[0].heads
        key = sum(plane.dim for plane in entry.key_planes)
        shape = (ROWS, width, heads, group, key)
        self.query = random.normal(0, 2, shape).astype(np.float32)
        self.positions = case["start"][:, None] + np.arange(width)
        self.since = case["since"]
        self.end = np.where(case["runs"], case["start"] + width, 0)
        count = COLUMNS * SIZE // per_entry
        written = {
            plane.name: random.normal(0, 1, (ROWS, count, plane.heads, plane.dim))
            for plane in entry.planes
            if plane.name not in entry.scale_planes
        }
        made = quantise(
            entry, {n: jnp.asarray(x, jnp.float32) for n, x in written.items()}
        )
        read = keys_and_values(entry, made)
        self.keys, self.values = (np.asarray(x, np.float64) for x in read)
        ids = random.permutation(BLOCKS)[: ROWS * columns].reshape(ROWS, columns)
        self.table = ids.astype(np.int32)
        self.planes = {
            plane.name: self._scatter(plane, made[plane.name], ring)
            for plane in entry.planes
        }
        self.lost = np.zeros((ROWS, count), bool)
        if case["lost"] and not ring:
            # Ids that refer to nothing: what they would hold is not read.
            column = int(random.integers(0, columns))
            self.table[:, column] = [BLOCKS, -1, np.iinfo(np.int32).max]
            per_block = self.pool.block_entries
            self.lost[:, column * per_block : (column + 1) * per_block] = True

    def _scatter(self, plane, values, ring):
        stored = np.asarray(to_storage(plane, values, "cpu"))
        size, columns = self.pool.block_entries, self.table.shape[1]
        tokens = self.pool.block_tokens
        rows = block_in_memory(self.pool, plane, "cpu", lanes=True)
        # All bits set: NaN in every float dtype, also where it is held as an integer.
        memory = np.full((LAYERS, BLOCKS, rows.size * rows.dtype.itemsize), 0xFF, "u1")
        memory, places = memory.view(stored.dtype), places_in_lanes(self.pool, plane)
        for row, entry in np.ndindex(*stored.shape[:2]):
            token = entry * self.pool.entry_tokens
            alive = self.since[row] <= token < self.end[row]
            # In a ring a later block takes the column of an earlier one.
            newest = max(int(self.end[row]) - 1, 0) // tokens
            if ring and token // tokens <= newest - columns:
                continue
            if alive:
                block = self.table[row, token // tokens % columns]
                memory[1, block, places[entry % size]] = stored[row, entry]
        memory = memory.view(rows.dtype)
        return jnp.asarray(memory.reshape(LAYERS, BLOCKS, *rows.shape))

    def arguments(self):
        rows = (self.table, self.positions, self.since, self.end)
        return (self.query, self.planes, *(jnp.asarray(x, jnp.int32) for x in rows))

    def check(self, got, first_visible=None):
        count = self.keys.shape[1]
        seen = twin.visible(
            self.pool, count, self.positions, self.since, self.end, first_visible
        )
        seen &= ~self.lost[:, None]
        want = twin.attention(
            self.query, self.keys, self.values, seen, SCALE, self.soft_cap
        )
        got = np.asarray(got, np.float64)
        dtypes = {plane.dtype for plane in self.pool.entry.key_planes}
        near = 1e-2 if "bfloat16" in dtypes else 1e-5
        np.testing.assert_allclose(got, want, atol=near * max(1, abs(want).max()))


@functools.partial(jax.jit, static_argnames=("layout", "sizes", "interpret"))
def read_paged(
    query, memory, table, positions, since, end, *, layout, sizes, interpret=True
):
    entry, per_entry, _, _, soft_cap = LAYOUTS[layout]
    # Two calls of the kernel, of two rows each: there are three.
    with mock.patch.object(turns, "IDS", 2 * COLUMNS):
        part = paged.paged_attention(
            query,
            Source(memory, 1, twin.Pool(entry, SIZE, per_entry)),
            table,
            positions=positions,
            since=since,
            end=end,
            scale=SCALE,
            soft_cap=soft_cap,
            sizes=sizes,
            interpret=interpret,
        )
    return merge([part])


@functools.partial(jax.jit, static_argnames=("layout", "local", "interpret"))
def read_window(
    query, memory, table, positions, since, end, *, layout, local, interpret=True
):
    entry, per_entry, _, _, soft_cap = LAYOUTS[layout]
    part = windowed.window_attention(
        query,
        Source(memory, 1, twin.Pool(entry, SIZE, per_entry)),
        table,
        positions=positions,
        first_visible=LOCALS[local].first_visible,
        reach=LOCALS[local].reach,
        since=since,
        end=end,
        scale=SCALE,
        soft_cap=soft_cap,
        sizes=BlockSizes(2, 16),
        interpret=interpret,
    )
    return merge([part])


@pytest.mark.parametrize("layout", slow_but(SOME, LAYOUTS))
@settings(max_examples=12)
@given(case=cases())
def test_whole_histories(layout, case):
    drawn = Drawn(case, layout)
    got = read_paged(*drawn.arguments(), layout=layout, sizes=BlockSizes(2, 8))
    drawn.check(got)


@pytest.mark.parametrize("local", slow_but({"more than a block"}, LOCALS))
@settings(max_examples=12)
@given(case=cases(reach=SIZE + 3))
def test_windows(local, case):
    columns = 5
    drawn = Drawn(case, "grouped", columns, ring=True)
    got = read_window(*drawn.arguments(), layout="grouped", local=local)
    drawn.check(got, LOCALS[local].first_visible)


@settings(max_examples=60)
@given(
    case=cases(reach=SIZE + 3),
    count=st.integers(1, 4),
    local=st.sampled_from([*LOCALS, None]),
)
def test_only_blocks_that_a_query_reaches_are_fetched(case, count, local):
    width, window = 4, None if local is None else LOCALS[local]
    reach, most = Reach(), COLUMNS
    if window is not None:
        most = min(-(-(window.reach + width) // SIZE) + 1, COLUMNS)
        reach = Reach(window.first_visible, most=most, ring=True)
    position, since = case["start"], case["since"]
    end = np.where(case["runs"], position + width, 0)
    pool = twin.Pool(Entry.kv(1, 1), SIZE)
    first, stop = map(np.asarray, row_range(pool, width, position, since, end, reach))
    table = np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS)
    positions = position[:, None] + np.arange(width)
    count_all = COLUMNS * SIZE
    seen = twin.visible(pool, count_all, positions, since, end, reach.first_visible)
    seen = seen.any(axis=1).reshape(ROWS, COLUMNS, SIZE).any(axis=2)
    for row, ids in enumerate(fetches(table, first, stop, count, reach)):
        needed = set(table[row, seen[row]].tolist())
        if needed:
            assert set(ids) == needed
            assert len(needed) <= most
        # The pipeline holds one block in each place, whatever the row needs.
        assert len(ids) <= max(len(needed), min(count, most))
