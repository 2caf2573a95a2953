"""K23: eviction, pins and clocks.

Nothing that is pinned is evicted; after any eviction what a prompt finds is complete,
or the plan says what is absent; nothing stays that no prefix claims; an eviction that
is interrupted between its phases is settled without a wrong or a lost block.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import (
    Form,
    LeaseError,
    Reason,
    ReusePolicy,
    Verdict,
    eviction,
)
from hybridcache_jax.codes import Stage
from hybridcache_jax.points import Point
from hybridcache_jax.testing import faults

PROMPTS = (
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4],
    [3, 1, 4, 1, 5, 9, 2, 6, 0, 0, 0, 0, 1, 1, 1, 1],
    [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5],
)
ACTS = st.lists(
    st.tuples(st.sampled_from(["store", "evict", "room"]), st.integers(0, 30)),
    min_size=2,
    max_size=6,
)


def kept(session):
    """Per pool, ids of the blocks that a stored prefix holds."""
    return [
        set(np.flatnonzero(np.asarray(t.kept)).tolist()) for t in session.cache.tables
    ]


def claimed(session):
    """Per pool, ids of which the prompts find a claim that is true, by hand."""
    tables, found = session.cache.tables, [set() for _ in session.cache.tables]
    for prompt in PROMPTS:
        claims = session.match([*prompt, 0]).claims
        for pool, (ids, epochs) in enumerate(
            zip(claims.blocks, claims.epochs, strict=True)
        ):
            epoch = np.asarray(tables[pool].epoch)
            for block, seen in zip(ids.tolist(), epochs.tolist(), strict=True):
                if block < len(epoch) and epoch[block] == seen:
                    found[pool].add(block)
    return found


@pytest.mark.kind("K23")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=5)
@given(acts=ACTS)
def test_what_is_left_is_claimed_and_what_is_found_is_right(name, acts):
    session = toy.Session(toy.EVERY_KIND[name]())
    pools = session.model.plan.spec.pools
    for act, number in acts:
        if act == "store":
            session.store(PROMPTS[number % 3], each=bool(number % 2))
        elif act == "evict":
            session.evict(pools[number % len(pools)].form)
            assert kept(session) == claimed(session)
        else:
            room = [min(number // 2, count) for count in session.prefixes.plan.blocks]
            session.put(session.prefixes.make_room(session.cache, room))
            free = [int(table.num_free) for table in session.cache.tables]
            assert all(a >= b for a, b in zip(free, room, strict=True))
            assert kept(session) == claimed(session)
    for prompt in PROMPTS:
        plan = session.answer([*prompt, 7])
        if plan.verdict != Verdict.RESUMABLE:
            assert plan.reason != Reason.OK


def test_dead_weight_goes_before_what_can_be_resumed():
    """However young it is: a request that is over leaves what nobody finds."""
    session = toy.Session(toy.only_full(), policy=ReusePolicy("request"))
    prefixes, identity = session.prefixes, session.model.identity
    for request, prompt in ("1", PROMPTS[0]), ("2", PROMPTS[1]):
        plan = prefixes.match(session.cache, prompt, identity, request=request)
        lease = session.acquire(plan)
        session.feed(lease, prompt)
        session.release(lease)
    prefixes.end_request(plan)
    free = int(session.cache.tables[0].num_free)
    wanted = free + len(PROMPTS[1]) // 4
    session.put(prefixes.make_room(session.cache, [wanted]))
    assert int(session.cache.tables[0].num_free) == wanted
    older = [*PROMPTS[0], 7]
    again = prefixes.match(session.cache, older, identity, request="1")
    assert (again.verdict, again.length) == (Verdict.RESUMABLE, len(PROMPTS[0]))


@pytest.mark.parametrize("name", toy.marked(["fine", "csa", "sparse"], "fine"))
def test_a_form_whose_siblings_are_gone_goes_too(name):
    """Without its history a record is of no use: its windows and tails go at once."""
    session = toy.Session(toy.EVERY_KIND[name]())
    session.store(PROMPTS[0], each=True)
    assert any(kept(session))
    history = next(
        pool.form
        for pool in session.model.plan.spec.pools
        if pool.form in (Form.COMPRESSED_KV, Form.FULL_KV)
    )
    session.evict(history)
    assert kept(session) == [set() for _ in session.cache.tables]
    for counts in session.prefixes.account(session.cache).values():
        assert counts["free"] == counts["total"]


def test_dead_weight_stays_while_a_row_reads_it():
    session = toy.Session(toy.fine())
    session.store(PROMPTS[0])
    lease = session.admit([*PROMPTS[0], 7])
    for form in Form:
        session.evict(form)
    session.feed(lease, [*PROMPTS[0], 7][lease.plan.start :])
    session.check(lease, [*PROMPTS[0], 7])
    session.release(lease)
    assert session.answer([*PROMPTS[0], 7]).verdict == Verdict.RESUMABLE


@pytest.mark.parametrize("point", [Point.EVICTION_BEGUN, Point.EVICTION_FORGOTTEN])
@pytest.mark.parametrize("name", toy.marked(["fine", "csa"], "fine"))
def test_an_eviction_that_raises_half_way_costs_no_token(name, point):
    """The caller still has the value from before; claims may be gone, facts not."""
    session = toy.Session(toy.EVERY_KIND[name](), at=faults.Interrupt(point))
    session.store(PROMPTS[0])
    before = session.cache
    with pytest.raises(faults.InjectedError):
        session.evict(session.model.plan.spec.pools[0].form)
    assert session.cache is before
    session.answer([*PROMPTS[0], 7])
    session.put(session.prefixes.recover(session.cache))
    assert kept(session) == claimed(session)
    session.answer([*PROMPTS[0], 7])
    session.store(PROMPTS[0])
    assert session.answer([*PROMPTS[0], 7]).verdict == Verdict.RESUMABLE


@pytest.mark.parametrize("name", toy.marked(["fine", "csa"], "fine"))
def test_a_cache_between_the_phases_is_settled_by_recover(name):
    """Blocks about to go are nobody's to read, and are what they were afterwards."""
    session = toy.Session(toy.EVERY_KIND[name]())
    session.store(PROMPTS[0])
    prompt = [*PROMPTS[0], 7]
    want = session.match(prompt)
    assert want.verdict == Verdict.RESUMABLE
    begun = [
        eviction.begin(table, np.int32(99), np.zeros(len(table.stage), bool))[0]
        for table in session.cache.tables
    ]
    session.put(dataclasses.replace(session.cache, tables=tuple(begun)))
    assert session.match(prompt).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(want)
    session.put(session.prefixes.recover(session.cache))
    stages = {int(s) for table in session.cache.tables for s in np.asarray(table.stage)}
    assert stages <= {Stage.FREE, Stage.SEALED}
    assert session.answer(prompt).length == want.length


