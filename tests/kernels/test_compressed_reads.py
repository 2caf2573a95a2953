"""The paged read of entries that stand for several tokens, against a float64 twin.

The twin knows tokens only: an entry is seen when all the tokens it stands for count,
are written, and lie at or before the query.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twin
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.merge import merge
from pallas_kernels.paged_decode.reference import TILE_ENTRIES, paged_attention

HEADS, QUERIES, DIM, VALUE_DIM = 2, 2, 4, 3
ROWS, WIDTH = 3, 5
# Tokens per entry, entries per block, blocks per row: two tiles and a part of a third.
# A block of more entries than a tile is a tile of its own.
LAYOUTS = {
    "ratio 4": (4, 16, 2 * TILE_ENTRIES // 16 + 3),
    "ratio 128": (128, 2, 2 * TILE_ENTRIES // 2 + 3),
    "block divides no tile": (3, 5, 2 * (TILE_ENTRIES // 5) + 3),
    "block beyond the tile": (2, TILE_ENTRIES + 4, 3),
}


def visible(position, since, end, ratio, table, size, blocks):
    """Entries one query sees, by the definition."""
    stop = min(position + 1, end)
    return [
        number
        for number in range(len(table) * size)
        if since <= number * ratio and (number + 1) * ratio <= stop
        if 0 <= table[number // size] < blocks
    ]


@functools.partial(jax.jit, static_argnames="ratio")
def read(query, keys, values, table, positions, since, end, ratio):
    """Pools ``[P, S, H, D]``; ids outside them load NaN."""

    def load(ids):
        def rows(pool):
            found = pool.at[ids].get(
                mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
            )
            return found.reshape(len(ids), -1, *pool.shape[2:])

        return rows(keys), rows(values)

    return paged_attention(
        query,
        load,
        table,
        entry_tokens=ratio,
        block_tokens=ratio * keys.shape[1],
        num_blocks=len(keys),
        positions=positions,
        since=since,
        end=end,
        score=lambda query, keys: jnp.einsum("bthqd,bkhd->bthqk", query, keys),
    )


@st.composite
def cases(draw, layout):
    ratio, size, columns = LAYOUTS[layout]
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    tile = max(1, TILE_ENTRIES // size) * size
    entries = [0, 1, size - 1, size, size + 1, tile - 1, tile, tile + 1, 2 * tile]
    last = columns * size * ratio - WIDTH
    # Just before, at and after the token that completes an entry.
    start = [
        min(max(0, ratio * number + draw(st.integers(-WIDTH, 1))), last)
        for number in draw(st.lists(st.sampled_from(entries), min_size=3, max_size=3))
    ]
    blocks = ROWS * columns + 7
    table = random.permutation(blocks)[: ROWS * columns].reshape(ROWS, columns)
    holes = random.random(table.shape) < draw(st.sampled_from([0, 0, 0.1, 0.5]))
    outside = random.choice([-1, -blocks, blocks, blocks + 9, 2**30], table.shape)
    since = [draw(st.integers(0, first)) for first in start]
    count = draw(st.lists(st.integers(0, WIDTH), min_size=ROWS, max_size=ROWS))
    length = columns * size
    return {
        "blocks": blocks,
        "query": random.normal(0, 2, (ROWS, WIDTH, HEADS, QUERIES, DIM)),
        "keys": random.normal(0, 1, (ROWS, length, HEADS, DIM)),
        "values": random.normal(0, 1, (ROWS, length, HEADS, VALUE_DIM)),
        "table": np.where(holes, outside, table),
        "start": np.array(start),
        "since": np.array(since) * draw(st.booleans()),
        "count": np.array(count),
    }


def paged(logical, alive, table, size, blocks):
    """Entries ``[R, N, ...]`` in their blocks; every other slot holds NaN."""
    pool = np.full((blocks, size, *logical.shape[2:]), np.nan, np.float32)
    for row, number in zip(*np.nonzero(alive), strict=True):
        pool[table[row, number // size], number % size] = logical[row, number]
    return jnp.asarray(pool)


def prepared(case, ratio, size):
    """Arguments of ``read``, and what each query sees."""
    table, blocks, since = case["table"], case["blocks"], case["since"]
    end = np.where(case["count"] > 0, case["start"] + case["count"], 0)
    positions = case["start"][:, None] + np.arange(WIDTH)
    alive = np.zeros(case["keys"].shape[:2], bool)
    sees = [[[] for _ in range(WIDTH)] for _ in range(ROWS)]
    for row in range(ROWS):
        rule = (since[row], end[row], ratio, table[row], size, blocks)
        alive[row, visible(end[row] - 1, *rule)] = True
        for column, position in enumerate(positions[row]):
            sees[row][column] = visible(position, *rule)
    arguments = (
        jnp.asarray(case["query"], jnp.float32),
        *(paged(case[n], alive, table, size, blocks) for n in ("keys", "values")),
        *(jnp.asarray(x, jnp.int32) for x in (table, positions, since, end)),
    )
    return arguments, sees


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=12)
@given(data=st.data())
def test_read_of_entries(layout, data):
    """Every query of every row; those of a row with end 0, too, see nothing."""
    ratio, size, _ = LAYOUTS[layout]
    case = data.draw(cases(layout))
    arguments, sees = prepared(case, ratio, size)
    part = read(*arguments, ratio=ratio)
    seen = np.zeros((ROWS, WIDTH, case["keys"].shape[1]), bool)
    for row, column in np.ndindex(ROWS, WIDTH):
        seen[row, column, sees[row][column]] = True
    want = twin.attention(case["query"], case["keys"], case["values"], seen)
    np.testing.assert_allclose(merge([part]), want, atol=2e-6)
    blind = np.array([[not seen for seen in row] for row in sees])
    assert (np.array(part.l)[blind] == 0).all()
    assert np.isneginf(np.array(part.m)[blind]).all()
    assert np.isfinite(np.array(part.m)[~blind]).all()


@settings(max_examples=10)
@given(data=st.data(), others=st.integers(0, LAYOUTS["ratio 4"][2] * 64))
def test_longer_neighbours_change_no_bit(data, others):
    """Tiles that only another row needs leave a row's sums as they are."""
    ratio, size, _ = LAYOUTS["ratio 4"]
    arguments, _ = prepared(data.draw(cases("ratio 4")), ratio, size)
    *inputs, end = arguments
    alone = read(*inputs, end.at[1:].set(0), ratio=ratio)
    beside = read(*inputs, end.at[1:].set(others), ratio=ratio)
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


