"""Receipts that do not fit and callbacks that fail: refused, and nothing is lost."""

import dataclasses
import functools

import numpy as np
import pytest
import toy

import hybridcache_jax as hc
from hybridcache_jax import Form, LeaseError, Verdict
from hybridcache_jax.testing.audit import violations

P = toy.P


@functools.cache
def chain():
    """A window and a full layer in blocks of 4, bit for bit what a cold run leaves."""
    return toy.model((toy.window(3), toy.FULL), blocks=4, style="chain", stored=24)


def in_doubt():
    """A session, a lease inside a block, and what is reported of it."""
    session = toy.Session(chain())
    plan = session.match(P)
    session.cache, lease = session.prefixes.acquire(session.cache, plan, deadline=1)
    session.feed(lease, P[:6])
    (late,) = session.prefixes.overdue(session.cache)
    return session, lease, late


@pytest.mark.parametrize(
    "call",
    [
        lambda prefixes, cache, late: prefixes.fork(cache, late),
        lambda prefixes, cache, late: prefixes.reorder(cache, [late], [0, 0]),
        lambda prefixes, cache, late: prefixes.select(cache, [late], [0]),
        lambda prefixes, cache, late: prefixes.settle(cache, [late], [5]),
        lambda prefixes, cache, late: prefixes.rewind(cache, late, 5),
        lambda prefixes, cache, late: prefixes.publish(cache, late),
        lambda prefixes, cache, late: prefixes.release(cache, late),
    ],
    ids=["fork", "reorder", "select", "settle", "rewind", "publish", "release"],
)
def test_what_is_said_of_a_lease_in_doubt_is_no_lease(call):
    """It tells which row, not what the row was admitted with."""
    session, lease, late = in_doubt()
    with pytest.raises(ValueError, match="no lease"):
        call(session.prefixes, session.cache, late)
    session.feed(lease, P[6:7])
    session.release(lease)
    session.answer(P)


@pytest.mark.parametrize("row", [99, 4, -1, -3, 2**31 - 1])
def test_a_row_outside_of_the_table_is_nobodys(row):
    """Neither the last one by clipping nor another one by wrapping."""
    session = toy.Session(chain())
    session.store(P)
    leases = [session.admit(P) for _ in range(session.model.rows)]
    for lease in leases:
        wrong = dataclasses.replace(lease, row=row)
        for publish in (False, True):
            with pytest.raises(LeaseError):
                session.prefixes.release(session.cache, wrong, publish=publish)
    assert not violations(session.cache)
    for lease in leases:
        session.feed(lease, P[lease.plan.start :])


def tiered(**options):
    """A session of which everything lies in the outer tier."""
    some = chain()
    tier = hc.HostTier(some.plan, budget="1MiB")
    session = toy.Session(some, tier=tier, **options)
    session.store(P)
    for form in (Form.FULL_KV, Form.SWA_WINDOW):
        session.evict(form)
    return session


def test_a_clock_that_fails_measures_nothing_and_loses_nothing():
    session = tiered(clock=iter([0.0]).__next__, cost=hc.CostModel(1.0, 0.0))
    before = session.prefixes.cost
    session.prefixes.load(session.cache, session.match([*P, 0]))
    cache, (report,) = session.prefixes.poll(session.cache)
    session.put(cache)
    assert report.ready
    assert session.prefixes.cost == before
    session.answer([*P, 0])


def test_a_plan_of_another_scope_is_not_loaded():
    session = tiered()
    plan = session.match([*P, 0])
    assert plan.verdict == Verdict.NEEDS_IO
    session.prefixes.set_scope(session.model.identity, "session")
    with pytest.raises(LeaseError, match="scope"):
        session.prefixes.load(session.cache, plan)


def test_more_room_than_there_is_and_what_is_no_number():
    session = toy.Session(chain())
    session.store(P)
    count = len(session.model.plan.blocks)
    for wrong in (1.5, float("nan"), -1, "1"):
        with pytest.raises(ValueError, match="whole number"):
            session.prefixes.make_room(session.cache, [wrong] * count)
        with pytest.raises(ValueError, match="whole number"):
            session.prefixes.shrink(session.cache, wrong)
    session.put(session.prefixes.make_room(session.cache, [2**40] * count))
    free = [int(table.num_free) for table in session.cache.tables]
    assert free == list(session.model.plan.blocks)
    session.answer(P)


def test_lengths_and_deadlines_are_whole_numbers():
    session = toy.Session(chain())
    lease = session.admit([])
    session.feed(lease, P[:6])
    for wrong in (5.9, "5", None):
        with pytest.raises(ValueError, match="length must be a whole"):
            session.prefixes.rewind(session.cache, lease, wrong)
        with pytest.raises(ValueError, match="length must be a whole"):
            session.prefixes.settle(session.cache, [lease], [wrong])
    with pytest.raises(ValueError, match="whole"):
        session.prefixes.renew(session.cache, lease, 1.5)
    session.put(session.prefixes.renew(session.cache, lease, np.int64(5)))
    session.feed(lease, P[6:])
