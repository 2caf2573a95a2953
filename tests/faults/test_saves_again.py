"""A save for which the store failed is tried again, and not for ever."""

import toy
from saved import Saved

from hybridcache_jax import Verdict
from hybridcache_jax.store.prefix_store import StoreError
from hybridcache_jax.testing.stores import MemoryStore

CHAT = [n % 9 + 1 for n in range(12)]


class Lossy(MemoryStore):
    """Says that packs are written, and keeps none."""

    packs = 0

    def put(self, name, data):
        if name.startswith("packs/"):
            self.packs += 1
        else:
            super().put(name, data)


def failed():
    session = Saved(toy.only_full())
    session.objects.error = StoreError("the disk is full")
    session.store(CHAT)
    session.save()
    assert session.ends() == {"failed": 1}
    assert session.prefixes.saving == 0
    return session


def found(session):
    return session.restarted().match([*CHAT, 0]).verdict == Verdict.NEEDS_IO


def test_what_failed_is_saved_when_the_store_works_again():
    session = failed()
    session.objects.error = None
    polls = 0
    while not found(session):
        session.poll()
        polls += 1
        assert polls < 100
    assert polls > 8
    assert session.ends() == {"failed": 1, "saved": 1}


def test_a_flush_tries_it_once_more():
    session = failed()
    session.objects.error = None
    session.save()
    assert found(session)


def test_a_store_that_fails_for_ever_is_left_alone_at_last():
    session = failed()
    for _ in range(10):
        session.save()
    assert session.ends() == {"failed": 8}
    session.objects.error = None
    session.save()
    assert not found(session)


def test_what_was_given_up_is_not_tried_again():
    session = failed()
    session.objects.error = None
    session.prefixes.set_scope(session.model.identity, "request")
    session.prefixes.set_scope(session.model.identity, "namespace")
    session.save()
    assert not found(session)


def test_a_store_that_loses_packs_fails_a_save():
    session = Saved(toy.only_full(), Lossy())
    session.store(CHAT)
    session.save()
    assert session.ends() == {"failed": 1}
    assert session.objects.packs == 3
