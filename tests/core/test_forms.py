"""Retention rules of all forms and the conventions of windows, at every boundary."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import RULES, Form, Geometry, Remedy, required
from hybridcache_jax.layers import Chunk, Entries, IndexKeys, LayerSpec, Window

ROW = Entry.kv(1, 2)


def points_around(*sizes):
    """0, 1, and every size and its multiples with their neighbours."""
    near = {0, 1, 2}
    for size in sizes:
        for multiple in (1, 2, 3):
            near |= {multiple * size + step for step in (-1, 0, 1)}
    return sorted(point for point in near if point >= 0)


def span(positions):
    """A set of positions as ``(lo, hi)``; None if it is empty or has holes."""
    if not positions:
        return None
    lo, hi = min(positions), max(positions) + 1
    return (lo, hi) if len(positions) == hi - lo else None


def in_each_namespace(form, geometry, points):
    """The rule's answers for ints, NumPy arrays and JAX arrays: they must be one."""
    by_int = [required(form, geometry, point) for point in points]
    for make in (np.array, jnp.array):
        lo, hi = required(form, geometry, make(points))
        assert lo.shape == hi.shape == (len(points),)
        assert [(int(a), int(b)) for a, b in zip(lo, hi, strict=True)] == by_int
        square = required(form, geometry, make([points, points]))
        assert all(side.shape == (2, len(points)) for side in square)
    assert all(type(a) is int and type(b) is int for a, b in by_int)
    return by_int


def check_against_oracle(form, geometry, layer, part, points):
    answers = in_each_namespace(form, geometry, points)
    for point, (lo, hi) in zip(points, answers, strict=True):
        need = oracle.required(layer, part, point)
        if need:
            assert (lo, hi) == span(need), (form, point)
        else:
            assert lo >= hi, (form, point)
        assert lo >= 0
        assert hi <= point


def test_the_table_of_forms_is_closed():
    assert set(RULES) == set(Form) - {Form.NONE}
    with pytest.raises(TypeError):
        RULES[Form.NONE] = RULES[Form.FULL_KV]
    growing = {form for form, rule in RULES.items() if rule.grows}
    assert growing == {
        Form.FULL_KV,
        Form.COMPRESSED_KV,
        Form.INDEXER_STATE,
        Form.ON_DISK_PREFIX,
    }
    assert [form for form, rule in RULES.items() if rule.exact] == [
        Form.RECURRENT_STATE
    ]
    away = [form for form, rule in RULES.items() if not rule.resident]
    assert away == [Form.ON_DISK_PREFIX]


@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        (Form.FULL_KV, Remedy.RECOMPUTE),
        (Form.COMPRESSED_KV, Remedy.RECOMPUTE),
        (Form.INDEXER_STATE, Remedy.RECOMPUTE),
        (Form.UNCOMPRESSED_TAIL, Remedy.REPLAY),
        (Form.SWA_WINDOW, Remedy.REPLAY),
        (Form.RECURRENT_STATE, Remedy.REPLAY),
        (Form.ON_DISK_PREFIX, Remedy.LOAD),
    ],
)
def test_how_each_form_comes_back(form, remedy):
    assert RULES[form].remedy is remedy


def test_full_history_needs_every_row():
    layer = LayerSpec(global_=Entries(ROW))
    check_against_oracle(
        Form.FULL_KV, Geometry(), layer, "global", [0, 1, 2, 7, 8, 9, 1_000]
    )


@pytest.mark.parametrize("form", [Form.COMPRESSED_KV, Form.ON_DISK_PREFIX])
@pytest.mark.parametrize("ratio", [2, 4, 8, 128])
def test_compressed_history_needs_its_complete_blocks(form, ratio):
    layer = LayerSpec(global_=Entries(ROW, ratio=ratio, raw=ROW))
    points = points_around(ratio)
    check_against_oracle(form, Geometry(ratio=ratio), layer, "global", points)
    # floor(p / m) entries, as token positions: p - 1, p, p + 1 around two blocks.
    assert required(form, Geometry(ratio=ratio), 2 * ratio - 1) == (0, ratio)
    assert required(form, Geometry(ratio=ratio), 2 * ratio) == (0, 2 * ratio)
    assert required(form, Geometry(ratio=ratio), 2 * ratio + 1) == (0, 2 * ratio)


@pytest.mark.parametrize("ratio", [1, 2, 4, 16])
def test_index_keys_cover_what_they_rank(ratio):
    layer = LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW, ratio=ratio))
    check_against_oracle(
        Form.INDEXER_STATE, Geometry(ratio=ratio), layer, "index", points_around(ratio)
    )


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("ratio", [2, 4, 8, 128])
def test_tail_is_the_open_block_and_the_halo(ratio, overlap):
    layer = LayerSpec(global_=Entries(ROW, ratio=ratio, overlap=overlap, raw=ROW))
    geometry = Geometry(ratio=ratio, halo=overlap * ratio)
    check_against_oracle(
        Form.UNCOMPRESSED_TAIL, geometry, layer, "global_tail", points_around(ratio)
    )


