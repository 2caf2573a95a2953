"""K14, K15: records that fail in use, and memory that goes while it is being saved."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from tiered import Tiered, only_full

from hybridcache_jax import Form, LeaseError, Status, Verdict
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.payload import digest
from hybridcache_jax.points import Point
from hybridcache_jax.testing import faults

P = list(toy.P)


def reads_of(tier):
    """First positions of all blocks that are read from now on."""
    found, read = [], tier.read

    def counted(pool, place):
        found.append(int(tier.places[pool].first[place]))
        return read(pool, place)

    tier.read = counted
    return found


def second_block(session):
    """The block that a prefix of 8 has and one of 4 has not."""
    table = session.cache.tables[0]
    (block,) = np.flatnonzero(np.asarray(table.kept & (table.first == 4))).tolist()
    return block


@pytest.mark.outer_tier("B58")
def test_b58_what_failed_when_run_is_not_chosen_again():
    """Prefixes of 8 and of 4: that of 8 is restored and fails in its first step."""
    session = only_full()
    session.store(P[:8])
    session.move_out()
    reads, lengths, failed = reads_of(session.tier), [], 0
    for _ in range(4):
        if session.match(P[:9]).verdict == Verdict.NEEDS_IO:
            assert session.load(P[:9]).ready
        lease = session.acquire(session.match(P[:9]))
        lengths.append(lease.plan.length)
        if lease.plan.length == 8:
            block = second_block(session)
            session.cache = faults.rewrite_version(session.cache, 0, block, 99)
        ((status,), _) = session.run((lease, P[lease.plan.start : 9]))
        if status == Status.STALE:
            failed += 1
            with pytest.raises(LeaseError, match="nothing was published"):
                session.publish(lease)
        else:
            session.check(lease, P[:9])
        session.release(lease, publish=False)
        session.move_out()
    assert (lengths, failed) == ([8, 4, 4, 4], 1)
    assert reads.count(4) == 1


@pytest.mark.outer_tier("B58")
def test_b58_a_restore_that_was_of_no_use_is_not_repeated():
    """Restored, and lost before anybody ran it: the next try uses 4, and only 4."""
    session = only_full()
    session.store(P[:8])
    session.move_out()
    reads = reads_of(session.tier)
    load = session.ask(P[:9])
    assert session.poll()[0].ready
    # A load protects what it brought; whoever cancels it does not.
    session.prefixes.cancel(load)
    session.put(faults.lose(session.cache, 0, second_block(session)))
    for _ in range(3):
        plan = session.match(P[:9])
        assert plan.length == 4
        assert session.answer(P[:9]).length == 4
        session.move_out()
    assert reads.count(4) == 1


@pytest.mark.outer_tier("B58")
def test_b58_each_restore_brings_a_prompt_further():
    """Restored twice: each time just what lies behind it is run."""
    session = only_full()
    session.store(P[:8])
    for _ in range(2):
        session.move_out()
        assert session.match(P[:9]).verdict == Verdict.NEEDS_IO
        assert session.load(P[:9]).ready
        plan = session.match(P[:9])
        assert (plan.verdict, plan.tokens_to_run) == (Verdict.RESUMABLE, 1)
        assert session.answer(P[:9]).length == 8


def saved(session):
    """Contents of every block in the tier, by pool and first position."""
    found = {}
    for pool, table in enumerate(session.tier.places):
        for place in np.flatnonzero(table.stage == Stage.ON_DISK).tolist():
            payload = session.tier.read(pool, place)
            assert digest(payload.planes) == payload.digest
            planes = (plane.tobytes() for plane in payload.planes.values())
            found[pool, int(table.first[place])] = b"".join(planes)
    return found


def in_memory(session):
    """The same of every stored block."""
    return {
        (pool, int(session.cache.tables[pool].first[block])): content
        for (pool, block, _), content in toy.kept_bytes(session.cache).items()
    }


def donated_at(some, point=None):
    """A session whose memory is given away when an eviction first passes a point.

    Returns:
      The session, what its stored blocks hold, and a switch to arm it.
    """
    armed = []

    def at(passed):
        if armed and passed is point:
            armed.clear()
            faults.donate(session.cache)

    session = Tiered(some, at=at)
    # Every test has memory of its own: what is donated is gone.
    session.cache = jax.tree.map(jnp.copy, session.cache)
    session.store(P[:8], each=True)
    armed.append(True)
    return session, in_memory(session)


@pytest.mark.outer_tier("B61")
def test_b61_memory_donated_before_it_was_copied_is_an_error():
    """In the call itself, and nothing is saved."""
    session, _ = donated_at(toy.only_full(), Point.EVICTION_BEGUN)
    with pytest.raises(RuntimeError, match="deleted"):
        session.prefixes.evict(session.cache, Form.FULL_KV)
    assert saved(session) == {}


@pytest.mark.outer_tier("B61")
def test_b61_memory_donated_once_it_was_copied_takes_nothing_away():
    session, before = donated_at(toy.only_full(), Point.EVICTION_COPIED)
    cache = session.prefixes.evict(session.cache, Form.FULL_KV)
    assert all(plane.is_deleted() for plane in jax.tree.leaves(session.cache.pools))
    assert len(before) == 2
    assert saved(session) == before
    fresh = jax.tree.map(jnp.copy, session.model.empty.pools)
    session.put(dataclasses.replace(cache, pools=fresh))
    assert session.answer(P[:9]).length == 8


@pytest.mark.outer_tier("B61")
@pytest.mark.parametrize("stores", [0, 3])
def test_b61_memory_donated_between_two_pools_saves_whole_blocks_or_none(stores):
    """The windows lie in two pools: one is copied, the other is refused."""
    session, before = donated_at(toy.fine())
    store, done = session.tier.store, []

    def donating(pool, payload, **facts):
        if len(done) == stores:
            faults.donate(session.cache)
        done.append(pool)
        return store(pool, payload, **facts)

    session.tier.store = donating
    with pytest.raises(RuntimeError, match="deleted"):
        session.prefixes.evict(session.cache, Form.SWA_WINDOW)
    found = saved(session)
    assert {pool for pool, _ in found} == {0}
    assert all(before[where] == content for where, content in found.items())
