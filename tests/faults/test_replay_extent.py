"""K06, without recurrent layers: how far back a replay starts.

Running positions k..p-1 from the forms that are held gives every form equal to a cold
run: k is p less the sum of W - 1 over the stacked window layers, and for chunks the
start of p's chunk, whatever their number; a tail widens by the windows below it.  It is
tight: starting one token later is wrong.  Where windows are held at a resume point, a
replay goes on from them.  Intact forms are read, never rewritten;
blocks rebuilt below p are not stored.
"""

import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Verdict
from hybridcache_jax.testing import toy as library

EXACT, WRONG = toy.FLOAT32_GAP, 1e-4
LENGTH = 32


def chunked():
    return toy.model(toy.CHUNKED, style="softmax", max_length=LENGTH, rows=1)


def woven():
    """Windows under and over a chunk layer: 16 <- 14 <- 12 <- 10."""
    return toy.model(toy.WOVEN, style="softmax", max_length=LENGTH, rows=1)


def stacked_start(point):
    return point - (3 + 3 + 2)


def chunked_start(point):
    return point - point % 6


def woven_start(point):
    below = point - 2  # the top window
    below -= below % 6  # the chunk
    return below - 2  # the bottom window


CASES = [
    (toy.stacked, stacked_start, 20),
    *[
        pytest.param(toy.stacked, stacked_start, point, marks=pytest.mark.slow)
        for point in (12, 28)
    ],
    (chunked, chunked_start, 20),
    pytest.param(chunked, chunked_start, 8, marks=pytest.mark.slow),
    *[
        pytest.param(woven, woven_start, point, marks=pytest.mark.slow)
        for point in (12, 16, 20)
    ],
]
PROMPTS = st.lists(st.integers(0, 9), min_size=LENGTH, max_size=LENGTH)


def lose_windows(model, history):
    """A session that stored ``history`` and lost every window."""
    session = toy.Session(model)
    session.store(history, [4], each=True)
    session.evict(Form.SWA_WINDOW)
    return session


def replayed(session, plan, prompt, sizes=(8,)):
    """The lease after the replay of ``plan``, at its resume point."""
    lease = session.acquire(plan)
    session.feed(lease, prompt[plan.start : plan.length], sizes)
    assert session.length(lease) == plan.length
    return lease


def full_bytes(model, cache):
    """Stored blocks of the layers that keep the whole history."""
    pools = {model.pool_of(n) for n, k in enumerate(model.kinds) if k == toy.FULL}
    return {key: x for key, x in toy.kept_bytes(cache).items() if key[0] in pools}


def follow(session, plan, prompt, sizes=(8,)):
    """Replays under a plan and runs what is left; the cold state at the resume point.

    State and reads are those of a cold run, and the history was not written to.
    """
    model, point = session.model, plan.length
    held = full_bytes(model, session.cache)
    want = toy.cold_softmax(model, prompt[:point])
    lease = replayed(session, plan, prompt, sizes)
    assert toy.state_gap(session.state(lease), want) < EXACT
    assert full_bytes(model, session.cache) == held
    reads = session.feed(lease, prompt[point:])
    last = toy.cold_softmax(model, prompt).reads[:, -1:]
    assert np.abs(reads - last).max() < EXACT
    return want


