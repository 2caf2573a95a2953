"""Loads that came: what ends their protection, and what does not.

A request may vanish, change its mind or be one of many that wait for the same blocks.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from tiered import grids, only_full

import hybridcache_jax as hc
from hybridcache_jax import Form, Verdict
from hybridcache_jax.offload.loads import LOAD_TICKS, LoadStage

P = [*toy.P[:12], 9, 7, 9, 3]


def waiting_in_tier(**options):
    session = only_full(**options)
    session.store(P)
    session.move_out()
    return session


def at(session, tick):
    session.cache = dataclasses.replace(session.cache, clock=jnp.int32(tick))


def leased(session, tokens):
    """A request that gets its row and is over."""
    lease = session.acquire(session.match(tokens))
    session.release(lease, publish=False)
    return lease.plan.length


def kept(session):
    """Stored blocks that an eviction of everything leaves."""
    session.evict(Form.FULL_KV)
    return int(np.asarray(session.cache.tables[0].kept).sum())


def test_a_load_that_nobody_acquires_protects_nothing_past_its_deadline():
    registry = hc.MemoryRegistry()
    session = waiting_in_tier(metrics=hc.Metrics(registry))
    load = session.ask([*P, 0], deadline=3)
    assert session.poll()[0].ready
    at(session, load.deadline - 1)
    assert session.poll() == ()
    assert kept(session) == 4
    at(session, load.deadline)
    assert session.match([*P, 0]).verdict == Verdict.RESUMABLE
    # Whether or not anybody polls meanwhile.
    assert kept(session) == 0
    (report,) = session.poll()
    assert (report.load, report.stage, report.failed) == (load, LoadStage.LAPSED, True)
    assert session.poll() == ()
    assert registry.value("hybridcache_load_failures_total") == 0
    session.answer([*P, 0])


def test_no_load_is_without_a_deadline():
    session = waiting_in_tier()
    now, plan = int(session.cache.clock), session.match([*P, 0])
    assert session.ask([*P, 0]).deadline == now + LOAD_TICKS
    for ticks in (0, -5, 2**40):
        with pytest.raises(ValueError, match="expected 1 to"):
            session.prefixes.load(session.cache, plan, deadline=ticks)


def test_places_that_a_late_load_waits_for_are_given_to_others():
    """The tier has three places and the load two of them, until its deadline."""
    session = only_full(budget=grids(toy.only_full(), 3))
    session.store(P[:8])
    session.move_out()
    load = session.ask([*P[:8], 0], deadline=1)
    at(session, load.deadline)
    session.store([2, 7, 1, 8, 2, 8, 1, 8])
    session.move_out()
    assert session.match([2, 7, 1, 8, 2, 8, 1, 8, 0]).length == 8
    assert session.poll()[0].stage == LoadStage.DEADLINE


def test_a_lease_on_a_shorter_prompt_ends_the_load():
    session = waiting_in_tier()
    assert session.load([*P, 0]).ready
    # Another request that shares the beginning does not.
    assert leased(session, [*P[:8], 0, 0]) == 8
    assert kept(session) == 4
    assert leased(session, P[:9]) == 8
    assert kept(session) == 0


def test_a_lease_ends_one_of_equal_loads():
    session = waiting_in_tier()
    for last in (1, 2):
        session.ask([*P, last])
    assert all(report.ready for report in session.poll())
    assert leased(session, [*P, 1]) == 16
    assert kept(session) == 4
    assert leased(session, [*P, 2]) == 16
    assert kept(session) == 0


def test_a_lease_ends_the_load_that_is_closest():
    session = waiting_in_tier()
    for prompt in ([*P[:8], 0], [*P, 0]):
        session.ask(prompt)
    assert all(report.ready for report in session.poll())
    assert leased(session, [*P, 0]) == 16
    assert kept(session) == 2
    assert leased(session, [*P[:8], 0]) == 8
    assert kept(session) == 0


def of_requests(session, *names):
    """Each request stores the prompt, it moves out and is asked back; the plans."""
    prefixes, me = session.prefixes, session.model.identity

    def match(name):
        return prefixes.match(session.cache, [*P, 0], me, request=name)

    for name in names:
        lease = session.acquire(match(name))
        session.feed(lease, P)
        session.release(lease)
    session.move_out()
    plans = {name: match(name) for name in names}
    for plan in plans.values():
        prefixes.load(session.cache, plan)
    return plans


def test_any_lease_of_a_request_ends_its_loads_and_no_other():
    session = only_full(policy=hc.ReusePolicy("request"))
    of_requests(session, "a", "b")
    assert all(report.ready for report in session.poll())
    me = session.model.identity
    for name, left in (("c", 8), ("a", 4), ("b", 0)):
        plan = session.prefixes.cold_plan([5, 5], me, request=name)
        session.release(session.acquire(plan), publish=False)
        assert kept(session) == left


@pytest.mark.parametrize("comes", [False, True])
def test_a_load_ends_with_its_request(comes):
    session = only_full(policy=hc.ReusePolicy("request"))
    plans = of_requests(session, "a", "b")
    if comes:
        assert all(report.ready for report in session.poll())
    session.prefixes.end_request(plans["a"])
    reports = {r.load.plan.key.owner: r for r in session.poll()}
    assert (reports["a"].stage, reports["a"].failed) == (LoadStage.CANCELLED, True)
    assert comes or reports["b"].ready
    assert kept(session) == 4
    session.prefixes.set_scope(session.model.identity, "off")
    assert session.poll()[0].stage == LoadStage.CANCELLED
    assert kept(session) == 0
    assert session.poll() == ()
