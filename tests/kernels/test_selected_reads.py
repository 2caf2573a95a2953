"""Ranking, and the read of what was ranked best, against slow NumPy twins.

The twin of the read is a softmax in float64 over the selected entries that a query
sees; the twin of the ranking sorts all units at once.  Index keys are small integers,
so scores are exact and many are equal.
"""

import functools
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.indexed_decode import reference as indexed
from pallas_kernels.indexer_scores import reference as indexer
from pallas_kernels.merge import merge

ROWS, WIDTH = 3, 5
HEADS, QUERIES, DIM, VALUE_DIM = 3, 2, 4, 2
# Tokens per entry, entries per block, blocks per row, entries selected.
RATIO, SIZE, COLUMNS, COUNT = 4, 3, 7, 8


class Choice(NamedTuple):
    """How units are ranked, and the layout of the keys."""

    k: int = 4
    key_tokens: int = 1
    unit: int = 1
    local_units: int = 0
    skip_open: bool = False
    groups: int = 1
    size: int = 4  # keys per block
    columns: int = 11
    tile: int = 8  # keys per tile


CHOICES = {
    "tokens": Choice(),
    "entries": Choice(key_tokens=4, unit=4),
    "groups": Choice(groups=3, key_tokens=2, unit=2),
    "more than there are": Choice(k=60, key_tokens=4, unit=4),
    "units of keys": Choice(key_tokens=4, unit=8),
    "unit across blocks": Choice(key_tokens=2, unit=12, tile=1, k=3),
    "nearest units": Choice(unit=4, local_units=2),
    "nearest only": Choice(unit=2, local_units=2, k=2),
    "open unit left out": Choice(key_tokens=2, unit=6, skip_open=True, size=5),
    "all rules": Choice(3, 2, 4, 2, skip_open=True, groups=2, size=3, tile=5),
    "tiles as they are": Choice(
        size=64, columns=2 * indexer.TILE_KEYS // 64 + 3, tile=indexer.TILE_KEYS
    ),
}