@pytest.mark.parametrize(("build", "start", "point"), CASES)
@settings(max_examples=5)
@given(prompt=PROMPTS, sizes=st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_the_extent_is_exact_and_sharp(build, start, point, prompt, sizes):
    model = build()
    prompt = prompt[: point + 1]
    session = lose_windows(model, prompt)
    plan = session.match(prompt)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (point, start(point))
    assert plan.start == toy.replay_start(model.kinds, point)
    assert plan.tokens_to_run == point + 1 - plan.start
    assert {report.form for report in plan.limiting} == {Form.SWA_WINDOW}

    held = full_bytes(model, session.cache)
    assert len(held) > 0
    ready = session.cache
    want = follow(session, plan, prompt, sizes)

    # One token less: entries of the upper layers come out wrong.
    session.branch(ready)
    short = dataclasses.replace(plan, start=plan.start + 1)
    lease = replayed(session, short, prompt, sizes)
    assert toy.state_gap(session.state(lease), want, common=True) > WRONG
    assert full_bytes(model, session.cache) == held


@settings(max_examples=10)
@given(prompt=PROMPTS)
def test_a_short_replay_corrupts_what_comes_after(prompt):
    """The resumed tokens go wrong too, though nothing raises: why p must be proved."""
    model = toy.stacked()
    session = lose_windows(model, prompt[:21])
    plan = session.match(prompt[:21])
    want = toy.cold_softmax(model, prompt).reads[:, 20:]
    gaps = []
    ready = session.cache
    for late in (0, 3):
        session.branch(ready)
        lease = session.acquire(dataclasses.replace(plan, start=plan.start + late))
        reads = session.feed(lease, prompt[plan.start + late :])
        gaps.append(np.abs(reads[:, -len(want[0]) :] - want).max())
    assert gaps[0] < EXACT
    assert gaps[1] > WRONG


@pytest.mark.parametrize(("point", "resume"), [(12, 12), (16, 12), (24, 24), (28, 24)])
def test_a_chunk_that_starts_on_the_grid_needs_no_replay(point, resume):
    """Where a chunk starts nothing is required, so nothing can be lost."""
    model = chunked()
    prompt = [p * 7 % 10 for p in range(point + 1)]
    session = lose_windows(model, prompt)
    plan = session.match(prompt)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, resume)
    lease = session.acquire(plan)
    assert session.state(lease).positions[0] == ()
    reads = session.feed(lease, prompt[resume:])
    want = toy.cold_softmax(model, prompt).reads[:, resume:]
    assert np.abs(reads - want).max() < EXACT


@pytest.mark.parametrize("build", [toy.stacked, woven])
def test_what_a_replay_rebuilt_below_p_is_not_stored(build):
    """Only blocks from p on are stored; at p the windows are still missing."""
    model, point = build(), 20
    prompt = [p * 7 % 10 for p in range(LENGTH)]
    session = lose_windows(model, prompt[: point + 1])
    lease = session.admit(prompt[: point + 1])
    assert lease.plan.start < point == lease.plan.length
    session.feed(lease, prompt[lease.plan.start : point])
    session.publish(lease)
    assert windows_stored(session) == set()

    for at in range(point, LENGTH, 4):
        session.feed(lease, prompt[at : at + 4])
        session.publish(lease)
        # The rebuilt blocks are sealed and still there, and yet nobody may have them.
        plan = session.match(prompt[: point + 1])
        assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    session.release(lease)
    assert windows_stored(session) == {20, 24, 28}
    plan = session.match(prompt[: point + 1])
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE

    # What was stored from p on is exact: resume behind it.
    assert session.match(prompt).length == 28
    lease = session.admit(prompt)
    assert lease.plan.verdict == Verdict.RESUMABLE
    want = toy.cold_softmax(model, prompt[:28])
    assert toy.state_gap(session.state(lease), want) < EXACT


def windows_stored(session):
    """First positions of all stored blocks of windows and chunks."""
    found = set()
    for pool, table in zip(
        session.model.plan.spec.pools, session.cache.tables, strict=True
    ):
        if pool.form == Form.SWA_WINDOW:
            found |= set(np.asarray(table.first)[np.asarray(table.kept)].tolist())
    return found


