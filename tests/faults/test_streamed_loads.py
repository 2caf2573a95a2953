"""Loads of more than the window from a store: placed as they come, readable at the end.

The window is one block here, so every poll brings one.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import Saved
from tiered import FORMS

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.points import Point
from hybridcache_jax.testing import faults

P = list(toy.P)
CHAT = [*P, 9, 7, 9, 3]
OTHER = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]
ONE_BLOCK = 1


def after_restart(*prompts, some=None, **options):
    """Prompts lie in the store, nothing is known of them."""
    first = Saved(some or toy.fine())
    for prompt in prompts:
        first.store(prompt, each=True)
    first.save()
    return first.restarted(window=ONE_BLOCK, **options)


def loading(session):
    return sum(
        int((np.asarray(table.stage) == Stage.LOADING).sum())
        for table in session.cache.tables
    )


def free(session):
    return [int(table.num_free) for table in session.cache.tables]


def report_on(session, load):
    return next(report for report in session.poll() if report.load == load)


def half_way(session, prompt, **options):
    """A load of which some lies on the device and some is still to come."""
    load = session.ask([*prompt, 0], **options)
    for _ in range(2):
        assert not report_on(session, load).failed
    assert loading(session) == load.blocks
    return load


def test_a_load_comes_block_by_block_and_is_readable_at_once():
    session = after_restart(CHAT)
    waits = session.match([*CHAT, 0])
    load, left = session.ask([*CHAT, 0]), []
    while not (report := report_on(session, load)).ready:
        left.append(report.left)
        assert report.stage == LoadStage.READ
        # What lies on the device already is neither claimed nor kept.
        now = session.match([*CHAT, 0])
        assert (now.verdict, now.length) == (Verdict.NEEDS_IO, waits.length)
        assert not any(np.asarray(t.kept).any() for t in session.cache.tables)
        assert loading(session) == load.blocks
        # One in the window, and none that waits to be placed.
        staged = session.prefixes._outer.staging
        assert sum(map(len, staged._out)) == 1
        assert not any(staged._verified)
    assert left == list(range(load.blocks - 1, 0, -1))
    assert loading(session) == 0
    again = session.match([*CHAT, 0])
    assert (again.verdict, again.length) == (Verdict.RESUMABLE, waits.length)
    assert session.answer([*CHAT, 0]).start == waits.length


@pytest.mark.parametrize("end", ["damage", "error", "cancel", "deadline", "scope"])
def test_what_a_load_had_that_ends_half_way_is_given_back(end):
    session = after_restart(CHAT, OTHER)
    assert session.load_whole([*OTHER, 0]).ready
    before, room = toy.kept_bytes(session.cache), free(session)
    load = half_way(session, CHAT)
    ended = {
        "damage": LoadStage.READ,
        "error": LoadStage.READ,
        "deadline": LoadStage.DEADLINE,
        "scope": LoadStage.CANCELLED,
    }
    if end == "damage":
        for name, data in session.objects.objects.items():
            if name.startswith("packs/"):
                session.objects.objects[name] = bytes(len(data))
    elif end == "error":
        session.tier.fail(OSError("gone"))
    elif end == "cancel":
        session.prefixes.cancel(load)
    elif end == "deadline":
        clock = jnp.int32(load.deadline)
        session.cache = dataclasses.replace(session.cache, clock=clock)
    else:
        session.prefixes._outer.give_up(lambda key: True)
    reports = [
        r for _ in range(3) for r in session.poll() if r.load == load and r.failed
    ]
    assert [r.stage for r in reports] == ([ended[end]] if end in ended else [])
    assert loading(session) == 0
    assert free(session) == room
    assert toy.kept_bytes(session.cache) == before
    session.tier.fail(None)
    for prompt in (CHAT, OTHER):
        session.answer([*prompt, 0])


def test_who_makes_room_gets_what_a_load_had_that_was_given_up():
    session = after_restart(CHAT)
    session.prefixes.cancel(half_way(session, CHAT))
    assert loading(session)
    session.put(session.prefixes.make_room(session.cache, session.model.plan.blocks))
    assert free(session) == list(session.model.plan.blocks)


def test_room_is_made_beside_a_load_that_is_half_way():
    session = after_restart(CHAT, OTHER)
    assert session.load_whole([*OTHER, 0]).ready
    load, most = half_way(session, CHAT), session.model.plan.blocks
    session.put(session.prefixes.make_room(session.cache, most))
    assert loading(session) == load.blocks
    session.store([6, 6, 6, 6, 6, 6, 6, 6])
    while not report_on(session, load).ready:
        pass
    session.answer([*CHAT, 0])


def test_a_load_without_room_keeps_no_other_from_coming():
    """The window is free again, and the room is asked for before it is read again."""
    session = after_restart(CHAT, OTHER)
    load = session.ask([*CHAT, 0])
    sound = session.cache.tables
    short = dataclasses.replace(sound[-1], num_free=jnp.int32(load.blocks // 4))
    session.cache = dataclasses.replace(session.cache, tables=(*sound[:-1], short))
    for _ in range(3):
        cache, (report,) = session.prefixes.poll(session.cache)
        assert toy.unchanged(session.cache, cache)
        session.cache = cache
        assert (report.stage, report.failed) == (LoadStage.ROOM, False)
        assert not any(session.prefixes._outer.staging._out)
    session.cache = dataclasses.replace(session.cache, tables=sound)
    other = session.ask([*OTHER, 0])
    ended = []
    while len(ended) < 2:
        ended += [r.load for r in session.poll() if r.ready]
    assert set(map(id, ended)) == {id(load), id(other)}
    for prompt in (CHAT, OTHER):
        assert session.answer([*prompt, 0]).length >= 8


def test_of_two_loads_that_share_blocks_one_goes_on_without_the_other():
    longer = [*CHAT, 4, 4, 4, 4]
    session = after_restart(CHAT, longer)
    first, second = half_way(session, CHAT), session.ask([*longer, 0])
    session.poll()
    session.prefixes.cancel(first)
    ready = []
    while not ready:
        ready = [r for r in session.poll() if r.ready]
    assert ready[0].load == second
    assert loading(session) == 0
    assert session.answer([*longer, 0]).length >= len(CHAT)


def test_what_another_load_placed_counts_no_longer_than_that_load():
    """The first one ends in the poll in which the second one would be whole by it."""
    session = after_restart(CHAT, some=toy.only_full())
    first = half_way(session, CHAT, deadline=9)
    second = session.ask([*CHAT[:4], 0])
    clock = jnp.int32(first.deadline)
    session.cache = dataclasses.replace(session.cache, clock=clock)
    reports = {report.load.number: report for report in session.poll()}
    assert reports[first.number].stage == LoadStage.DEADLINE
    assert not reports[second.number].ready
    assert report_on(session, second).ready
    assert session.answer([*CHAT[:4], 0]).length == 4


@pytest.mark.parametrize(
    "point", [Point.LOAD_READ, Point.LOAD_VERIFIED, Point.LOAD_RECEIVED]
)
def test_a_poll_cut_short_between_two_batches_leaves_the_load_as_it_was(point):
    cut = faults.Interrupt(point, passes=10**6)
    session = after_restart(CHAT, at=cut)
    ready = len(CHAT) - len(CHAT) % session.model.grid
    load = half_way(session, CHAT)
    for _ in range(2):
        cut.passes = 0
        before = session.cache
        with pytest.raises(faults.InjectedError):
            session.poll()
        assert toy.unchanged(before, session.cache)
        assert loading(session) == load.blocks
        cut.passes = 10**6
        assert not report_on(session, load).failed
    cut.passes = 0
    with pytest.raises(faults.InjectedError):
        session.poll()
    session.prefixes.cancel(load)
    session.put(session.prefixes.recover(session.cache))
    assert loading(session) == 0
    assert session.load_whole([*CHAT, 0]).ready
    assert session.answer([*CHAT, 0]).length == ready


def test_a_cache_that_is_adopted_has_no_blocks_of_loads():
    """Whose loads they were is gone."""
    session = after_restart(CHAT)
    half_way(session, CHAT)
    claims = session.prefixes.saved_claims(session.cache)
    other = hc.PrefixCache(session.model.plan)
    cache = other.adopt(session.cache, claims)
    assert [int(table.num_free) for table in cache.tables] == list(
        session.model.plan.blocks
    )


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "poll", "poll", "late", "flip", "cancel"])
        | st.sampled_from(["store", "evict", "room", "restart", "answer"]),
        st.integers(0, 30),
    ),
    min_size=4,
    max_size=10,
)


@pytest.mark.kind("K15")
@pytest.mark.on_disk("K15")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=4)
@given(acts=ACTS, window=st.integers(1, 2000))
def test_whatever_comes_between_two_batches_every_answer_is_a_cold_runs(
    name, acts, window
):
    prompts = (CHAT, [*P[:8], 0, 0, 0, 0, 5], OTHER)
    session = Saved(toy.EVERY_KIND[name](), window=window)
    for prompt in prompts[:2]:
        session.store(prompt, each=True)
    session.save()
    session, loads = session.restarted(), []
    for act, number in acts:
        prompt = prompts[number % 3]
        if act == "ask" and session.match([*prompt, 0]).verdict == Verdict.NEEDS_IO:
            loads.append(session.ask([*prompt, 0]))
        elif act == "poll":
            for report in session.poll():
                if report.ready:
                    plan = report.load.plan
                    now = session.match([*plan.claims.tokens[: plan.length], 0])
                    assert now.verdict == Verdict.RESUMABLE
        elif act == "late":
            session.tier.delay(number % 4)
        elif act == "flip":
            names = sorted(n for n in session.objects.objects if n.startswith("packs"))
            name = names[number % len(names)]
            data = bytearray(session.objects.objects[name])
            data[number * 7919 % len(data)] ^= 1 << number % 8
            session.objects.objects[name] = bytes(data)
        elif act == "cancel" and loads:
            session.prefixes.cancel(loads.pop(number % len(loads)))
        elif act == "store":
            session.store(prompt)
        elif act == "evict":
            session.evict(FORMS[number % len(FORMS)])
        elif act == "room":
            room = [min(number, count) for count in session.model.plan.blocks]
            session.put(session.prefixes.make_room(session.cache, room))
        elif act == "restart":
            session, loads = session.restarted(), []
        elif act == "answer":
            if session.match([*prompt, number % 10]).verdict == Verdict.NEEDS_IO:
                session.load_whole([*prompt, number % 10])
            session.answer([*prompt, number % 10])
    session.prefixes._outer.give_up(lambda key: True)
    session.poll()
    assert loading(session) == 0
