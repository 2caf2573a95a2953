"""A replay runs the tokens it replays, and no others.

What it reads was made of them; another token at one of these positions would leave
entries that belong to neither prompt.
"""

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Status, Verdict

HISTORY = [p * 5 % 9 + 1 for p in range(20)]


def partial(session):
    """A row whose plan replays, stored history behind it."""
    session.store(HISTORY, [4], each=True)
    session.evict(Form.SWA_WINDOW)
    plan = session.match([*HISTORY, 3])
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    return session.acquire(plan), plan


@settings(max_examples=20)
@given(data=st.data())
def test_another_token_below_the_resume_point_does_not_run(data):
    session = toy.Session(toy.mixed())
    lease, plan = partial(session)
    given_tokens = [*HISTORY, 3][plan.start : plan.start + toy.WIDTH]
    wrong = data.draw(st.integers(0, plan.length - plan.start - 1))
    if wrong >= len(given_tokens):
        wrong = 0
    changed = list(given_tokens)
    changed[wrong] = changed[wrong] % 9 + 1
    before = session.cache
    (status,), _ = session.run((lease, changed))
    assert status == Status.OTHER_TOKEN
    assert toy.unchanged(before, session.cache)
    session.feed(lease, [*HISTORY, 3][plan.start :])
    session.check(lease, [*HISTORY, 3])


def test_running_from_the_length_in_place_of_the_start_is_noticed():
    """The natural slip: the prompt's tokens from the resume point on."""
    session = toy.Session(toy.mixed())
    lease, plan = partial(session)
    (status,), _ = session.run((lease, [*HISTORY, 3][plan.length :]))
    assert status == Status.OTHER_TOKEN


def test_behind_the_resume_point_any_token_runs():
    session = toy.Session(toy.mixed())
    lease, plan = partial(session)
    other = [*HISTORY[: plan.length], 7, 7, 7]
    session.feed(lease, other[plan.start :])
    session.check(lease, other)


@pytest.mark.parametrize("cold", [False, True])
def test_rows_without_a_replay_are_free(cold):
    session = toy.Session(toy.mixed())
    session.store(HISTORY, [4], each=True)
    tokens = [8] * 6 if cold else [*HISTORY[:16], 8, 8]
    lease = session.admit(tokens)
    session.feed(lease, tokens[lease.plan.start :])
    session.check(lease, tokens)