def visible(position, since, end, tokens, table, size, blocks):
    """Entries of ``tokens`` tokens that one query sees, by the definition."""
    stop = min(position + 1, end)
    return [
        number
        for number in range(len(table) * size)
        if since <= number * tokens and (number + 1) * tokens <= stop
        if 0 <= table[number // size] < blocks
    ]


@st.composite
def histories(draw, tokens, size, columns, unit):
    """Rows of a paged history: lengths near a unit's end, permuted tables, holes.

    ``upto`` is a column whose queries must not notice what comes after them.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    blocks, last = ROWS * columns + 4, columns * size * tokens - WIDTH
    numbers = st.lists(st.integers(0, last // unit), min_size=ROWS, max_size=ROWS)
    start = [
        min(max(0, number * unit + draw(st.integers(-WIDTH, 1))), last)
        for number in draw(numbers)
    ]
    count = draw(st.lists(st.integers(0, WIDTH), min_size=ROWS, max_size=ROWS))
    since = np.array([draw(st.integers(0, first)) for first in start])
    table = random.permutation(blocks)[: ROWS * columns].reshape(ROWS, columns)
    outside = random.choice([-1, -blocks, blocks, blocks + 1, 2**30], table.shape)
    holes = random.random(table.shape) < draw(st.sampled_from([0, 0, 0.2]))
    start, count = np.array(start), np.array(count)
    return {
        "random": random,
        "blocks": blocks,
        "table": np.where(holes, outside, table),
        "positions": start[:, None] + np.arange(WIDTH),
        "since": since * draw(st.booleans()),
        "end": np.where(count > 0, start + count, 0),
        "upto": draw(st.integers(0, WIDTH - 1)),
    }


def seen_by(history, row, column, tokens, size):
    return visible(
        history["positions"][row, column],
        history["since"][row],
        history["end"][row],
        tokens,
        history["table"][row],
        size,
        history["blocks"],
    )


def paged(history, logical, tokens, size):
    """Rows ``[R, N, ...]`` in their blocks.

    Only what the queries of column ``upto`` see is there; every other slot, later
    entries of the same step among them, holds NaN.
    """
    shape = (history["blocks"], size, *logical.shape[2:])
    pool = np.full(shape, np.nan, np.float32)
    for row in range(ROWS):
        for number in seen_by(history, row, history["upto"], tokens, size):
            block = history["table"][row, number // size]
            pool[block, number % size] = logical[row, number]
    return jnp.asarray(pool)


def fill(pool, *where):
    """``pool[where]``, NaN where the block lies outside the pool."""
    return pool.at[where].get(
        mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
    )


def integers(history, *names):
    return tuple(jnp.asarray(history[name], jnp.int32) for name in names)


@functools.partial(jax.jit, static_argnames="elements")
def attended(
    query, keys, values, selected, table, positions, since, end, elements=None
):
    """Columns wrap as in a ring, so what is beyond the table finds a block too."""

    def load(first):
        column = first // (RATIO * SIZE) % table.shape[1]
        ids = jnp.take_along_axis(table, column, axis=1)
        where = ids, first % (RATIO * SIZE) // RATIO
        there = (ids >= 0) & (ids < len(keys))
        return fill(keys, *where), fill(values, *where), there

    limit = indexed._ELEMENTS if elements is None else elements
    with mock.patch.object(indexed, "_ELEMENTS", limit):
        return indexed.selected_attention(
            query,
            load,
            selected,
            entry_tokens=RATIO,
            positions=positions,
            since=since,
            end=end,
            score=lambda query, keys: jnp.einsum("bthqd,bkhd->bthqk", query, keys),
        )


def selections(random, groups, width=WIDTH):
    """``[R, T, G, K]`` distinct entries in any order, some absent, some beyond."""
    shape = (ROWS, width, groups)
    numbers = np.tile(np.arange(COLUMNS * SIZE + 2), (*shape, 1))
    numbers = random.permuted(numbers, axis=-1)[..., :COUNT]
    return np.where(random.random(numbers.shape) < 0.2, -1, numbers)


@pytest.mark.parametrize("groups", [1, HEADS])
@settings(max_examples=30)
@given(history=histories(RATIO, SIZE, COLUMNS, RATIO))
def test_read_of_selected_entries(groups, history):
    random, length = history["random"], COLUMNS * SIZE
    query = random.normal(0, 2, (ROWS, WIDTH, HEADS, QUERIES, DIM))
    keys = random.normal(0, 1, (ROWS, length, HEADS, DIM))
    values = random.normal(0, 1, (ROWS, length, HEADS, VALUE_DIM))
    selected = selections(random, groups)
    part = attended(
        jnp.asarray(query, jnp.float32),
        *(paged(history, logical, RATIO, SIZE) for logical in (keys, values)),
        jnp.asarray(selected, jnp.int32),
        *integers(history, "table", "positions", "since", "end"),
    )
    got = merge([part])
    for row, column, head in np.ndindex(ROWS, history["upto"] + 1, HEADS):
        wanted = selected[row, column, head if groups > 1 else 0]
        seen = np.intersect1d(seen_by(history, row, column, RATIO, SIZE), wanted)
        where = row, column, head
        if not len(seen):
            assert (np.array(part.l[where]) == 0).all()
            assert np.isneginf(part.m[where]).all()
            assert (np.array(got[where]) == 0).all()
            continue
        seen = seen.astype(int)
        scores = query[where] @ keys[row, seen, head].T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        want = weights @ values[row, seen, head] / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[where], want, atol=2e-6)


def whole_rows(width, groups):
    """Arguments for ``width`` queries at the end of rows that are all there."""
    random = np.random.default_rng(7)
    blocks, tokens = ROWS * COLUMNS + 4, COLUMNS * SIZE * RATIO
    shapes = [
        (ROWS, width, HEADS, QUERIES, DIM),
        (blocks, SIZE, HEADS, DIM),
        (blocks, SIZE, HEADS, VALUE_DIM),
    ]
    numbers = (
        selections(random, groups, width),
        random.permutation(blocks)[:-4].reshape(ROWS, COLUMNS),
        np.tile(tokens - width + np.arange(width), (ROWS, 1)),
        np.zeros(ROWS),
        np.full(ROWS, tokens),
    )
    return (
        *(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes),
        *(jnp.asarray(x, jnp.int32) for x in numbers),
    )


@pytest.mark.parametrize(("groups", "queries"), [(HEADS, 0), (1, 2)])
def test_queries_in_groups_give_the_same_as_all_at_once(groups, queries):
    """Never less than one; two, which do not divide the width."""
    arguments = whole_rows(WIDTH, groups)
    whole = attended(*arguments)
    elements = queries * ROWS * groups * COUNT * HEADS * DIM
    parts = attended(*arguments, elements=elements)
    for part, want in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part, want, rtol=1e-6, atol=1e-6)


def test_a_bound_on_gathered_elements_bounds_the_memory():
    arguments = whole_rows(40, HEADS)

    def scratch(elements):
        compiled = attended.lower(*arguments, elements=elements).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    assert scratch(2 * ROWS * HEADS * COUNT * HEADS * DIM) < scratch(None) / 4


@functools.partial(jax.jit, static_argnames="choice")
def ranked(query, keys, table, positions, since, end, choice):
    """Scores are half-integers: never zero, and exact."""

    def load(ids):
        return fill(keys, ids).reshape(len(ids), -1, keys.shape[-1])

    def score(keys):
        return jnp.einsum("btgd,bnd->btgn", query, keys) + 0.5

    with mock.patch.object(indexer, "TILE_KEYS", choice.tile):
        return indexer.top_units(
            load,
            table,
            score,
            groups=choice.groups,
            k=choice.k,
            key_tokens=choice.key_tokens,
            unit=choice.unit,
            local_units=choice.local_units,
            skip_open=choice.skip_open,
            block_tokens=choice.key_tokens * choice.size,
            num_blocks=len(keys),
            positions=positions,
            since=since,
            end=end,
        )


def best_units(scores, seen, position, choice):
    """All units at once, by falling score and rising number."""
    best = {}
    for key in seen:
        number = key * choice.key_tokens // choice.unit
        best[number] = max(best.get(number, -np.inf), scores[key])
    own = position // choice.unit
    for number in range(max(0, own - choice.local_units + 1), own + 1):
        best[number] = np.inf
    if choice.skip_open and (position + 1) % choice.unit:
        best.pop(own, None)
    order = sorted(best, key=lambda number: (-best[number], number))[: choice.k]
    return order + [-1] * (choice.k - len(order))


def ranked_keys(data, choice):
    """A history, its queries and keys, and the units that were chosen."""
    layout = choice.key_tokens, choice.size
    history = data.draw(histories(*layout, choice.columns, choice.unit))
    random, length = history["random"], choice.columns * choice.size
    query = random.integers(-2, 3, (ROWS, WIDTH, choice.groups, 2))
    keys = random.integers(-2, 3, (ROWS, length, 2))
    got = ranked(
        jnp.asarray(query, jnp.float32),
        paged(history, keys, *layout),
        *integers(history, "table", "positions", "since", "end"),
        choice=choice,
    )
    return history, query, keys, np.array(got)


@pytest.mark.parametrize("name", CHOICES)
@settings(max_examples=15)
@given(data=st.data())
def test_the_best_units(name, data):
    choice = CHOICES[name]
    history, query, keys, got = ranked_keys(data, choice)
    for row, column, group in np.ndindex(ROWS, history["upto"] + 1, choice.groups):
        position = history["positions"][row, column]
        if position >= history["end"][row]:
            continue
        seen = seen_by(history, row, column, choice.key_tokens, choice.size)
        scores = keys[row] @ query[row, column, group]
        want = best_units(scores, seen, position, choice)
        assert got[row, column, group].tolist() == want
    if not choice.local_units:
        assert (got[history["end"] == 0] == -1).all()


@pytest.mark.parametrize("tile", [1, 12])
def test_equal_scores_go_to_the_earlier_unit_in_every_tile(tile):
    choice = Choice(k=9, key_tokens=2, unit=4, tile=tile)
    tokens = choice.columns * choice.size * choice.key_tokens
    positions = np.tile(tokens - WIDTH + np.arange(WIDTH), (ROWS, 1))
    got = ranked(
        jnp.zeros((ROWS, WIDTH, 1, 2)),
        jnp.ones((choice.columns, choice.size, 2)),
        jnp.tile(jnp.arange(choice.columns), (ROWS, 1)),
        jnp.asarray(positions, jnp.int32),
        jnp.asarray([0, 8, 10], jnp.int32),
        jnp.full(ROWS, tokens, jnp.int32),
        choice=choice,
    )
    # A unit with one key that counts is there; its score is that key's.
    for row, first in enumerate((0, 2, 2)):
        for column in range(WIDTH):
            assert got[row, column, 0].tolist() == list(range(first, first + 9))
