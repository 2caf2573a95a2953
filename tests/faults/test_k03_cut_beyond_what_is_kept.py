"""K03: a cut beyond what is kept.

A stored sequence can be gone back to at m exactly where every form can: asking is a
total function of state and m, and what it says is what acquiring does; otherwise
nothing changes and the failure is visible.  Nothing of tokens that were rejected, or
never run, is readable afterwards, in any form.
"""

import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import LeaseError, Status, Verdict

DIGITS = st.integers(0, 9)
TOKENS = st.lists(DIGITS, min_size=24, max_size=24)
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def can_resume(model, held, point):
    """By what is stored: is every form there for exactly this point?"""
    want = toy.expected_plan(model, point + 1, point, held)
    return point == 0 or want == (Verdict.RESUMABLE, point, point)


@pytest.mark.kind("K03")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=4)
@given(tokens=TOKENS, sizes=SIZES, each=st.booleans())
def test_a_row_goes_back_to_a_point_iff_every_form_does(name, tokens, sizes, each):
    """Every grid point of one record, by a plan that only claims it can be resumed."""
    model = toy.EVERY_KIND[name]()
    session = toy.Session(model)
    session.store(tokens, sizes, each=each)
    held = toy.stored_parts(model, session.cache)
    plan = session.match(tokens)
    stored, claims = session.cache, plan.claims
    for point in range(0, min(claims.length, 23) + 1, model.grid):
        session.branch(stored)
        asked = session.match(tokens[: point + 1])
        assert (asked.verdict == Verdict.RESUMABLE and asked.length == point) is (
            point > 0 and can_resume(model, held, point)
        )
        # The check at admission is a second one: it does not believe the plan.
        bold = dataclasses.replace(plan, length=point, start=point)
        if not can_resume(model, held, point):
            with pytest.raises(LeaseError, match="match again"):
                session.acquire(bold)
            assert session.cache is stored
            continue
        lease = session.acquire(bold)
        session.check(lease, tokens[:point])
        more = [t % 9 + 1 for t in tokens[point : point + 5]]
        session.feed(lease, more)
        session.check(lease, tokens[:point] + more)


@pytest.mark.kind("K03")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=8)
@given(tokens=TOKENS, keep=st.integers(0, 24), sizes=SIZES, data=st.data())
def test_a_cut_of_a_record_equals_cold(name, tokens, keep, sizes, data):
    """The turn after an edit: the record's end is not part of what goes on."""
    model = toy.EVERY_KIND[name]()
    session = toy.Session(model)
    session.store(tokens, sizes, each=data.draw(st.booleans()))
    new = data.draw(st.lists(DIGITS, max_size=24 - keep))
    prompt = tokens[:keep] + new
    lease = session.admit(prompt)
    assert lease.plan.length <= lease.plan.shared_length
    assert lease.plan.length % model.grid == 0
    reads = session.feed(lease, prompt[lease.plan.start :])
    exact = lease.plan.length - lease.plan.start
    want = toy.cold(model, prompt).reads[:, lease.plan.length :]
    toy.assert_same_reads(reads[:, exact:], want)
    session.check(lease, prompt)


@pytest.mark.kind("K03")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=6)
@given(tokens=TOKENS, drafts=st.lists(DIGITS, min_size=1, max_size=8), data=st.data())
def test_rejected_drafts_leave_nothing(name, tokens, drafts, data):
    """Drafts on a second row that was given back: none is stored, seen or left."""
    model = toy.EVERY_KIND[name]()
    session = toy.Session(model)
    size = data.draw(st.integers(1, 16))
    session.store(tokens[:size], [4], each=True)
    records = toy.kept_bytes(session.cache)
    main = session.admit([*tokens[:size], 0])
    session.feed(main, tokens[main.plan.start : size])

    draft = session.admit([*tokens[:size], *drafts])
    start = draft.plan.start
    session.feed(draft, [*tokens[:size], *drafts][start:])
    session.release(draft, publish=False)
    assert toy.kept_bytes(session.cache) == records
    again = session.match([*tokens[:size], *drafts, 0][:24])
    assert again.length <= again.shared_length <= size
    accepted = drafts[: data.draw(st.integers(0, len(drafts)))]
    reads = session.feed(main, [*accepted, 9])
    want = toy.cold(model, [*tokens[:size], *accepted, 9])
    toy.assert_same_reads(reads, want.reads[:, size:])
    session.check(main, [*tokens[:size], *accepted, 9])


@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=6)
@given(tokens=TOKENS, data=st.data())
def test_tokens_that_never_ran_are_not_published(name, tokens, data):
    """A record ends where its row really came to, whatever was asked or refused."""
    model = toy.EVERY_KIND[name]()
    session = toy.Session(model)
    size = data.draw(st.integers(0, 20))
    lease = session.admit(tokens)
    session.feed(lease, tokens[:size], data.draw(SIZES))
    ((status,), _) = session.run((lease, [*tokens[size : size + 3], -1]))
    assert status == Status.BAD_TOKEN
    session.check(lease, tokens[:size])
    session.release(lease)
    assert session.prefixes.stored_tokens == size - size % model.grid
    plan = session.match(tokens)
    assert plan.length <= plan.shared_length == size - size % model.grid


@pytest.mark.parametrize("rollback", range(4))
def test_b11_it_is_said_before_the_round_whether_all_drafts_can_be_taken_back(rollback):
    """W=4 keeps 3 tokens for the next one, and those of the margin besides."""
    layers = toy.window(4), toy.window(4)
    model = toy.model(layers, blocks=1, style="sums", rollback=rollback)
    session = toy.Session(model)
    lease = session.admit([])
    session.feed(lease, toy.P[:8])
    said = [
        session.prefixes.can_rewind_after(session.cache, lease, drafts)
        for drafts in range(5)
    ]
    assert said == [drafts <= rollback for drafts in range(5)]


def test_b11_two_of_three_drafts_are_rejected():
    """W=4, P[:8] done, drafts 0,0,0, one accepted: position 9 reads {62,76,80}."""
    session = toy.Session(toy.fine())
    session.store(toy.P[:8], [1] * 8)
    draft = session.admit([*toy.P[:8], 0])
    session.feed(draft, [0, 0, 0])
    session.release(draft, publish=False)
    main = session.admit([*toy.P[:8], 0])
    session.feed(main, [0])
    assert session.length(main) == 9
    read = session.feed(main, [4])[1, 0]
    assert np.flatnonzero(read).tolist() == [6, 7, 8, 9]
    np.testing.assert_allclose(read[6:10] * 4, [62, 76, 80, 94], rtol=1e-6)
