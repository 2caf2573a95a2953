"""K06: checkpoints, and replays that begin at one.

A state that cannot be undone is used only at the very position it was taken, and only
if its tokens are a prefix of the prompt.  Running k..p-1 from what is held gives every
form equal to a cold run; k is the latest start for which that is so.  Extents without
recurrent layers are in ``test_replay_extent``.
"""

import dataclasses

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, LeaseError, Reason, Verdict
from hybridcache_jax.testing import toy as library

DIGITS = st.integers(0, 9)
TOKENS = st.lists(DIGITS, min_size=24, max_size=24)
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def state_of(session, lease, layer=0):
    """The recurrent state that a row would go on from."""
    return session.state(lease).parts[layer, "state"].planes["s"].item()


def checkpoints(session):
    """Positions at which the one stored history has a state."""
    model = session.model
    blocks = toy.stored_parts(model, session.cache)[0, "state"]
    return sorted((block + 1) * model.block(0, "state") for block in blocks)


def follow(session, prompt):
    """Runs a prompt by its plan; it then holds what a cold run leaves."""
    lease = session.admit(prompt)
    session.feed(lease, prompt[lease.plan.start :])
    session.check(lease, prompt)
    return lease.plan


def test_b27_a_snapshot_is_used_at_its_own_position_only():
    """Snapshots at 4 and 8; the new prompt shares 6 tokens: start from 4."""
    session = toy.Session(toy.recurrent())
    session.store(toy.P[:10], [4, 4, 2], each=True)
    assert checkpoints(session) == [4, 8]
    prompt = (3, 1, 4, 1, 5, 9, 0, 0)
    lease = session.admit(prompt)
    plan = lease.plan
    assert (plan.verdict, plan.length, plan.start) == (Verdict.RESUMABLE, 4, 4)
    assert plan.shared_length == 6
    assert state_of(session, lease) == 37
    session.feed(lease, prompt[4:])
    assert state_of(session, lease) == 668
    session.check(lease, prompt)


def test_b27_the_snapshot_at_8_is_good_for_its_own_tokens():
    session = toy.Session(toy.recurrent())
    session.store(toy.P[:10], [4, 4, 2], each=True)
    lease = session.admit(toy.P[:9])
    assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 8)
    assert state_of(session, lease) == 678
    session.feed(lease, toy.P[8:9])
    assert state_of(session, lease) == 361


@pytest.mark.parametrize("asked", range(1, 10))
def test_b27_no_trimming_of_a_snapshot(asked):
    """P[:asked] is resumed at a snapshot before its last token, never in between."""
    session = toy.Session(toy.recurrent())
    session.store(toy.P[:10], [4, 4, 2], each=True)
    plan = follow(session, toy.P[:asked])
    assert plan.start == max(p for p in (0, 4, 8) if p < asked)


@pytest.mark.kind("K06")
@settings(max_examples=25)
@given(data=st.data(), sizes=SIZES, each=st.booleans())
def test_a_state_is_resumed_where_it_was_taken_or_not_at_all(data, sizes, each):
    """Any steps, any turn, windows lost or not: what is run begins at a checkpoint."""
    model = toy.recurrent()
    history = data.draw(TOKENS)
    session = toy.Session(model)
    session.store(history, sizes, each=each)
    taken = checkpoints(session)
    ends = {sum(toy.cuts(24, sizes)[:n]) for n in range(25)}
    assert set(taken) <= ends & set(range(0, 25, model.block(0, "state")))
    for form in (Form.SWA_WINDOW, Form.UNCOMPRESSED_TAIL):
        if data.draw(st.booleans()):
            session.evict(form)

    same = data.draw(st.integers(0, 24))
    prompt = [*history[:same], *[t % 9 + 1 for t in history[same:]]]
    prompt = prompt[: data.draw(st.integers(1, 24))]
    shared = next((n for n, t in enumerate(prompt) if t != history[n]), len(prompt))
    held = toy.stored_parts(model, session.cache)
    plan = session.match(prompt)
    common = shared - shared % model.grid
    want = toy.expected_plan(model, len(prompt), common, held)
    assert (plan.verdict, plan.length, plan.start) == want
    assert plan.start in (0, *taken)
    assert plan.start <= plan.length <= shared
    follow(session, prompt)


