"""A flush that is told how long it may take, of a store that hangs."""

import math
import threading
import time

import pytest
import toy
from saved import Saved

from hybridcache_jax import Verdict
from hybridcache_jax.testing.stores import MemoryStore

CHAT = [n % 9 + 1 for n in range(12)]


class Hanging(MemoryStore):
    """Writes nothing before it is let go."""

    def __init__(self):
        super().__init__()
        self.goes_on = threading.Event()

    def put(self, name, data):
        self.goes_on.wait(60)
        super().put(name, data)


def test_a_flush_returns_in_time_and_loses_nothing():
    store = Hanging()
    session = Saved(toy.only_full(), store, executor=None)
    session.store(CHAT)
    told, begin = [], time.monotonic()
    for timeout in (0, 0.1):
        session.put(
            session.prefixes.flush(session.cache, timeout=timeout, progress=told.append)
        )
    assert time.monotonic() - begin < 30
    assert (session.prefixes.saving, told, session.ends()) == (1, [], {})
    # What it gave back is served on, and what waits is saved when the store goes on.
    assert session.answer([*CHAT, 0]).length == len(CHAT)
    store.goes_on.set()
    session.put(session.prefixes.flush(session.cache, timeout=math.inf))
    assert (session.prefixes.saving, session.ends()) == (0, {"saved": 1})
    session.prefixes.close()
    reader = Saved(toy.only_full(), store)
    assert reader.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO
    assert reader.load([*CHAT, 0]).ready
    assert reader.answer([*CHAT, 0]).length == len(CHAT)


@pytest.mark.parametrize("timeout", [-1, math.nan, True])
def test_a_time_that_is_none_is_refused(timeout):
    session = Saved(toy.only_full())
    with pytest.raises(ValueError, match="0 or more"):
        session.prefixes.flush(session.cache, timeout=timeout)