@pytest.mark.parametrize("overlap", [0, 1])
def test_tail_of_pooled_index_keys(overlap):
    keys = IndexKeys(ROW, ratio=4, overlap=overlap, raw=ROW)
    layer = LayerSpec(global_=Entries(ROW), index=keys)
    check_against_oracle(
        Form.UNCOMPRESSED_TAIL,
        Geometry(ratio=4, halo=4 * overlap),
        layer,
        "index_tail",
        points_around(4),
    )


def test_tail_pinned_values():
    overlapping, plain = Geometry(ratio=4, halo=4), Geometry(ratio=128)
    tail = Form.UNCOMPRESSED_TAIL
    # CSA keeps 4 + p % 4 rows once there are that many, HCA p % 128.
    for point in (4, 5, 7, 8, 11, 12, 130):
        lo, hi = required(tail, overlapping, point)
        assert (hi - lo, hi) == (4 + point % 4, point)
    for point in (1, 127, 129, 255, 300):
        lo, hi = required(tail, plain, point)
        assert (hi - lo, hi) == (point % 128, point)
    for point in (0, 128, 256):
        lo, hi = required(tail, plain, point)
        assert lo >= hi
    # Block 0 has no block before it: the halo never reaches below zero.
    assert [required(tail, overlapping, p) for p in range(4)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 128])
def test_window_needs_what_the_next_query_sees(size):
    window = Window(size, ROW)
    check_against_oracle(
        Form.SWA_WINDOW,
        Geometry(local=window),
        LayerSpec(local=window),
        "local",
        points_around(size),
    )


def test_window_pinned_values():
    geometry = Geometry(local=Window(128, ROW))
    for point, want in [
        (1, (0, 1)),
        (127, (0, 127)),
        (128, (1, 128)),
        (129, (2, 129)),
        (1_000, (873, 1_000)),
    ]:
        assert required(Form.SWA_WINDOW, geometry, point) == want
    # A window of one sees only its own key: nothing is ever needed.
    lo, hi = required(Form.SWA_WINDOW, Geometry(local=Window(1, ROW)), 5)
    assert lo >= hi


@pytest.mark.parametrize("size", [1, 2, 3, 8, 8192])
def test_chunk_needs_its_own_beginning(size):
    chunk = Chunk(size, ROW)
    check_against_oracle(
        Form.SWA_WINDOW,
        Geometry(local=chunk),
        LayerSpec(local=chunk),
        "local",
        [point for point in points_around(size) if point < 20_000],
    )
    lo, hi = required(Form.SWA_WINDOW, Geometry(local=chunk), 3 * size)
    assert lo >= hi


def test_checkpoint_stands_at_the_last_token_folded_in():
    answers = in_each_namespace(Form.RECURRENT_STATE, Geometry(), [0, 1, 7, 8])
    assert answers == [(0, 0), (0, 1), (6, 7), (7, 8)]
    assert RULES[Form.RECURRENT_STATE].exact


@pytest.mark.parametrize("size", [1, 2, 3, 5, 128])
def test_window_counts_the_querys_own_key(size):
    window = Window(size, ROW)
    assert window.reach == size - 1
    queries = np.arange(3 * size + 3)
    first = window.first_visible(queries)
    np.testing.assert_array_equal(queries - first + 1, np.minimum(queries + 1, size))
    np.testing.assert_array_equal(window.first_visible(jnp.array(queries)), first)
    for query in range(3 * size + 3):
        seen = [key for key in range(query + 1) if oracle.sees(window, query, key)]
        assert (window.first_visible(query), query + 1) == (seen[0], seen[-1] + 1)


@pytest.mark.parametrize("previous", [0, 1, 2, 127, 128])
def test_lookback_counts_the_keys_before(previous):
    """A model that says 128 *previous* tokens has a window of 129."""
    window = Window.from_lookback(previous, ROW)
    assert window.size == previous + 1
    assert window.reach == previous
    query = previous + 10
    assert query - window.first_visible(query) == previous


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_chunk_sees_its_own_chunk_only(size):
    chunk = Chunk(size, ROW)
    assert chunk.reach == size - 1
    queries = np.arange(3 * size + 2)
    want = np.array([size * (query // size) for query in queries])
    np.testing.assert_array_equal(chunk.first_visible(queries), want)
    np.testing.assert_array_equal(chunk.first_visible(jnp.array(queries)), want)
    assert [chunk.first_visible(int(query)) for query in queries] == want.tolist()
    # The most that a query sees before its own key is the reach.
    assert max(queries - want) == chunk.reach


@pytest.mark.parametrize("kind", [Window, Chunk])
@pytest.mark.parametrize("size", [0, -1])
def test_local_sizes_start_at_one(kind, size):
    with pytest.raises(ValueError, match="whole number from 1"):
        kind(size, ROW)
