"""Records that one process gives up go from all others, with what was made of them."""

import dataclasses

import pytest
import toy
from saved import Saved
from test_adopted_claims import adopted

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.store import trust
from hybridcache_jax.store.prefix_store import StoreError
from hybridcache_jax.testing.stores import Inline

CHAT = [n % 9 + 1 for n in range(12)]
LONGER = [*CHAT, 2, 7, 1, 8, 2, 8, 1, 8]
OTHER = [5] * 12


def wrong_record():
    """A process that stored a wrong block, with a digest of its wrong bytes."""
    session = Saved(toy.only_full())
    session.store(CHAT)
    (plane,) = {name for name in session.cache.pools[0] if name.endswith("k")}
    pool = dict(session.cache.pools[0])
    _, _, ids, _ = next(session.prefixes.claims())
    pool[plane] = pool[plane].at[:, int(ids[0])].add(1)
    session.put(dataclasses.replace(session.cache, pools=(pool,)))
    session.save()
    return session


def narrow(session):
    session.prefixes.set_scope(session.model.identity, "request")


def records(session):
    return sum(name.startswith("records/") for name in session.objects.objects)


def loaded(first):
    """Another process that has loaded what the first one stored, and runs a row."""
    second = first.restarted()
    lease = second.admit([*CHAT, 0])
    assert lease.plan.length == len(CHAT)
    return second, lease


def test_a_wrong_block_that_was_given_up_does_not_come_back():
    """One process stored it, another loaded it and saves more: a third gets none."""
    first = wrong_record()
    second, lease = loaded(first)
    second.release(lease)
    narrow(first)
    lease = second.acquire(second.match(LONGER))
    second.feed(lease, LONGER[lease.plan.start :])
    second.release(lease)
    second.save()
    assert records(first) == 2
    third = first.restarted()
    for session in (second, third):
        assert session.answer([*CHAT, 0]).length == len(CHAT)


def test_a_save_is_a_look_at_the_store_as_well():
    """A row that goes on from what was given up asks for nothing, and is not saved."""
    first = wrong_record()
    second, lease = loaded(first)
    narrow(first)
    second.feed(lease, [0, *LONGER[13:]])
    second.release(lease)
    assert second.prefixes.saving == 1
    second.save()
    assert (records(first), second.ends()) == (1, {"lost": 1})
    for session in (second, first.restarted()):
        assert session.answer([*CHAT, 0]).length == 0


def test_who_serves_from_the_device_alone_hears_of_it():
    """Nothing is looked up there and nothing saved; the note of a use is a look."""
    first = wrong_record()
    second, lease = loaded(first)
    second.release(lease, publish=False)
    narrow(first)
    second.release(second.admit([*CHAT, 0]), publish=False)
    second.poll()
    assert second.answer([*CHAT, 0]).length == 0


def test_what_was_adopted_goes_when_its_records_are_given_up():
    first = wrong_record()
    options = {"store": first.objects, "executor": Inline()}
    second = adopted(
        first, tier=hc.HostTier(first.model.plan, budget="1MiB"), **options
    )
    narrow(first)
    lease = second.admit([*CHAT, 0])
    assert lease.plan.length == len(CHAT)
    second.release(lease, publish=False)
    second.put(second.prefixes.poll(second.cache)[0])
    assert second.answer([*CHAT, 0]).length == 0


def test_rows_and_loads_on_given_up_records_come_to_nothing():
    first = Saved(toy.only_full())
    first.store(CHAT)
    first.save()
    second, lease = loaded(first)
    third = first.restarted()
    load = third.ask([*CHAT, 0])
    stale = second.match([*CHAT, 1])
    narrow(first)
    for session in (second, third):
        assert session.match([*OTHER, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
        assert session.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert [(r.load, r.stage) for r in third.poll()] == [(load, LoadStage.CANCELLED)]
    with pytest.raises(Exception, match="given up"):
        second.acquire(stale)
    second.feed(lease, [0, 1, 2, 3])
    second.release(lease)
    assert second.prefixes.saving == 0
    assert not list(second.prefixes.claims())
    # What is run from then on counts, here and elsewhere.
    second.store(CHAT)
    assert second.match([*CHAT, 0]).verdict == Verdict.RESUMABLE
    second.save()
    assert third.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO
    assert second.match([*CHAT, 0]).verdict == Verdict.RESUMABLE


def test_records_that_could_not_be_given_up_are_given_up_later():
    first = Saved(toy.only_full())
    first.store(CHAT)
    first.save()
    second, _ = loaded(first)
    second.objects.error = StoreError("no way there")
    narrow(second)
    second.poll()
    second.objects.error = None
    second.prefixes.set_scope(second.model.identity, "namespace")
    # Until then this process uses none of the producer's records.
    assert second.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    second.store(OTHER)
    assert second.prefixes.saving == 0
    assert first.restarted().match([*CHAT, 0]).verdict == Verdict.NEEDS_IO
    for _ in range(4):
        second.poll()
    third = first.restarted()
    assert third.match([*CHAT, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    second.store(LONGER)
    second.save()
    assert third.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO


def test_a_stray_mark_does_not_count_and_the_last_one_is_refused():
    session = Saved(toy.only_full())
    producer = session.model.identity
    trust.give_up(session.objects, producer)
    (mark,) = session.objects.objects
    folder = mark.removesuffix("1")
    for stray in ("99999999999999999999999", "01", "1x", "2/3", "x"):
        session.objects.objects[folder + stray] = b""
    assert trust.generation(session.objects, producer) == 1
    session.store(CHAT)
    session.save()
    assert session.restarted().match([*CHAT, 0]).verdict == Verdict.NEEDS_IO
    session.objects.objects[folder + "999999999"] = b""
    with pytest.raises(StoreError, match="999999999 if nobody did that"):
        trust.give_up(session.objects, producer)
