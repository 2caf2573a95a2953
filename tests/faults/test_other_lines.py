"""K15: what another line of values says, or an interrupted change, is never believed.

Ids, epochs and tickets count alike in every fresh cache, so a plan of one is by
accident true of another.
"""

import dataclasses

import numpy as np
import pytest
import tiered
import toy

import hybridcache_jax as hc
from hybridcache_jax import LeaseError, StaleCacheError, Status, Verdict
from hybridcache_jax.points import Point
from hybridcache_jax.testing import faults

HERE = [1, 2, 3, 4, 5, 6, 7, 8, 1]
THERE = [9, 8, 7, 6, 5, 4, 3, 2, 1]


def stored(tokens, **options):
    session = toy.Session(toy.only_full(), **options)
    session.store(tokens)
    return session


def step(session, lease, tokens):
    """Runs a step, whoever granted the lease."""
    inputs = hc.batch_inputs([(lease, tokens)], batch=1, width=toy.WIDTH)
    cache, status, read = session.model.step(session.cache, inputs)
    return cache, Status(int(status[0])), np.asarray(read)


def test_a_plan_of_another_cache_is_refused():
    one, other = stored(HERE), stored(THERE)
    plan = one.match(HERE)
    assert plan.verdict == Verdict.RESUMABLE
    before = other.cache
    with pytest.raises(LeaseError, match="another PrefixCache"):
        other.prefixes.acquire(before, plan)
    # The plan that the other line makes of its own store is like it in every number.
    twin = other.match(THERE)
    assert [ids.tolist() for ids in plan.claims.blocks] == [
        ids.tolist() for ids in twin.claims.blocks
    ]
    other.prefixes.acquire(other.cache, twin)


def test_a_lease_of_another_cache_runs_publishes_and_releases_nothing():
    one, other = stored(HERE), stored(THERE)
    foreign, own = one.admit(HERE), other.admit(THERE)
    assert foreign.row == own.row
    _, status, read = step(other, foreign, HERE[8:])
    assert status == Status.STALE
    assert not read.any()
    for call in (other.prefixes.publish, other.prefixes.release):
        with pytest.raises(LeaseError, match="another PrefixCache"):
            call(other.cache, foreign)
    with pytest.raises(LeaseError, match="not held by ticket"):
        other.prefixes.release(other.cache, foreign, publish=False)
    other.feed(own, THERE[8:])
    other.check(own, THERE)


def test_a_load_of_another_cache_is_refused():
    one, other = tiered.only_full(), tiered.only_full()
    for session, tokens in ((one, HERE), (other, THERE)):
        session.store(tokens)
        session.move_out()
    plan = one.match(HERE)
    assert plan.verdict == Verdict.NEEDS_IO
    with pytest.raises(LeaseError, match="another PrefixCache"):
        other.prefixes.load(other.cache, plan)
    assert other.load(THERE).ready
    assert one.load(HERE).ready


def test_after_a_restart_nothing_of_before_fits():
    one = stored(HERE)
    waiting, running = one.match(HERE), one.admit(HERE)
    again = stored(THERE)
    own = again.admit(THERE)
    with pytest.raises(LeaseError, match="before a restart"):
        again.prefixes.acquire(again.cache, waiting)
    assert step(again, running, HERE[8:])[1] == Status.STALE
    again.feed(own, THERE[8:])
    again.check(own, THERE)


@pytest.mark.parametrize("point", [Point.PUBLISH_CLAIMED, Point.RELEASE_PUBLISHED])
@pytest.mark.parametrize("again", [HERE, THERE])
def test_an_interrupted_publish_leaves_no_claim_on_what_a_retry_writes(point, again):
    """One goes on from before the step: same blocks, same epochs, other tokens."""
    session = toy.Session(toy.only_full(), at=faults.Interrupt(point))
    lease = session.admit(HERE)
    before = session.cache
    call = session.prefixes.publish
    if point == Point.RELEASE_PUBLISHED:
        call = session.prefixes.release
    session.feed(lease, HERE[: toy.WIDTH])
    with pytest.raises(faults.InjectedError):
        call(session.cache, lease)
    session.cache = before
    session.cache, status, _ = step(session, lease, again[: toy.WIDTH])
    assert status == Status.OK
    session.put(session.prefixes.publish(session.cache, lease))
    for tokens in (HERE, THERE):
        plan = session.match(tokens)
        if tokens != again:
            assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
            continue
        assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)
        row = session.admit(tokens)
        session.feed(row, tokens[8:])
        session.check(row, tokens)


def test_an_interrupted_publish_can_be_made_again():
    session = toy.Session(toy.only_full(), at=faults.Interrupt(Point.PUBLISH_CLAIMED))
    lease = session.admit(HERE)
    session.feed(lease, HERE[: toy.WIDTH])
    with pytest.raises(faults.InjectedError):
        session.prefixes.publish(session.cache, lease)
    session.put(session.prefixes.publish(session.cache, lease))
    assert session.match(HERE).verdict == Verdict.RESUMABLE


def test_a_row_that_went_stale_is_given_back_and_publishes_nothing():
    session = stored(HERE)
    lease = session.admit(HERE)
    block = int(np.asarray(session.cache.rows.blocks[0])[lease.row, 0])
    cache = faults.rewrite_version(session.cache, 0, block, 99)
    with pytest.raises(LeaseError, match="Release it"):
        session.prefixes.publish(cache, lease)
    tokens = session.prefixes.stored_tokens
    cache = session.prefixes.release(cache, lease)
    assert not np.asarray(cache.rows.live).any()
    assert session.prefixes.stored_tokens == tokens
    assert not any(np.asarray(table.pins).any() for table in cache.tables)
    with pytest.raises(LeaseError, match="not held by ticket"):
        session.prefixes.release(cache, lease)


def test_leases_are_known_by_row_and_ticket():
    session = stored(HERE)
    lease = session.admit(HERE)
    same = dataclasses.replace(lease, plan=session.match(THERE))
    assert lease == same
    assert {lease: "held"}[same] == "held"
    assert lease != dataclasses.replace(lease, ticket=lease.ticket + 1)
    assert len({lease.plan, same.plan}) == 2


def test_memory_that_was_donated_is_no_value():
    session = stored(HERE)
    for leaf in (session.cache.stamp, session.cache.clock):
        leaf.delete()
    with pytest.raises(StaleCacheError, match="donated"):
        session.prefixes.match(session.cache, HERE, session.model.identity)