@pytest.mark.kind("K06")
@settings(max_examples=8)
@given(prompt=TOKENS, point=st.sampled_from([12, 16, 20]))
def test_a_replay_begins_at_the_last_checkpoint_that_is_early_enough(prompt, point):
    """Windows and tails gone: the halo of 4 and the window of 3 below it, 6 in all.

    The checkpoint after it is too late: started there, the state comes out wrong.  What
    is held is read, never written.
    """
    model = toy.recurrent()
    prompt = [(p * 7 + t) % 10 for p, t in enumerate(prompt)][: point + 1]
    session = toy.Session(model)
    session.store(prompt, [4], each=True)
    session.evict(Form.SWA_WINDOW)
    session.evict(Form.UNCOMPRESSED_TAIL)
    plan = session.match(prompt)
    early = point - 6 - (point - 6) % 4
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (point, early)

    want, ready = toy.cold(model, prompt[:point]), session.cache
    before = toy.kept_bytes(ready)
    for start, exact in ((early, True), (early + 4, False)):
        session.branch(ready)
        lease = session.acquire(dataclasses.replace(plan, start=start))
        session.feed(lease, prompt[start:point])
        assert (library.differences(session.state(lease), want) == []) is exact
        assert toy.kept_bytes(session.cache) == before


@settings(max_examples=5)
@given(prompt=TOKENS, point=st.sampled_from([8, 12, 16, 20]))
def test_a_replay_goes_on_from_windows_and_states(prompt, point):
    """Tails gone, alone: the window of 3 below them is held where the replay starts.

    Without it the first rows that the replay makes are wrong.
    """
    model = toy.recurrent()
    prompt = [(p * 7 + t) % 10 for p, t in enumerate(prompt)][: point + 1]
    session = toy.Session(model)
    session.store(prompt, [4], each=True)
    session.evict(Form.UNCOMPRESSED_TAIL)
    plan = session.match(prompt)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (point, point - 4)
    states = {model.pool_of(0, "state"), model.pool_of(1, "state")}
    assert plan.kept == tuple(sorted({*states, model.pool_of(2)}))

    want, ready = toy.cold(model, prompt[:point]), session.cache
    before = toy.kept_bytes(ready)
    for kept, exact in ((plan.kept, True), (tuple(sorted(states)), False)):
        session.branch(ready)
        lease = session.acquire(dataclasses.replace(plan, kept=kept))
        session.feed(lease, prompt[point - 4 : point])
        assert (library.differences(session.state(lease), want) == []) is exact
        assert toy.kept_bytes(session.cache) == before


@pytest.mark.parametrize("start", [5, 6, 7, 9])
def test_a_replay_cannot_begin_between_checkpoints(start):
    """No state stands there: the lease is refused, nothing is run from zeros."""
    session = toy.Session(toy.recurrent())
    session.store([*toy.P, 1], [4], each=True)
    session.evict(Form.SWA_WINDOW)
    plan = session.match([*toy.P, 1])
    assert (plan.start, plan.length) == (4, 12)
    before = session.cache
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(dataclasses.replace(plan, start=start))
    assert session.cache is before


def test_a_checkpoint_that_was_lost_is_no_start():
    """Without the state at 8, its windows and entries are worth a replay at most."""
    session = toy.Session(toy.recurrent())
    session.store([*toy.P, 1], [4], each=True)
    session.lose(0, 2, [*toy.P, 1], "state")
    plan = session.match([*toy.P, 1])
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)
    (report,) = plan.limiting
    assert (report.form, report.reason) == (Form.RECURRENT_STATE, Reason.EVICTED)
    assert report.required == (11, 12)
