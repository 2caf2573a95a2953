"""K07: units, grain and holes.

All public lengths are tokens.  0 <= m <= the common prefix and m <= len(x) - 1.  Every
block used ends at or before m; blocks behind a hole are worth nothing; what is restored
is what was promised, else the verdict drops to what can be restored.
"""

import numpy as np
import pytest
import toy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Reason, Verdict

DIGITS = st.integers(1, 9)


@pytest.mark.kind("K07")
@settings(max_examples=50)
@given(data=st.data())
def test_the_plan_promises_what_is_there_and_keeps_it(data):
    """Any set of lost blocks, in any form: the plan is the best that is left."""
    model = toy.mixed()
    history = data.draw(st.lists(DIGITS, min_size=24, max_size=24))
    size = data.draw(st.sampled_from([8, 12, 16, 20, 23, 24]))
    session = toy.Session(model)
    session.store(history[:size], [4], each=True)
    held = toy.stored_blocks(model, session.cache)
    whole = [*history[:size], 1][:24]

    places = [(layer, b) for layer, blocks in enumerate(held) for b in sorted(blocks)]
    lost = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=4))
    for layer, block in lost:
        session.lose(layer, block, whole)
        held[layer].discard(block)

    length = data.draw(st.integers(1, 24))
    same = data.draw(st.integers(0, length))
    prompt = [*history[:same], *[t % 9 + 1 for t in history[same:length]]]
    common = min(same, size - size % model.grid)
    plan = session.match(prompt)
    want = toy.expected_plan(model, length, common, held)
    assert (plan.verdict, plan.length, plan.start) == want
    assert 0 <= plan.length <= min(common, length - 1)
    assert plan.length % model.grid == 0
    assert plan.shared_length >= plan.claimed_length >= plan.length

    lease = session.acquire(plan)
    assert session.length(lease) == plan.start
    session.feed(lease, prompt[plan.start :], [5])
    session.check(lease, prompt)


@pytest.mark.kind("K07")
@settings(max_examples=25)
@given(data=st.data())
def test_eviction_drops_the_plan_to_what_is_left(data):
    """The same through the front door, where the index is swept as well."""
    model = toy.mixed()
    history = data.draw(st.lists(DIGITS, min_size=24, max_size=24))
    session = toy.Session(model)
    session.store(history, [4], each=True)
    free = [int(table.num_free) for table in session.cache.tables]
    wanted = [n + data.draw(st.integers(0, 12)) for n in free]
    session.put(session.prefixes.make_room(session.cache, wanted))
    for table, want in zip(session.cache.tables, wanted, strict=True):
        assert int(table.num_free) >= want or not bool(table.kept.any())

    held = toy.stored_blocks(model, session.cache)
    plan = session.match(history)
    want = toy.expected_plan(model, len(history), len(history), held)
    assert (plan.verdict, plan.length, plan.start) == want
    lease = session.acquire(plan)
    session.feed(lease, history[plan.start :])
    session.check(lease, history)


@settings(max_examples=25)
@given(
    size=st.integers(0, 24),
    block=st.sampled_from([toy.mixed, toy.only_full, toy.fine]),
)
def test_only_whole_grid_units_are_promised(size, block):
    """A stored length between two grid points counts up to the one before."""
    model = block()
    session = toy.Session(model)
    history = [p % 9 + 1 for p in range(24)]
    session.store(history[:size])
    assert session.prefixes.stored_tokens == size - size % model.grid
    prompt = history[: size + 1]
    assume(len(prompt) > size)
    plan = session.match(prompt)
    assert plan.length == size - size % model.grid
    assert plan.alignment_loss == 0  # nothing beyond was stored, so nothing is lost


def test_b30_blocks_behind_a_hole_are_not_joined_on():
    """Three blocks of 4 over P, the middle one gone: m=4 with {3,11,24,31}."""
    session = toy.Session(toy.only_full())
    session.store(toy.P)
    session.lose(0, 1, [*toy.P, 1])

    plan = session.match([*toy.P, 1])
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 4)
    (report,) = plan.forms
    assert (report.reason, report.position) == (Reason.EVICTED, 4)
    lease = session.acquire(plan)
    assert session.length(lease) == plan.length == 4
    values = session.state(lease).v[0]
    np.testing.assert_array_equal(values.max(axis=(1, 2)), [3, 11, 24, 31])
    session.check(lease, toy.P[:4])

    session.feed(lease, toy.P[4:])
    session.check(lease, toy.P)


def test_b30_a_repaired_hole_counts_again():
    """The run that filled the hole publishes it; the old end is used again."""
    session = toy.Session(toy.only_full())
    session.store(toy.P)
    session.lose(0, 1, [*toy.P, 1])
    session.store([*toy.P, 1])
    assert session.match([*toy.P, 1]).length == 12


def test_a_hole_in_the_history_cuts_the_windows_behind_it():
    """Windows behind a hole are held, and worth nothing."""
    session = toy.Session(toy.mixed())
    session.store(toy.P, [4], each=True)
    session.lose(2, 0, [*toy.P, 1])
    plan = session.match([*toy.P, 1])
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_FULL_RECOMPUTE, 0)
    assert [report.form for report in plan.limiting] == [Form.FULL_KV]
