"""What is used on the device, or saved once more, is not collected as unused."""

import pytest
import toy
from saved import Saved

from hybridcache_jax.store.collection import collect
from hybridcache_jax.testing.stores import MemoryStore

CHAT = [n % 9 + 1 for n in range(12)]
OTHER = [5] * 12


class Counting(MemoryStore):
    calls = 0

    def _fail(self):
        self.calls += 1


def records(session):
    return sum(name.startswith("records/") for name in session.objects.objects)


def acquired(session):
    """On the device, and nothing is published."""
    session.release(session.admit([*CHAT, 0]), publish=False)


def published_again(session):
    """Without a look at what there is of it."""
    session.store_cold(CHAT)
    session.save()


@pytest.mark.parametrize("use", [acquired, published_again])
def test_a_record_that_is_used_outlives_one_that_is_not(use):
    session = Saved(toy.only_full())
    session.store(CHAT)
    session.store(OTHER)
    session.save()
    before = records(session)
    for _ in range(5):
        use(session)
        collect(session.objects, keep_ticks=2)
    assert (before, records(session)) == (2, 1)
    session.restarted().load([*CHAT, 0])


def test_a_use_that_was_noted_in_this_tick_costs_two_looks():
    """At the time, and whether the producer's records were given up."""
    session = Saved(toy.only_full(), Counting())
    session.store(CHAT)
    session.save()
    acquired(session)
    for _ in range(3):
        before = session.objects.calls
        acquired(session)
        assert session.objects.calls == before + 2
    collect(session.objects, keep_ticks=2)
    before = session.objects.calls
    acquired(session)
    assert session.objects.calls > before + 2


def test_a_store_that_fails_loses_the_note_and_nothing_else():
    session = Saved(toy.only_full())
    session.store(CHAT)
    session.save()
    session.objects.error = RuntimeError("no way there")
    acquired(session)
    session.objects.error = None
    acquired(session)
    assert any(name.startswith("used/") for name in session.objects.objects)