def test_b86_a_pinned_record_is_skipped_and_can_go_afterwards():
    """A row resumes the oldest record while space is needed: the other ones go."""
    session = toy.Session(toy.only_full())
    for prompt in PROMPTS:
        session.store(prompt)
    lease = session.admit([*PROMPTS[2], 7])
    assert lease.plan.length == 12
    total = session.prefixes.plan.blocks[0]
    session.put(session.prefixes.make_room(session.cache, [total]))
    (counts,) = session.prefixes.account(session.cache).values()
    assert (counts["pinned"], counts["free"]) == (3, total - 3)
    assert min(np.asarray(session.cache.tables[0].pins).tolist()) == 0
    # No live block is handed out: another row fills what is free.
    other = session.admit([])
    session.feed(other, [9] * 24)
    session.check(lease, PROMPTS[2])
    assert session.answer([*PROMPTS[2], 7]).length == 12
    session.release(lease, publish=False)
    session.release(other, publish=False)
    session.put(session.prefixes.make_room(session.cache, [total]))
    (counts,) = session.prefixes.account(session.cache).values()
    assert counts["free"] == total
    assert min(np.asarray(session.cache.tables[0].pins).tolist()) == 0


@pytest.mark.parametrize("year", [0.0, 4e9])
def test_b87_no_clock_decides_what_is_valid_or_immortal(year, monkeypatch):
    """One record's age is missing, another's lies ahead, the clocks have moved back."""
    session = toy.Session(toy.only_full())
    prompts = [[n] * 8 for n in (1, 2, 3)]
    for prompt in prompts:
        session.store(prompt)
    monkeypatch.setattr("time.time", lambda: year)
    (table,) = session.cache.tables
    blocks = [session.match([*p, 7]).claims.blocks[0].tolist() for p in prompts]
    used = np.array(table.used)
    used[blocks[0]] = 0
    used[blocks[1]] = np.iinfo(np.int32).max
    aged = dataclasses.replace(table, used=jnp.asarray(used))
    session.put(
        dataclasses.replace(
            session.cache, tables=(aged,), clock=jnp.zeros_like(session.cache.clock)
        )
    )
    assert [session.match([*p, 7]).length for p in prompts] == [8, 8, 8]
    lease = session.admit([*prompts[0], 7])
    total = session.prefixes.plan.blocks[0]
    session.put(session.prefixes.make_room(session.cache, [total]))
    session.check(lease, prompts[0])
    assert [session.match([*p, 7]).length for p in prompts] == [8, 0, 0]
    session.release(lease, publish=False)
    session.put(session.prefixes.make_room(session.cache, [total]))
    assert int(session.cache.tables[0].num_free) == total


def test_what_another_row_still_pins_is_stored_again_with_its_siblings():
    """Dead weight that a row reads: another row stores the prefix, the first lets go.

    The index keeps the older claim, for it is true; so the block must be kept, too.
    """
    session, prompt = toy.Session(toy.fine()), [*toy.P, 1]
    session.store(toy.P, [1], each=True)
    reader = session.admit(prompt)
    for token in (1, 2):
        session.feed(reader, [token])
    session.evict(Form.SWA_WINDOW)
    plan = session.prefixes.cold_plan(list(toy.P), session.model.identity)
    cache, writer = session.prefixes.acquire(session.cache, plan)
    session.put(cache)
    for token in toy.P:
        session.feed(writer, [token])
        session.publish(writer)
    assert session.match(prompt).length == len(toy.P)
    session.release(reader, publish=False)
    session.release(writer, publish=False)
    found = session.match(prompt)
    assert (found.verdict, found.length) == (Verdict.RESUMABLE, len(toy.P))
    assert session.answer(prompt)
