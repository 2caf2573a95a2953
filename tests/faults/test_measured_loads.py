"""Loads measured by a clock of the test's own: what waiting is said to cost."""

import pytest
import toy
from tiered import Tiered

import hybridcache_jax as hc

P = [*toy.P[:12], 9, 7, 9, 3]


class Clock:
    """Seconds that pass when the test says so."""

    now = 100.0

    def __call__(self):
        return self.now


def waiting(clock, **options):
    session = Tiered(toy.only_full(), clock=clock, **options)
    session.store(P)
    session.move_out()
    return session


def test_a_load_that_comes_is_measured_from_ask_to_poll():
    clock = Clock()
    session = waiting(clock)
    before = session.prefixes.cost
    session.tier.delay(1)
    load = session.ask([*P, 0])
    clock.now += 2.0
    assert not session.poll()[0].ready
    assert session.prefixes.cost == before
    clock.now += 1.0
    assert session.poll()[0].ready
    nbytes = load.plan.bytes_to_load
    assert nbytes > 0
    assert session.prefixes.cost == before.after_load(nbytes, 3.0)
    # Only once.
    session.poll()
    assert session.prefixes.cost == before.after_load(nbytes, 3.0)


@pytest.mark.parametrize("ends", ["fails", "cancelled"])
def test_what_does_not_come_is_not_measured(ends):
    clock = Clock()
    session = waiting(clock)
    before = session.prefixes.cost
    if ends == "fails":
        session.tier.fail(OSError("no link"))
    load = session.ask([*P, 0])
    clock.now += 5.0
    if ends == "cancelled":
        session.prefixes.cancel(load)
    session.poll()
    session.tier.fail(None)
    assert session.prefixes.cost == before
    # The next one is measured from its own beginning.
    load = session.ask([*P, 0])
    clock.now += 1.0
    assert session.poll()[0].ready
    nbytes = load.plan.bytes_to_load
    assert session.prefixes.cost == before.after_load(nbytes, 1.0)


def test_a_slow_tier_is_not_waited_for_again():
    """What was measured decides: running the prompt is quicker."""
    clock = Clock()
    cost = hc.CostModel(seconds_per_token=1.0, seconds_per_byte=0.0)
    session = waiting(clock, cost=cost)
    load = session.ask([*P, 0])
    clock.now += 1000.0
    session.poll()
    session.release(session.acquire(session.match([*P, 0])), publish=False)
    session.move_out()
    assert load.plan.verdict == hc.Verdict.NEEDS_IO
    assert session.match([*P, 0]).verdict == hc.Verdict.NEEDS_FULL_RECOMPUTE


def test_without_a_clock_nothing_is_measured():
    session = waiting(None)
    before = session.prefixes.cost
    session.ask([*P, 0])
    assert session.poll()[0].ready
    assert session.prefixes.cost == before


def test_a_clock_that_was_set_back_measures_nothing_and_loses_nothing():
    clock = Clock()
    session = waiting(clock)
    before = session.prefixes.cost
    session.ask([*P, 0])
    clock.now -= 50.0
    assert session.poll()[0].ready
    assert session.prefixes.cost == before
    session.answer([*P, 0])


def test_a_clock_that_fails_leaves_no_load_behind():
    def broken():
        raise OSError("no clock")

    session = waiting(broken)
    plan = session.match([*P, 0])
    with pytest.raises(OSError, match="no clock"):
        session.prefixes.load(session.cache, plan)
    assert session.poll() == ()
