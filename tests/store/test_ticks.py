"""Logical time: a counter in the store, and marks of what was of use."""

import pytest

from hybridcache_jax.store.prefix_store import StoreError
from hybridcache_jax.store.ticks import (
    forget_marks,
    last_used,
    mark_used,
    next_tick,
    tick,
)
from hybridcache_jax.testing.stores import MemoryStore as Memory

A, B = b"a" * 16, b"b" * 16


def test_time_begins_at_nothing_and_passes_by_ones():
    store = Memory()
    assert tick(store) == 0
    assert [next_tick(store) for _ in range(12)] == list(range(1, 13))
    assert tick(store) == 12
    # Old ticks go, the newest stay.
    assert len(store.names("ticks/")) == 3


def test_what_is_no_tick_does_not_count():
    store = Memory({"ticks/readme": b"", "ticks/99": b"", "ticks/000000000004/x": b""})
    assert tick(store) == 0


def test_the_last_tick_is_followed_by_none():
    store = Memory({"ticks/" + "9" * 12: b""})
    with pytest.raises(StoreError, match="after which there is none"):
        next_tick(store)


def test_the_latest_mark_counts_and_is_written_once():
    store = Memory()
    mark_used(store, [A, B])
    for _ in range(3):
        next_tick(store)
    mark_used(store, [B])
    writes = store.cut
    mark_used(store, [B])
    assert store.cut == writes
    assert last_used(store) == {A: 0, B: 3}
    mark_used(store, [A], now=2)
    assert last_used(store) == {A: 2, B: 3}


def test_a_mark_of_a_tick_that_is_yet_to_come_is_not_believed():
    store = Memory()
    next_tick(store)
    mark_used(store, [A, B], now=1)
    mark_used(store, [A], now=10**12 - 1)
    assert last_used(store) == {A: 1, B: 1}
    forget_marks(store, before=0, records=[A, B])
    assert len(store.names("used/")) == 2


def test_marks_that_say_nothing_more_are_forgotten():
    store = Memory({"ticks/000000000003": b""})
    for now, key in ((1, A), (2, A), (3, A), (1, B), (3, B), (1, b"c" * 16)):
        mark_used(store, [key], now=now)
    forget_marks(store, before=3, records=[A])
    assert last_used(store) == {A: 3, B: 3}
    assert len(store.names("used/")) == 2
    # The last mark of a record stays, however old it is.
    forget_marks(store, before=9, records=[A])
    assert last_used(store) == {A: 3}
