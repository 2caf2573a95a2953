"""K01: exact-length hits and replay of the last token.

For any stored history and any prompt, the plan runs at least one position, and after
it every form equals a cold run of the prompt: each position was applied exactly once.
The resume point is the best that a search over all points finds.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Verdict

MODELS = {
    "mixed": toy.mixed,
    "fine": toy.fine,
    "window": toy.only_window,
    "full": toy.only_full,
}
TOKENS = st.lists(st.integers(1, 9), min_size=22, max_size=22)


def common(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )


def follow(session, prompt, sizes=(toy.WIDTH,)):
    """Admits a prompt, runs what its plan says, and checks state and reads."""
    lease = session.admit(prompt)
    plan = lease.plan
    assert 0 <= plan.start <= plan.length <= len(prompt) - 1
    assert plan.tokens_to_run == len(prompt) - plan.start
    assert session.length(lease) == plan.start
    reads = session.feed(lease, prompt[plan.start :], sizes)
    # A replay's first reads lack what was lost; from the resume point on all is exact.
    exact = plan.length - plan.start
    want = toy.cold(session.model, prompt).reads[:, plan.length :]
    toy.assert_same_reads(reads[:, exact:], want)
    session.check(lease, prompt)
    return lease


@pytest.mark.kind("K01")
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_form_equals_cold_after_the_plan(name, data):
    model = MODELS[name]()
    tokens = data.draw(TOKENS)
    size = data.draw(st.sampled_from([4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 18, 20]))
    sizes = toy.cuts(size, data.draw(st.lists(st.integers(1, 8), min_size=1)))
    history = tokens[:size]
    session = toy.Session(model)
    session.store(history, sizes)

    # Weight on the stored length, one more, and multiples of blocks and windows.
    lengths = [size, size, size + 1, size + 1, size - 1, 4, 5, 6, 7, 8, 10, 12, 13, 16]
    prompt = tokens[: data.draw(st.sampled_from(lengths))]
    turn = data.draw(st.one_of(st.none(), st.integers(0, len(prompt) - 1)))
    if turn is not None:
        prompt = [*prompt[:turn], prompt[turn] % 9 + 1, *prompt[turn + 1 :]]

    lease = follow(session, prompt)
    stored = size - size % model.grid
    want = toy.expected_plan(
        model,
        len(prompt),
        common(prompt, history[:stored]),
        toy.kept_blocks(model, sizes),
    )
    plan = lease.plan
    assert (plan.verdict, plan.length, plan.start) == want


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("repeats", [1, 3])
def test_the_same_prompt_again_and_again(name, repeats):
    """Each repeat runs the last token once; the row never grows past the prompt."""
    model = MODELS[name]()
    session = toy.Session(model)
    session.store(toy.P)
    for _ in range(repeats):
        lease = follow(session, toy.P)
        assert lease.plan.verdict == Verdict.RESUMABLE
        assert lease.plan.length == 11 - 11 % model.grid
        session.release(lease)
    assert session.prefixes.stored_tokens == len(toy.P)


def test_b02_exact_hit_after_the_window_has_wrapped():
    """W=3 over P[:6]: position 5 is run again and reads {31,45,59}, each once."""
    session = toy.Session(toy.fine())
    session.store(toy.P[:6], [1] * 6)
    lease = session.admit(toy.P[:6])
    assert lease.plan.verdict == Verdict.RESUMABLE
    assert lease.plan.length == 5

    reads = session.feed(lease, toy.P[5:6])
    narrow = reads[0, 0]
    assert np.flatnonzero(narrow).tolist() == [3, 4, 5]
    np.testing.assert_allclose(narrow[3:6] * 3, [31, 45, 59], rtol=1e-6)
    session.check(lease, toy.P[:6])


def test_b02_two_back_needs_an_entry_that_is_gone():
    """Resuming at 4 needs 24 (position 2), which the window let go.

    Both windows are gone and reach back 2 + 3 tokens together: all is run again.
    """
    session = toy.Session(toy.fine())
    session.store(toy.P[:6], [1] * 6)
    plan = session.match(toy.P[:5])
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    lost = plan.limiting
    assert {report.form for report in lost} == {Form.SWA_WINDOW}
    assert (lost[0].required, lost[0].position) == ((2, 4), 2)
    follow(session, toy.P[:5])
