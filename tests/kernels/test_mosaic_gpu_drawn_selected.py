"""GPU kernels of selected entries and of index scores, interpreted, over drawn rows.

As ``test_mosaic_gpu_drawn.py``.  Index keys, queries and weights are such that scores
are exact, so that a ranking has one right answer; the twin sorts all units at once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_pools import check, interpreter, pool_of
from gpu_rows import FP8, HEADS_SCALED, SCALED, Shape, joined, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mosaic_gpu_scores import exact_pool
from test_selected_reads import Choice, best_units

from hybridcache_jax.entry import Entry, Plane
from pallas_kernels.indexed_decode.mosaic_gpu import selected_attention
from pallas_kernels.indexer_scores.mosaic_gpu import top_units
from pallas_kernels.mosaic_gpu.index_scores import score_blocks
from pallas_kernels.mosaic_gpu.sizes import BlockSizes
from pallas_kernels.source import Source

# With selections of a query and entries of each: within a tile, a tile, more.
SELECTIONS = {
    "float32": [
        (Shape(Entry.kv(2, 64), 12, tokens=4), 2, 66),
        (Shape(joined("float32", latent=True), 8, width=2, soft_cap=5.0), 1, 64),
    ],
    "bfloat16": [
        (Shape(Entry.kv(2, 128, "bfloat16"), 16, group=1, splits=2), 2, 66),
        (Shape(joined("bfloat16", latent=True), 64, group=9, stages=1), 1, 10),
    ],
    "8 bits": [
        (Shape(SCALED, 24, tokens=2, group=5, soft_cap=5.0), 1, 130),
        (Shape(HEADS_SCALED, 5, width=2, stages=1), 1, 60),
    ],
}
COLUMNS = 5
INDEX_COLUMNS = {16: 7, 32: 5, 128: 3}


def index_keys(dtype):
    plane = Plane("k", 1, 64, dtype)
    if dtype != FP8:
        return Entry((plane,))
    return Entry((Plane("k", 1, 64, FP8, scale="s", run=64), Plane("s", 1, 1)))


# ``group`` index heads in one or two selections, with the tokens of a unit.
RANKINGS = {
    "float32": [
        (Shape(index_keys("float32"), 32, tokens=4, width=2, group=6), 1, 8),
        (Shape(index_keys("float32"), 16, group=9), 1, 1),
    ],
    "bfloat16": [
        (Shape(index_keys("bfloat16"), 16, width=2, group=6), 2, 4),
        (Shape(index_keys("bfloat16"), 128, width=3, group=1), 1, 1),
    ],
    "8 bits": [(Shape(index_keys(FP8), 32, tokens=2, width=2, group=8), 1, 2)],
}


@functools.partial(jax.jit, static_argnames=("shape", "interpret"))
def read(query, planes, table, selected, positions, since, end, *, shape, interpret):
    return selected_attention(
        query,
        Source(planes, 1, shape.layout),
        table,
        selected,
        positions=positions,
        since=since,
        end=end,
        scale=shape.dim**-0.5,
        soft_cap=shape.soft_cap,
        sizes=BlockSizes(8, shape.stages, shape.splits),
        interpret=interpret,
    )


def numbers(random, shape, length, absent):
    """In any order, some twice, some beyond what is written or of no entry."""
    wide = shape[-1]
    chosen = np.arange(wide + 12) % (length + 4)
    chosen = random.permuted(np.tile(chosen, (*shape[:-1], 1)), axis=-1)[..., :wide]
    far = random.choice([-1, -1, -7, 2**30 - 1], chosen.shape)
    return np.where(random.random(chosen.shape) < absent, far, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SELECTIONS)
@settings(max_examples=6)
@given(data=st.data(), absent=st.sampled_from([0.0, 0.1, 0.9]))
def test_selected_entries(dtype, data, absent):
    interpreter()
    shape, groups, count = data.draw(st.sampled_from(SELECTIONS[dtype]))
    drawn = data.draw(rows(shape, COLUMNS))
    random, visible, layout = drawn.random, drawn.seen(shape), shape.layout
    selected = numbers(
        random,
        (*drawn.positions.shape, groups, count),
        COLUMNS * shape.block,
        absent,
    )

    def sees(row, at, head):
        wanted = selected[row, at, head % groups]
        inside = wanted[(wanted >= 0) & (wanted < visible.shape[2])]
        return inside[visible[row, at, inside]].tolist()

    size = (*drawn.positions.shape, shape.heads)
    live = {(where[0], n) for where in np.ndindex(size) for n in sees(*where)}
    pool = pool_of(random, layout, drawn.table, live)
    query = random.normal(size=(*size, shape.group, shape.dim)).astype(np.float32)
    rest = (selected, drawn.positions, drawn.since, drawn.end)
    part = read(
        jnp.asarray(query),
        pool.planes,
        jnp.asarray(drawn.table, jnp.int32),
        *(jnp.asarray(x, jnp.int32) for x in rest),
        shape=shape,
        interpret=interpreter(),
    )
    check(
        part,
        pool,
        query,
        sees,
        scale=shape.dim**-0.5,
        soft_cap=shape.soft_cap,
        tolerance=shape.tolerance,
    )


@functools.partial(
    jax.jit, static_argnames=("shape", "groups", "k", "unit", "interpret")
)
def ranked(query, weights, planes, table, positions, since, end, *, shape, groups, k,
           unit, interpret):  # fmt: skip
    source = Source(planes, 1, shape.layout)
    shared = {"scale": 0.25, "groups": groups, "interpret": interpret}
    units = top_units(
        query,
        weights,
        source,
        table,
        **shared,
        k=k,
        unit=unit,
        local_units=0,
        skip_open=False,
        positions=positions,
        since=since,
        end=end,
        tile_keys=64,
    )
    return score_blocks(query, weights, source, table, **shared), units


@pytest.mark.slow
@pytest.mark.parametrize("dtype", RANKINGS)
@settings(max_examples=14)
@given(data=st.data())
def test_scores_and_the_best_units(dtype, data):
    interpreter()
    shape, groups, unit = data.draw(st.sampled_from(RANKINGS[dtype]))
    columns, heads = INDEX_COLUMNS[shape.block], shape.group
    drawn = data.draw(rows(shape, columns))
    random, layout, visible = drawn.random, shape.layout, drawn.seen(shape)
    choice = Choice(
        k=9, key_tokens=shape.tokens, unit=unit, groups=groups, size=shape.block,
        columns=columns,
    )  # fmt: skip
    live = {(row, n) for row, _, n in np.argwhere(visible).tolist()}
    pool = exact_pool(random, layout, drawn.table, live)
    where = (*drawn.positions.shape, heads)
    query = random.integers(-2, 3, (*where, shape.dim)).astype(np.float32)
    weights = random.integers(-1, 4, where) / 2
    rest = (drawn.table, drawn.positions, drawn.since, drawn.end)
    scores, units = ranked(
        jnp.asarray(query),
        jnp.asarray(weights, jnp.float32),
        pool.planes,
        *(jnp.asarray(x, jnp.int32) for x in rest),
        shape=shape,
        groups=groups,
        k=choice.k,
        unit=unit,
        interpret=interpreter(),
    )
    scores, units = np.asarray(scores), np.asarray(units)
    for row, at, group in np.ndindex(*drawn.positions.shape, groups):
        mine = np.arange(heads).reshape(groups, -1)[group]
        seen = np.flatnonzero(visible[row, at]).tolist()
        seen = [n for n in seen if pool.place(row, n) is not None]
        want = np.full(columns * shape.block, np.nan)
        for number in seen:
            key = pool.keys[pool.place(row, number)]
            dots = np.maximum(0.25 * query[row, at, mine] @ key, 0)
            want[number] = weights[row, at, mine] @ dots
        np.testing.assert_array_equal(scores[row, at, group, seen], want[seen])
        best = best_units(want, seen, drawn.positions[row, at], choice)
        assert units[row, at, group].tolist() == best
