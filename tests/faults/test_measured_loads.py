"""Loads measured by a clock of the test's own: what waiting is said to cost."""

import pytest
import toy
from saved import Saved
from tiered import Tiered, grids

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


def in_both(**options):
    """Four blocks saved and moved out: memory holds one of them, the store all."""
    some = toy.only_full()
    session = Saved(some, budget=grids(some, 1, known=64), **options)
    session.store(P)
    session.save()
    session.move_out()
    return session


def test_what_the_store_brings_is_measured_as_such():
    clock = Clock()
    first = Saved(toy.only_full(), clock=clock)
    first.store(P)
    first.save()
    session = first.restarted()
    before = session.prefixes.cost
    plan = session.ask([*P, 0]).plan
    assert plan.bytes_from_store == plan.bytes_to_load > 0
    clock.now += 3.0
    assert session.poll()[0].ready
    after, nbytes = session.prefixes.cost, plan.bytes_to_load
    assert after == before.after_load(nbytes, 3.0, from_store=nbytes) != before
    assert after.seconds_per_byte == before.seconds_per_byte
    assert after.seconds_per_load == before.seconds_per_load


def test_every_block_is_priced_by_where_it_lies():
    block = toy.only_full().plan.spec.pools[0].block_bytes
    near, far = 2.0**-12, 2.0**-9
    rates = {"store_seconds_per_load": 2.0, "seconds_per_run": 8.0}
    cost = hc.CostModel(1.0, near, 0.5, far, **rates)
    clock = Clock()
    session = in_both(cost=cost, clock=clock)
    plan = session.match([*P, 0])
    assert plan.verdict == hc.Verdict.NEEDS_IO
    assert (plan.bytes_to_load, plan.bytes_from_store) == (4 * block, 3 * block)
    assert plan.seconds == 8.0 + 1.0 + 2.0 + block * near + 3 * block * far
    assert plan.alternatives[0].bytes_from_store == 3 * block
    assert plan.to_dict()["bytes_from_store"] == 3 * block
    assert "(400 B from host memory and 1.172 KiB from the store)" in plan.explain()
    # Where the store is too slow it goes on from the block that lies in memory.
    session.prefixes.cost = hc.CostModel(1.0, near, 0.5, far, 16.0)
    nearer = session.match([*P, 0])
    assert (nearer.verdict, nearer.length) == (hc.Verdict.NEEDS_IO, 4)
    assert (nearer.bytes_to_load, nearer.bytes_from_store) == (block, 0)
    session.prefixes.cost = cost
    session.ask([*P, 0])
    clock.now += 5.0
    assert session.poll()[0].ready
    learned = cost.after_load(4 * block, 5.0, from_store=3 * block)
    assert session.prefixes.cost == learned


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