@settings(max_examples=25)
@given(data=st.data(), point=st.sampled_from([12, 16, 20, 24, 28]))
def test_one_lost_block_of_one_form_is_enough(data, point):
    """Any one window block that p requires: replay all windows, and be exact."""
    model = toy.stacked()
    prompt = data.draw(PROMPTS)[: point + 1]
    session = toy.Session(model)
    session.store(prompt, [4], each=True)
    layer = data.draw(st.sampled_from([0, 3]))
    session.lose(layer, point // 4 - 1, prompt)
    plan = session.match(prompt)
    # Either the replay, or the point before if that runs fewer tokens: never p itself.
    assert (plan.verdict, plan.length, plan.start) == toy.expected_plan(
        model,
        point + 1,
        point,
        [
            b - {point // 4 - 1} if n == layer or (layer == 0 and n == 1) else b
            for n, b in enumerate(toy.all_blocks(model, point))
        ],
    )
    lease = session.acquire(plan)
    session.feed(lease, prompt[plan.start :])
    want = toy.cold_softmax(model, prompt)
    assert toy.state_gap(session.state(lease), want) < EXACT


@settings(max_examples=5)
@given(prompt=PROMPTS, lower=st.sampled_from([None, 4, 3]))
def test_a_replay_goes_on_from_lower_windows_that_are_held(prompt, lower):
    """The upper window of 3 is lost: what the lower ones hold at 16 is enough for 20.

    With a block of them lost that 16 requires, the whole extent of 8 is run again.
    """
    model, point = toy.stacked(), 20
    prompt = prompt[: point + 1]
    session = toy.Session(model)
    session.store(prompt, [4], each=True)
    for block in range(point // 4):
        session.lose(3, block, prompt)
    if lower is not None:
        session.lose(0, lower, prompt)
    plan = session.match(prompt)
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_PARTIAL_RECOMPUTE, point)
    windows = (model.pool_of(0),)
    # Block 4 is for 20 only; block 3 is what 16 requires.
    start, kept = (12, ()) if lower == 3 else (16, windows)
    assert (plan.start, plan.kept) == (start, kept)

    ready = session.cache
    want = follow(session, plan, prompt)

    # From nothing it is wrong.
    session.branch(ready)
    bare = dataclasses.replace(plan, start=16, kept=())
    lease = replayed(session, bare, prompt)
    assert toy.state_gap(session.state(lease), want, common=True) > WRONG


# Families of integers, where every form is compared bit for bit.

BOUNDED = (Form.SWA_WINDOW, Form.UNCOMPRESSED_TAIL)
FAMILIES = {
    # The index tail of 2 over windows of 4 and 3: deeper than all windows together.
    "csa": (toy.csa, lambda p: p - 2 - 3 - 2, [8, 16, 24, 32]),
    # Where a chunk starts nothing is lost, so 12 and 16 are resumed at 12.
    "sparse": (toy.sparse, chunked_start, [8, 20]),
}


def lose_bounded(model, history, forms=BOUNDED):
    """A session that stored ``history`` and lost all of some bounded forms."""
    session = toy.Session(model)
    session.store(history, [4], each=True)
    for form in forms:
        session.evict(form)
    return session


@pytest.mark.parametrize("name", toy.marked(FAMILIES))
@settings(max_examples=8)
@given(
    data=st.data(),
    tokens=st.lists(st.integers(0, 9), min_size=40, max_size=40),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=3),
)
def test_windows_and_tails_are_rebuilt_from_the_derived_start(
    name, data, tokens, sizes
):
    build, start, points = FAMILIES[name]
    model, point = build(), data.draw(st.sampled_from(points))
    prompt = tokens[: point + 1]
    session = lose_bounded(model, prompt)
    plan = session.match(prompt)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (point, start(point))
    assert plan.start == library.replay_start(model.kinds, point)
    assert {report.form for report in plan.limiting} <= set(BOUNDED)

    held, ready = toy.kept_bytes(session.cache), session.cache
    want = toy.cold(model, prompt[:point])
    lease = replayed(session, plan, prompt, sizes)
    toy.assert_same_state(session.state(lease), want)
    assert toy.kept_bytes(session.cache) == held
    last = session.feed(lease, prompt[point:])
    toy.assert_same_reads(last, toy.cold(model, prompt).reads[:, point:])
    session.check(lease, prompt)
    assert toy.kept_bytes(session.cache) == held

    # One token less, and the same forms are there with other numbers in them.
    session.branch(ready)
    short = dataclasses.replace(plan, start=plan.start + 1)
    lease = replayed(session, short, prompt, sizes)
    assert library.differences(session.state(lease), want) != []
    assert toy.kept_bytes(session.cache) == held


@pytest.mark.parametrize("lost", [BOUNDED[:1], BOUNDED[1:]])
def test_either_form_alone_needs_the_whole_replay(lost):
    """What the other holds at 16, the point before, would start a longer one."""
    model, prompt = toy.csa(), [p * 7 % 10 for p in range(25)]
    session = lose_bounded(model, prompt, lost)
    plan = session.match(prompt)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (24, 17)
    lease = replayed(session, plan, prompt)
    session.check(lease, prompt[:24])


def test_tails_rebuilt_below_p_are_not_stored():
    """Only what was run from p on is exact in all forms, and only that is kept."""
    model, point = toy.csa(), 16
    prompt = [p * 7 % 10 for p in range(40)]
    session = lose_bounded(model, prompt[: point + 1])
    lease = session.admit(prompt)
    assert (lease.plan.start, lease.plan.length) == (9, point)
    for at in range(lease.plan.start, 40, 4):
        session.feed(lease, prompt[at : at + 4])
        session.publish(lease)
        for pool, table in zip(
            model.plan.spec.pools, session.cache.tables, strict=True
        ):
            first = np.asarray(table.first)[np.asarray(table.kept)]
            assert pool.form not in BOUNDED or (first >= point).all()
    session.release(lease)
    plan = session.match(prompt[: point + 1])
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    lease = session.admit(prompt)
    assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 32)
    session.check(lease, prompt[:32])
