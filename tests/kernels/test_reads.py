"""Each read and the merge against a float64 twin that knows positions only."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twin
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.entry import Entry
from hybridcache_jax.layers import Chunk, Window
from pallas_kernels.contracts import ReadContract
from pallas_kernels.merge import Partial, combine, empty, merge
from pallas_kernels.paged_decode.reference import TILE_ENTRIES, paged_attention
from pallas_kernels.window_decode.reference import window_attention

HEADS, QUERIES, DIM = 2, 2, 4
SIZE, ROWS, WIDTH = 16, 3, 5
# Three tiles and a part of a fourth.
COLUMNS = 3 * TILE_ENTRIES // SIZE + 3
BLOCKS = ROWS * COLUMNS + 7
ENTRY = Entry.kv(HEADS, DIM)


def scatter(logical, table):
    """Entries ``[R, N, ...]`` to a pool whose other slots hold NaN."""
    pool = np.full((BLOCKS, SIZE, *logical.shape[2:]), np.nan, np.float32)
    for row in range(ROWS):
        for column, block in enumerate(table[row]):
            part = logical[row, column * SIZE : (column + 1) * SIZE]
            pool[block, : len(part)] = part
    return jnp.asarray(pool)


def score(query, keys):
    return jnp.einsum("bthqd,bkhd->bthqk", query, keys)


def loader(keys, values, ids):
    def rows(pool):
        return pool[jnp.clip(ids, 0, BLOCKS - 1)].reshape(len(ids), -1, HEADS, DIM)

    return rows(keys), rows(values)


@jax.jit
def paged(query, keys, values, table, positions, since, end):
    part = paged_attention(
        query,
        functools.partial(loader, keys, values),
        table,
        entry_tokens=1,
        block_tokens=SIZE,
        num_blocks=BLOCKS,
        positions=positions,
        since=since,
        end=end,
        score=score,
    )
    return merge([part])


@functools.partial(jax.jit, static_argnames="local")
def windowed(query, keys, values, table, positions, since, end, local):
    part = window_attention(
        query,
        functools.partial(loader, keys, values),
        table,
        block_tokens=SIZE,
        num_blocks=BLOCKS,
        positions=positions,
        first_visible=local.first_visible,
        reach=local.reach,
        since=since,
        end=end,
        score=score,
    )
    return merge([part])


@st.composite
def cases(draw):
    seed = draw(st.integers(0, 2**16))
    random = np.random.default_rng(seed)
    edges = [0, 1, SIZE - 1, SIZE, SIZE + 1, TILE_ENTRIES - 1, TILE_ENTRIES]
    edges += [TILE_ENTRIES + 1, 2 * TILE_ENTRIES + 3, COLUMNS * SIZE - WIDTH]
    start = np.array(draw(st.lists(st.sampled_from(edges), min_size=3, max_size=3)))
    since = np.array([draw(st.integers(0, int(s))) for s in start])
    count = np.array(
        draw(st.lists(st.integers(0, WIDTH), min_size=ROWS, max_size=ROWS))
    )
    length = COLUMNS * SIZE
    return {
        "query": random.normal(0, 2, (ROWS, WIDTH, HEADS, QUERIES, DIM)),
        "keys": random.normal(0, 1, (ROWS, length, HEADS, DIM)),
        "values": random.normal(0, 1, (ROWS, length, HEADS, DIM)),
        "table": random.permutation(BLOCKS)[: ROWS * COLUMNS].reshape(ROWS, COLUMNS),
        "start": start,
        "since": since * draw(st.booleans()),
        "count": count,
    }


def check(case, read, first):
    end = np.where(case["count"] > 0, case["start"] + case["count"], 0)
    positions = case["start"][:, None] + np.arange(WIDTH)
    query, keys, values = (
        case[n].astype(np.float32) for n in ("query", "keys", "values")
    )
    pools = []
    for entries in (keys, values):
        dirty = entries.copy()
        for row in range(ROWS):
            # What was never written, or lies before `since`, holds anything.
            dirty[row, end[row] :] = np.nan
            dirty[row, : case["since"][row]] = np.nan
        pools.append(scatter(dirty, case["table"]))
    arguments = (case["table"], positions, case["since"], end)
    got = read(
        jnp.asarray(query), *pools, *(jnp.asarray(x, jnp.int32) for x in arguments)
    )
    count = COLUMNS * SIZE
    pool = twin.Pool(ENTRY, SIZE)
    seen = twin.visible(pool, count, positions, case["since"], end, first)
    want = twin.attention(query, keys, values, seen)
    real = np.arange(WIDTH) < case["count"][:, None]
    np.testing.assert_allclose(np.array(got)[real], want[real], atol=2e-6)
    assert np.isfinite(np.array(got)[real]).all()


@settings(max_examples=25)
@given(case=cases())
def test_paged_read(case):
    check(case, paged, lambda position: 0)


@pytest.mark.parametrize(
    "local",
    [Window(1, ENTRY), Window(SIZE, ENTRY), Window(40, ENTRY), Chunk(24, ENTRY)],
    ids=["self", "block", "several blocks", "chunk"],
)
@settings(max_examples=15)
@given(case=cases())
def test_window_read(local, case):
    check(case, functools.partial(windowed, local=local), local.first_visible)


def test_merge_is_the_softmax_over_all_keys():
    random = np.random.default_rng(0)
    scores = random.normal(0, 9, (4, 30))
    values = random.normal(size=(4, 30, 6))
    sinks = random.normal(0, 9, 4)
    parts = []
    for start, stop in ((0, 7), (7, 8), (8, 8), (8, 30)):
        part = scores[:, start:stop]
        peak = part.max(axis=1, initial=-np.inf)
        weights = np.exp(part - np.where(np.isinf(peak), 0, peak)[:, None])
        acc = np.einsum("bk,bkd->bd", weights, values[:, start:stop])
        parts.append(Partial(*map(jnp.float32, (acc, peak, weights.sum(axis=1)))))
    for extra in (None, sinks):
        whole = scores if extra is None else np.hstack([scores, extra[:, None]])
        weights = np.exp(whole - whole.max(axis=1, keepdims=True))
        weights = (weights / weights.sum(axis=1, keepdims=True))[:, :30]
        want = np.einsum("bk,bkd->bd", weights, values)
        given_ = None if extra is None else jnp.float32(extra)
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
            got = merge([parts[number] for number in order], given_)
            np.testing.assert_allclose(got, want, atol=1e-6)


def test_queries_that_saw_nothing_give_zeros():
    nothing = empty((2, 3), 4)
    both = combine(nothing, nothing)
    for leaf in both:
        assert not np.isnan(leaf).any()
    assert (merge([nothing, both]) == 0).all()


@pytest.mark.parametrize(
    ("plane", "message"),
    [
        ({"dtype": "int8"}, "int8 is not one of"),
        ({"dim": 4096}, "4096 exceeds 64"),
        ({}, None),
    ],
)
def test_contracts_say_what_they_refuse(plane, message):
    contract = ReadContract("test", frozenset({"float32"}), 64, 4)
    plane = {"dtype": "float32", "dim": 64} | plane
    refusal = contract.refusal(**plane)
    assert refusal is None if message is None else message in refusal
