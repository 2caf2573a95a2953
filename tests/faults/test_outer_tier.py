"""K10 to K16 on the tier in host memory: what comes back is right, or it does not.

Blocks that are evicted move to the tier; loads are verified before anything of the live
cache changes; whatever is cut short, fails, comes late or comes damaged, every answer
is that of a cold run.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from tiered import FORMS, Tiered, grids, only_full

import hybridcache_jax as hc
from hybridcache_jax import Form, Reason, Verdict
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.offload.payload import Payload, layout_refusal
from hybridcache_jax.offload.transfer import LABELS, Arrival
from hybridcache_jax.points import Point
from hybridcache_jax.testing import faults

P = list(toy.P)
CHAT = [*P, 9, 7, 9, 3]
OTHER = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]
QUICK = (Point.EVICTION_COPIED, Point.LOAD_VERIFIED, Point.RELEASE_PUBLISHED)
POINTS = [
    point if point in QUICK else pytest.param(point, marks=pytest.mark.slow)
    for point in Point
]


@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
def test_what_moved_out_comes_back_bit_for_bit(name):
    session = Tiered(toy.EVERY_KIND[name]())
    session.store(CHAT, each=True)
    ready = session.match([*CHAT, 0])
    assert ready.verdict == Verdict.RESUMABLE
    before = sorted(toy.kept_bytes(session.cache).values())
    session.move_out()
    assert not any(np.asarray(t.kept).any() for t in session.cache.tables)
    waits = session.match([*CHAT, 0])
    assert (waits.verdict, waits.length) == (Verdict.NEEDS_IO, ready.length)
    assert session.load([*CHAT, 0]).ready
    again = session.match([*CHAT, 0])
    assert (again.verdict, again.length) == (Verdict.RESUMABLE, ready.length)
    assert set(toy.kept_bytes(session.cache).values()) <= set(before)
    session.answer([*CHAT, 0])


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["store", "evict", "ask", "poll", "answer", "room", "late"]),
        st.integers(0, 30),
    ),
    min_size=3,
    max_size=10,
)


@pytest.mark.kind("K15")
@pytest.mark.outer_tier("K15")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=6)
@given(acts=ACTS, tight=st.booleans())
def test_any_order_of_saves_loads_and_evictions_gives_cold_states(name, acts, tight):
    """A prompt waits, then resumes; it never waits again for what is protected."""
    some = toy.EVERY_KIND[name]()
    session = Tiered(some, budget=grids(some, 2) if tight else "1MiB")
    prompts = (CHAT, [*P[:6], 0, 0, 0, 0], OTHER)
    for act, number in acts:
        prompt = prompts[number % 3]
        if act == "store":
            session.store(prompt, each=bool(number % 2))
        elif act == "evict":
            session.evict(FORMS[number % len(FORMS)])
        elif act == "late":
            session.tier.delay(number % 4)
        elif act == "room":
            room = [min(number, count) for count in session.model.plan.blocks]
            session.put(session.prefixes.make_room(session.cache, room))
        elif act == "ask" and session.match(prompt).verdict == Verdict.NEEDS_IO:
            session.ask(prompt)
        elif act == "poll":
            for report in session.poll():
                if report.ready:
                    plan = report.load.plan
                    now = session.match([*plan.claims.tokens[: plan.length], 0])
                    assert now.verdict == Verdict.RESUMABLE
                    assert now.length >= plan.length
        elif act == "answer":
            session.answer([*prompt, number % 10])
        assert_sound(session)


def assert_sound(session):
    """Every place that is claimed holds something; what is kept is claimed."""
    for table, count in zip(
        session.tier.places, session.model.plan.blocks, strict=True
    ):
        held = table.stage == Stage.ON_DISK
        assert (table.form[held] == Form.ON_DISK_PREFIX).all()
        assert (table.form[~held & (table.stage == Stage.FREE)] == Form.NONE).all()
        assert count
    assert session.tier.nbytes == sum(
        int((table.stage == Stage.ON_DISK).sum()) * pool.block_bytes
        for table, pool in zip(
            session.tier.places, session.model.plan.spec.pools, strict=True
        )
    )


@pytest.mark.kind("K13")
@pytest.mark.outer_tier("K13")
@pytest.mark.parametrize("point", POINTS)
@settings(max_examples=2)
@given(passes=st.integers(0, 3))
def test_a_call_cut_short_anywhere_leaves_the_old_the_new_or_a_miss(point, passes):
    """The caller goes on with the value it had, with or without ``recover``."""
    cut = faults.Interrupt(point, passes=10**6)
    session = Tiered(toy.fine(), at=cut)
    session.store(OTHER)
    for recovers in (True, False):
        cut.passes, done = passes, 0
        while done < 4:
            try:
                cut_short(session, done)
                done += 1
            except faults.InjectedError:
                if recovers:
                    session.put(session.prefixes.recover(session.cache))
        cut.passes = 10**6
        release_all(session)
        for prompt in (CHAT, OTHER):
            session.answer([*prompt, 0])


def cut_short(session, act):
    if act == 0:
        session.store(CHAT, each=True)
    elif act == 1:
        session.move_out()
    elif act == 2:
        session.answer([*CHAT, 1])
    else:
        session.store([*OTHER, 3, 3])


def release_all(session):
    """Rows whose holder was cut short are given back by hand."""
    rows = session.cache.rows
    for row in np.flatnonzero(np.asarray(rows.live)).tolist():
        plan = session.prefixes.cold_plan([0], session.model.identity)
        session.release(hc.Lease(row, int(rows.ticket[row]), plan), publish=False)


@pytest.mark.kind("K14")
@pytest.mark.outer_tier("K14")
@settings(max_examples=6)
@given(bit=st.integers(0, 10**6), tokens=st.integers(1, len(CHAT)))
def test_any_flipped_bit_is_found_and_changes_nothing(bit, tokens):
    session = only_full()
    session.store(CHAT)
    session.move_out()
    session.tier.damage(faults.flipped(bit))
    prompt = [*CHAT[:tokens], 0]
    if session.match(prompt).verdict == Verdict.NEEDS_IO:
        before, stored = session.cache, session.tier.nbytes
        report = session.load(prompt)
        assert (report.stage, report.failed) == (LoadStage.DIGEST, True)
        assert toy.unchanged(before, session.cache)
        # The block is set aside for good, and is not asked for again.
        assert session.tier.nbytes < stored
        assert session.match(prompt).length < report.load.plan.length
    session.tier.damage(None)
    session.answer(prompt)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (faults.torn, "not those that were stored"),
        (faults.other_layout("float16"), "expected"),
        (lambda payload: Payload({}, payload.digest), "planes"),
        (
            lambda payload: Payload.sealed(
                {name: plane[:, :-1] for name, plane in payload.planes.items()}
            ),
            "expected",
        ),
    ],
    ids=["torn", "dtype", "planes", "length"],
)
def test_damage_is_named_and_contained(damage, why):
    session = only_full()
    session.store(CHAT)
    session.move_out()
    session.tier.damage(damage)
    before = session.cache
    report = session.load([*CHAT, 0])
    assert report.failed
    assert why in report.why
    assert toy.unchanged(before, session.cache)
    plan = session.match([*CHAT, 0])
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert plan.reason == Reason.QUARANTINED
    session.tier.damage(None)
    session.answer([*CHAT, 0])


def test_a_tier_that_fails_or_is_late_is_a_report_and_not_an_error():
    session = only_full()
    session.store(CHAT)
    session.move_out()
    session.tier.fail(OSError("gone"))
    report = session.load([*CHAT, 0])
    assert (report.stage, report.failed) == (LoadStage.READ, True)
    assert "OSError: gone" in report.why
    session.tier.fail(None)
    session.tier.delay(2)
    load = session.ask([*CHAT, 0])
    waits = [session.poll()[0] for _ in range(2)]
    assert [report.stage for report in waits] == [LoadStage.READ, LoadStage.REGISTERED]
    assert waits[1].load == load
    assert session.poll() == ()


def test_what_the_tier_no_longer_has_is_not_asked_for_again():
    """One block of four vanishes behind the facts: the next plan ends before it."""
    session = only_full()
    session.store(CHAT)
    session.move_out()
    (third,) = np.flatnonzero(session.tier.places[0].first == 8)
    del session.tier._payloads[0][int(third)]
    before = session.cache
    report = session.load([*CHAT, 0])
    assert (report.stage, report.failed) == (LoadStage.READ, True)
    assert "no longer has" in report.why
    assert toy.unchanged(before, session.cache)
    assert session.match([*CHAT, 0]).length == 8
    assert session.answer([*CHAT, 0]).length == 8


def test_a_deadline_in_ticks_and_a_cancelled_load():
    session = only_full()
    session.store(CHAT)
    session.move_out()
    session.tier.delay(100)
    load, now = session.ask([*CHAT, 0], deadline=3), int(session.cache.clock)
    for tick in range(3):
        session.cache = dataclasses.replace(session.cache, clock=jnp.int32(now + tick))
        assert not session.poll()[0].failed
    session.cache = dataclasses.replace(session.cache, clock=jnp.int32(now + 3))
    (report,) = session.poll()
    assert (report.load, report.stage) == (load, LoadStage.DEADLINE)
    session.tier.delay(0)
    session.prefixes.cancel(session.ask([*CHAT, 0]))
    assert session.poll() == ()
    with pytest.raises(ValueError, match="NEEDS_IO"):
        session.prefixes.load(session.cache, session.match(OTHER))


def test_a_place_that_is_handed_out_again_brings_its_new_content():
    """A load has read a block and waits for another; then nobody claims them any more.

    The places take other blocks, which a second load asks for.
    """
    session = only_full()
    session.store(P[:8])
    session.move_out()
    session.tier.delay(1)
    first = session.ask([*P[:8], 0])
    assert session.poll()[0].stage == LoadStage.READ
    lease = session.acquire(session.prefixes.cold_plan(P[:8], session.model.identity))
    session.feed(lease, P[:8])
    session.publish(lease)
    session.put(session.prefixes.recover(session.cache))
    session.store(OTHER[:8])
    session.move_out()
    second = session.ask([*OTHER[:8], 0])
    old, new = (np.unique(load.plan.claims.blocks[0]) for load in (first, second))
    assert old.tolist() == new.tolist()
    stages = {report.load.number: report.stage for report in session.poll()}
    assert stages == {
        first.number: LoadStage.READ,
        second.number: LoadStage.REGISTERED,
    }
    assert session.answer([*OTHER[:8], 0]).length == 8


def test_a_load_whose_places_went_to_make_room_is_a_miss():
    session = only_full()
    session.store(P[:8])
    session.move_out()
    load = session.ask([*P[:8], 0])
    lease = session.acquire(session.prefixes.cold_plan(P[:8], session.model.identity))
    session.feed(lease, P[:8])
    session.publish(lease)
    # The pool is full: making room drops what nobody claims any more.
    number = 0
    while int(session.cache.tables[0].num_free) > 1:
        session.store([number % 9, number // 9, *OTHER[:6]])
        number += 1
    before = int(np.asarray(session.cache.tables[0].kept).sum())
    (report,) = session.poll()
    assert (report.load, report.stage, report.failed) == (load, LoadStage.READ, True)
    assert "left the tier" in report.why
    assert int(np.asarray(session.cache.tables[0].kept).sum()) < before
    assert session.match([*P[:8], 0]).verdict == Verdict.RESUMABLE


def test_what_a_pending_plan_needs_is_not_evicted():
    """Half of it lies on the device: nothing else may push that out."""
    session = only_full()
    session.store(CHAT)
    table = session.cache.tables[0]
    first = int(np.flatnonzero(np.asarray(table.first) == 0)[0])
    session.move_out()
    lease = session.acquire(session.prefixes.cold_plan(P[:4], session.model.identity))
    session.feed(lease, P[:4])  # a cold run brings the first block back
    session.release(lease)
    session.tier.delay(1)
    plan = session.match([*CHAT, 0])
    assert plan.verdict == Verdict.NEEDS_IO
    mine = plan.claims.blocks[0]
    assert (mine < session.model.plan.blocks[0]).tolist() == [True, *[False] * 3], first
    session.prefixes.load(session.cache, plan)
    session.evict(Form.FULL_KV)
    assert session.match([*P[:4], 0]).verdict == Verdict.RESUMABLE
    assert not session.poll()[0].ready
    assert session.poll()[0].ready
    session.evict(Form.FULL_KV)  # registered, and still protected
    lease = session.acquire(session.match([*CHAT, 0]))
    assert lease.plan.length == len(CHAT)
    session.release(lease, publish=False)
    session.evict(Form.FULL_KV)
    assert session.match([*CHAT, 0]).verdict == Verdict.NEEDS_IO


def test_a_load_for_another_picture_is_not_what_a_lease_protects():
    """Equal tokens, two pictures: each load is let go by a lease on its own."""
    session = only_full()

    def match(picture):
        asked, me = [*P[:8], 0], session.model.identity
        spans = [(1, 3, picture)]
        return session.prefixes.match(session.cache, asked, me, contents=spans)

    for picture in "ab":
        lease = session.acquire(match(picture))
        session.feed(lease, P[:8])
        session.release(lease)
    session.move_out()
    for picture in "ab":
        session.prefixes.load(session.cache, match(picture))
    assert all(report.ready for report in session.poll())
    lease = session.acquire(match("b"))
    session.release(lease, publish=False)
    session.evict(Form.FULL_KV)
    verdicts = [match(picture).verdict for picture in "ab"]
    assert verdicts == [Verdict.RESUMABLE, Verdict.NEEDS_IO]


@pytest.mark.kind("K16")
@pytest.mark.outer_tier("K16")
@settings(max_examples=4)
@given(count=st.integers(2, 6), late=st.integers(0, 3))
def test_equal_requests_load_once(count, late):
    session = only_full()
    session.store(CHAT)
    session.move_out()
    session.tier.delay(late)
    loads = [session.ask([*CHAT, number]) for number in range(count)]
    reads = [0]
    read = session.tier.read

    def counted(pool, place):
        payload = read(pool, place)
        reads[0] += payload is not None
        return payload

    session.tier.read = counted
    ready = []
    while len(ready) < count:
        ready += [report.load for report in session.poll() if report.ready]
    assert sorted(ready, key=lambda load: load.number) == loads
    assert len(np.flatnonzero(np.asarray(session.cache.tables[0].kept))) == 4
    assert reads[0] <= 4 + 3 * (late > 0) * count
    for number in range(count):
        assert session.answer([*CHAT, number]).verdict == Verdict.RESUMABLE


@pytest.mark.kind("K10")
@pytest.mark.outer_tier("K10")
@settings(max_examples=10)
@given(tokens=st.integers(1, len(CHAT)))
def test_no_tenant_finds_what_another_moved_out(tokens):
    session = only_full()
    a, b = (session.model.identity.within(name) for name in "ab")
    plan = session.prefixes.match(session.cache, CHAT[:tokens], a)
    lease = session.acquire(plan)
    session.feed(lease, CHAT[:tokens])
    session.release(lease)
    unseen = session.prefixes.match(session.cache, [*CHAT[:tokens], 0], b).to_dict()
    session.move_out()
    asked = [*CHAT[:tokens], 0]
    assert session.prefixes.match(session.cache, asked, b).to_dict() == unseen
    mine = session.prefixes.match(session.cache, asked, a)
    assert mine.length == tokens - tokens % 4


@pytest.mark.outer_tier("B41")
def test_b41_a_salt_holds_on_the_way_out_and_back():
    session = only_full()
    tenant = session.model.identity.within
    plan = session.prefixes.match(session.cache, P[:8], tenant("a"))
    lease = session.acquire(plan)
    session.feed(lease, P[:8])
    session.release(lease)
    session.move_out()
    found = [
        session.prefixes.match(session.cache, P[:9], tenant(name)).length
        for name in ("a", "b", None, "")
    ]
    assert found == [8, 0, 0, 0]


@pytest.mark.outer_tier("B44")
@pytest.mark.parametrize(
    ("stored", "asked"),
    [("int32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")],
)
def test_b44_another_dtype_is_refused_and_never_cast(stored, asked):
    entry = hc.Entry((hc.Plane("k", 1, 1, asked),))
    spec = hc.CacheSpec.from_layers([hc.LayerSpec(global_=hc.Entries(entry))])
    (pool,) = spec.pools
    dtype = np.dtype(stored)
    payload = Payload.sealed({"k": np.full((1, 32, 1), 16777217, dtype)})
    refusal = layout_refusal(pool, "gpu", payload)
    assert refusal is not None
    assert stored in refusal
    assert asked in refusal
    right = Payload.sealed({"k": np.zeros((1, 32, 1), np.dtype(asked))})
    assert layout_refusal(pool, "gpu", right) is None


@pytest.mark.outer_tier("B44")
def test_b44_a_block_of_another_dtype_is_a_miss_with_its_reason():
    """Read where it waits for I/O: refused before anything changes, then FULL."""
    registry = hc.MemoryRegistry()
    session = only_full(metrics=hc.Metrics(registry))
    session.store(CHAT)
    session.move_out()

    def cast(payload):
        wider = {name: x.astype(np.float64) for name, x in payload.planes.items()}
        return Payload.sealed(wider)

    session.tier.damage(cast)
    before = session.cache
    report = session.load([*CHAT, 0])
    assert report.failed
    assert "float64" in report.why
    assert toy.unchanged(before, session.cache)
    plan = session.match([*CHAT, 0])
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_FULL_RECOMPUTE, 0)
    assert plan.reason == Reason.QUARANTINED
    assert registry.value("hybridcache_load_failures_total", stage="layout") == 1


def test_every_stage_at_which_a_load_can_fail_is_counted():
    registry = hc.MemoryRegistry()
    session = only_full(metrics=hc.Metrics(registry))
    session.store(CHAT)
    session.move_out()
    prompt = [*CHAT, 0]
    session.tier.fail(OSError("the cable"))
    assert session.load(prompt).failed
    session.tier.fail(None)
    session.tier.delay(10**6)
    load = session.ask(prompt, deadline=1)
    session.answer([9, 9])
    assert {r.stage for r in session.poll() if r.load == load} == {LoadStage.DEADLINE}
    session.tier.delay(0)
    session.tier.damage(faults.flipped(5))
    assert session.load(prompt).failed
    counted = {
        stage: registry.value("hybridcache_load_failures_total", stage=stage)
        for stage in ("read", "deadline", "digest")
    }
    assert counted == {"read": 1, "deadline": 1, "digest": 1}


@pytest.mark.outer_tier("B52")
@pytest.mark.parametrize("point", POINTS)
def test_b52_seven_tokens_saved_over_five_cut_short_anywhere(point):
    """Afterwards the old 5, the new 7, or a miss; what is resumed is right."""
    cut = faults.Interrupt(point, passes=10**6)
    session = Tiered(toy.fine(), at=cut)
    session.store(P[:5])
    session.move_out()
    cut.passes = 0
    try:
        session.answer(P[:6])
        session.store(P[:7])
        session.move_out()
        cut.passes = 10**6
    except faults.InjectedError:
        release_all(session)
    assert session.match(P[:9]).claimed_length in (0, 5, 7)
    session.answer(P[:9])


@pytest.mark.outer_tier("B53")
@pytest.mark.parametrize("order", ["aabb", "abab", "abba", "bbaa", "baba", "baab"])
def test_b53_two_writers_of_one_prefix_in_any_order(order):
    session = only_full()
    leases, steps = {}, {"a": 0, "b": 0}
    for writer in "ab":
        leases[writer] = session.admit(P[:8])
        session.feed(leases[writer], P[:8])
    for writer in order:
        if steps[writer] == 0:
            session.publish(leases[writer])
        else:
            session.release(leases[writer])
        steps[writer] += 1
        session.move_out()
        plan = session.match(P[:9])
        assert (plan.claimed_length, plan.length) in ((8, 8), (0, 0))
        session.answer(P[:9])
    assert session.match(P[:9]).length == 8
    kept = sum(int(np.asarray(t.kept).sum()) for t in session.cache.tables)
    places = sum(int((t.stage == Stage.ON_DISK).sum()) for t in session.tier.places)
    assert kept + places == 2


@pytest.mark.outer_tier("B58")
def test_b58_what_failed_once_is_not_chosen_again():
    """Prefixes of 8 and of 4: the second block fails, then 4 is used, with one try."""
    session = only_full()
    session.store(P[:8])
    session.move_out()
    assert session.match(P[:9]).length == 8
    tries = []
    read = session.tier.read

    def second_fails(pool, place):
        tries.append(int(session.tier.places[pool].first[place]))
        payload = read(pool, place)
        return faults.flipped(3)(payload) if tries[-1] == 4 else payload

    session.tier.read = second_fails
    assert session.load(P[:9]).failed
    assert session.match(P[:9]).length == 4
    assert session.load(P[:9]).ready
    assert session.answer(P[:9]).length == 4
    assert tries.count(4) == 1


@pytest.mark.outer_tier("B61")
def test_b61_a_save_outlives_the_memory_it_was_made_of():
    session = only_full()
    session.store(P[:8])
    before = session.cache
    session.move_out()
    step = jax.jit(session.model.body, donate_argnums=0)
    lease = session.admit(OTHER)
    cache, status, _ = step(session.cache, lease.inputs(OTHER[:8]))
    assert before.pools[0]["v"].is_deleted()
    assert status[0] == hc.Status.OK
    session.put(cache)
    assert session.load(P[:9]).ready
    assert session.answer(P[:9]).length == 8


@pytest.mark.outer_tier("B91")
def test_b91_what_a_load_reports_is_what_the_next_lookup_finds():
    session = only_full()
    session.store(P[:8])
    session.move_out()
    report = session.load(P[:9])
    assert report.load.plan.length == 8
    assert session.tier.nbytes == 0  # the tier has let go of it
    plan = session.match(P[:9])
    assert (plan.verdict, plan.length, plan.tokens_to_run) == (Verdict.RESUMABLE, 8, 1)
    lease = session.acquire(plan)
    session.feed(lease, P[8:9])
    assert session.length(lease) == 9


def test_a_payload_has_memory_of_its_own():
    plane = np.zeros((1, 4, 1), np.float32)
    payload = Payload.sealed({"k": plane})
    plane[:] = 7
    assert not payload.planes["k"].any()


def test_what_moves_is_counted():
    """Hit tokens by tier, blocks out and in, failures; the sums hold with a tier."""
    registry = hc.MemoryRegistry()
    session = only_full(metrics=hc.Metrics(registry))
    session.store(CHAT)
    session.move_out()
    session.tier.damage(faults.torn)
    session.load([*CHAT, 0])
    session.tier.damage(None)
    session.store(CHAT)
    session.move_out()
    lease = session.acquire(session.prefixes.cold_plan(P[:4], session.model.identity))
    session.feed(lease, P[:4])
    session.release(lease)  # the first block lies on the device again
    assert session.load([*CHAT, 0]).ready
    session.answer([*CHAT, 0])

    def of(name, **labels):
        return registry.value(f"hybridcache_{name}", **labels)

    block, form = session.model.plan.spec.pools[0].block_bytes, {"form": "FULL_KV"}
    assert of("load_failures_total", stage="digest") == 1
    assert of("moved_out_blocks_total", **form) == 8
    assert of("moved_out_bytes_total", **form) == 8 * block
    assert of("loaded_blocks_total", **form) == 3
    assert of("hit_tokens_total", tier="outer") == 12
    assert of("hit_tokens_total", tier="device") == 4
    assert of("reused_tokens_total") == 16
    stored = of("stored_blocks_total", **form)
    lost = sum(
        of("evicted_blocks_total", why=why, **form) for why in ("asked", "dead_weight")
    )
    assert stored - lost == np.asarray(session.cache.tables[0].kept).sum() == 4


def test_the_epoch_of_a_place_grows_whenever_it_is_handed_out_or_dropped():
    plan = toy.only_full().plan
    tier = hc.HostTier(plan, budget=grids(toy.only_full(), 1))
    payload, seen = Payload.sealed({}), [int(tier.places[0].epoch[0])]
    facts = {"version": 1, "provenance": 0, "first": 0, "needed": np.zeros(1, bool)}
    for _ in range(2):
        assert tier.store(0, payload, **facts) == 0
        seen.append(int(tier.places[0].epoch[0]))
        tier.drop(0, np.array([0]))
        seen.append(int(tier.places[0].epoch[0]))
    assert seen == sorted(set(seen))


def test_a_place_says_all_that_the_block_said():
    """On the way out, and on the way back."""
    session = only_full()
    session.store(P[:8])
    (table,) = session.cache.tables
    marked = dataclasses.replace(
        table, provenance=jnp.where(table.kept, 1, 0), version=table.version + 4
    )
    cache = dataclasses.replace(session.cache, tables=(marked,))
    transfer, kept = session.prefixes._outer._transfer, np.flatnonzero(table.kept)
    session.prefixes._outer.move_out(cache, [kept.astype(np.int32)])
    places = session.tier.places[0]
    held = np.flatnonzero(places.stage == Stage.ON_DISK)
    labels = np.stack([getattr(places, name)[held] for name in LABELS])
    assert sorted(labels.T.tolist()) == [[5, 1, 0], [5, 1, 4]]
    assert set(places.form[held]) == {Form.ON_DISK_PREFIX}
    payloads = [session.tier.read(0, place) for place in held.tolist()]
    coming, ids = transfer.receive(0, table, labels, cache.clock)
    assert (np.asarray(coming.stage)[ids] == Stage.LOADING).all()
    arrival, written = Arrival(0, ids, payloads, held), []
    staging = transfer.staging()
    transfer.place(session.cache.pools, [arrival], staging, written.append)
    assert np.concatenate([part.places for part in written]).tolist() == held.tolist()
    back = transfer.seal(0, coming, ids.tolist())
    for name, column in zip(LABELS, labels, strict=True):
        assert np.asarray(getattr(back, name))[ids].tolist() == column.tolist()
    assert np.asarray(back.kept)[ids].all()


def test_what_cannot_be_received_leaves_the_cache_whole():
    """Of two loads, and of three pools: the last one fails, nothing was written.

    Neither is it where there is no memory to copy through.
    """
    session = Tiered(toy.fine())
    for prompt in (CHAT, OTHER):
        session.store(prompt, each=True)
    session.move_out()
    loads = [session.ask([*prompt, 0]) for prompt in (CHAT, OTHER)]
    transfer, before = session.prefixes._outer._transfer, session.cache
    calls = itertools.count(1)

    def fails(*arguments):
        if next(calls) == 6:
            raise MemoryError("no room on the host")
        return receive(*arguments)

    def fails_to_stage():
        raise MemoryError("nothing to copy through")

    receive, transfer.receive = transfer.receive, fails
    with pytest.raises(MemoryError, match="no room on the host"):
        session.poll()
    transfer.receive, staging = receive, transfer.staging
    transfer.staging = fails_to_stage
    with pytest.raises(MemoryError, match="nothing to copy through"):
        session.poll()
    transfer.staging = staging
    assert not any(x.is_deleted() for x in jax.tree.leaves(before))
    reports = session.poll()
    assert [(r.load, r.ready) for r in reports] == [(load, True) for load in loads]
    for prompt in (CHAT, OTHER):
        session.answer([*prompt, 0])


def test_two_loads_of_one_place_bring_it_once():
    session = Tiered(toy.fine())
    session.store(CHAT, each=True)
    session.move_out()
    loads = [session.ask([*CHAT[:stop], 0]) for stop in (len(CHAT), 8)]
    free = [int(table.num_free) for table in session.cache.tables]
    needed = [len(blocks) for blocks in loads[0].plan.loads]
    reports = session.poll()
    assert [(r.load, r.ready) for r in reports] == [(load, True) for load in loads]
    left = [int(table.num_free) for table in session.cache.tables]
    # Of the history the shorter prompt needs a part; its windows are its own.
    history = next(
        n for n, p in enumerate(session.model.plan.spec.pools) if p.form == Form.FULL_KV
    )
    assert free[history] - left[history] == needed[history]
    for stop in (len(CHAT), 8):
        session.answer([*CHAT[:stop], 0])


def test_a_load_without_room_in_one_pool_waits_whole():
    """The windows have room and the history has none: nothing is registered."""
    session = Tiered(toy.fine())
    session.store(CHAT[:8], each=True)
    session.move_out()
    session.ask([*CHAT[:8], 0])
    sound = session.cache
    *windows, history = sound.tables
    full = dataclasses.replace(history, num_free=history.num_free * 0)
    tight = dataclasses.replace(sound, tables=(*windows, full))
    cache, (report,) = session.prefixes.poll(tight)
    assert (report.stage, report.failed) == (LoadStage.ROOM, False)
    assert toy.unchanged(tight, cache)
    session.cache = dataclasses.replace(cache, tables=sound.tables)
    assert session.poll()[0].ready
    assert session.answer([*CHAT[:8], 0]).length == 8


def test_a_tier_smaller_than_what_moves_out_at_once_mixes_nothing_up():
    """One place, two blocks of one position: the second one drops the first."""
    some = toy.only_full()
    session = Tiered(some, budget=grids(some, 1))
    for prompt in (P, OTHER):
        session.store(prompt[:4])
    session.move_out()
    assert sorted(session.match([*p[:4], 0]).length for p in (P, OTHER)) == [0, 4]
    for prompt in (P, OTHER):
        session.answer([*prompt[:4], 0])


def test_a_full_tier_keeps_what_a_load_waits_for():
    some = toy.only_full()
    session = Tiered(some, budget=grids(some, 3))
    session.store(P[:8])
    session.move_out()
    session.tier.delay(1)
    load = session.ask([*P[:8], 0])
    assert session.poll()[0].stage == LoadStage.READ
    session.store(OTHER[:8])
    session.move_out()
    (report,) = session.poll()
    assert (report.load, report.stage) == (load, LoadStage.REGISTERED)
    assert session.answer([*P[:8], 0]).length == 8
    assert session.match([*OTHER[:8], 0]).length == 4


def test_a_full_tier_drops_the_longest_unused():
    some = toy.only_full()
    session = Tiered(some, budget=grids(some, 3))
    assert len(session.tier.places[0].stage) == 3
    for prompt in (P[:8], OTHER[:8]):
        session.store(prompt)
        session.move_out()
    assert [session.match([*p[:8], 0]).length for p in (P, OTHER)] == [4, 8]
    with pytest.raises(ValueError, match="not even"):
        hc.HostTier(some.plan, budget=10)
    other = dataclasses.replace(some.plan, max_sequences=1)
    with pytest.raises(ValueError, match="another plan"):
        hc.PrefixCache(other, tier=session.tier)
    without = dataclasses.replace(some.plan, staging_blocks=0)
    with pytest.raises(ValueError, match="staging_blocks=16"):
        hc.PrefixCache(without, tier=hc.HostTier(without, budget="1MiB"))


def test_moving_in_and_out_traces_nothing_new():
    session = only_full()
    for length in (8, 12):
        session.store(CHAT[:length])
        session.move_out()
        session.answer([*CHAT[:length], 0])
    before = toy.compilations()
    for length in (4, 16):
        session.store(OTHER[:4] + CHAT[:length])
        session.move_out()
        session.load([*OTHER[:4], *CHAT[:length], 0])
        session.answer([*OTHER[:4], *CHAT[:length], 0])
    assert toy.compilations() == before