# Zero queries weigh all entries alike, so that `l` counts those that were seen.
COLUMNS = 3


def counted(ratio, size, since, end):
    """``[T]`` entries seen by the query at each position of a row."""
    tokens = ratio * size * COLUMNS
    pool = jnp.zeros((COLUMNS, size, 1, 1))
    part = read(
        jnp.zeros((1, tokens, 1, 1, 1)),
        pool,
        pool,
        jnp.asarray([[1, 2, 0]]),
        jnp.arange(tokens)[None],
        jnp.asarray([since]),
        jnp.asarray([end]),
        ratio=ratio,
    )
    return np.array(part.l).reshape(-1)


@pytest.mark.parametrize(("ratio", "size"), [(1, 4), (2, 3), (4, 2), (128, 1)])
def test_an_entry_is_seen_from_its_last_token_on(ratio, size):
    tokens = ratio * size * COLUMNS
    position = np.arange(tokens)
    complete = (position + 1) // ratio
    np.testing.assert_array_equal(counted(ratio, size, 0, tokens), complete)
    for since in (1, ratio - 1, ratio, ratio + 1):
        whole = np.maximum(0, complete - -(-since // ratio))
        np.testing.assert_array_equal(counted(ratio, size, since, tokens), whole)
    for end in (0, 1, ratio - 1, ratio, ratio + 1, tokens - 1):
        written = np.minimum(complete, end // ratio)
        np.testing.assert_array_equal(counted(ratio, size, 0, end), written)
