"""K24: honest verdicts.

Verdict, counts and what is really run agree; a lookup is pure and repeatable; whatever
is not resumed as deep as it is stored names form, position and reason; where brute
force finds a larger provable point, so does the library.
"""

import jax
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Reason, Status, Verdict

HISTORY = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3)
LOST = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=3)


def facts_of(session):
    return jax.tree.map(np.array, session.cache)


def lose(session, held, lost):
    """Evicts some of the stored blocks; gives what is left, per layer."""
    left = [set(blocks) for blocks in held]
    for layer, block in sorted(lost):
        if block in left[layer]:
            session.lose(layer, block, [*HISTORY, 1])
            left[layer].remove(block)
    return left


def holes(model, left, point):
    """Per layer, the first position that resuming at ``point`` lacks."""
    found = {}
    for layer, kind in enumerate(model.kinds):
        size = model.block(layer)
        for p in range(kind.first(point), point):
            if p // size not in left[layer]:
                found[layer] = p
                break
    return found


@pytest.mark.kind("K24")
@settings(max_examples=20)
@given(
    size=st.sampled_from([8, 12, 16]),
    lost=LOST,
    asked=st.integers(1, 16),
    turn=st.integers(0, 20),
)
def test_verdict_counts_and_what_is_run_agree(size, lost, asked, turn):
    model = toy.mixed()
    session = toy.Session(model)
    session.store(HISTORY[:size])
    left = lose(session, toy.stored_blocks(model, session.cache), lost)
    prompt = list(HISTORY[:asked])
    if turn < asked:
        prompt[turn] = prompt[turn] % 9 + 1
    common = min(turn, asked, size)

    # Pure and repeatable.
    before, stored = facts_of(session), session.prefixes.stored_tokens
    plan = session.match(prompt)
    again = session.match(prompt)
    assert plan.to_dict() == again.to_dict()
    assert plan.explain() == again.explain()
    assert toy.leaves_equal(before, session.cache)
    assert session.prefixes.stored_tokens == stored

    # Sound and complete.
    want = toy.expected_plan(model, asked, common, left)
    assert (plan.verdict, plan.length, plan.start) == want

    # What is not resumed as deep as it is stored is named.
    claimed = min(common, asked - 1) // model.grid * model.grid
    assert plan.claimed_length == claimed
    missing = holes(model, left, claimed)
    for layer in range(len(model.kinds)):
        report = plan.forms[model.pool_of(layer)]
        position = missing.get(layer, -1)
        assert (report.position, report.held) == (position, layer not in missing)
        if layer in missing:
            assert report.reason in (Reason.EVICTED, Reason.NOT_RETAINED)
            line = f"{report.pool}: needs positions"
            assert f"missing from position {position}" in plan.explain()
            assert line in plan.explain()
    if plan.verdict != Verdict.RESUMABLE:
        assert plan.reason != Reason.OK
        assert bool(plan.limiting) == bool(missing)
        assert missing or claimed == 0
    assert plan.shared_length == common or not plan.claimed_length

    # Positions run are those of the plan.
    assert plan.tokens_to_run == len(prompt) - plan.start
    lease = session.acquire(plan)
    run = 0
    while session.length(lease) < len(prompt):
        at = session.length(lease)
        ((status,), _) = session.run((lease, prompt[at : at + toy.WIDTH]))
        assert status == Status.OK
        run += session.length(lease) - at
    assert run == plan.tokens_to_run
    session.check(lease, prompt)


def test_b91_what_was_stored_is_what_the_next_lookup_gives():
    """Store P[:8], look up P[:9]: eight claimed, eight resumed, eight not run."""
    session = toy.Session(toy.fine())
    session.store(toy.P[:8])
    assert session.prefixes.stored_tokens == 8
    lease = session.admit(toy.P[:9])
    plan = lease.plan
    assert (plan.verdict, plan.length, plan.claimed_length) == (Verdict.RESUMABLE, 8, 8)
    assert plan.num_tokens - plan.tokens_to_run == 8
    session.feed(lease, toy.P[8:9])
    session.check(lease, toy.P[:9])


def test_b91_where_it_cannot_be_eight_the_plan_says_why():
    """A window's entry 7 is gone: eight are claimed, and form and position named."""
    session = toy.Session(toy.fine())
    session.store(toy.P[:8])
    session.lose(1, 7, toy.P[:9])
    plan = session.match(toy.P[:9])
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 7)
    assert (plan.reason, plan.claimed_length) == (Reason.EVICTED, 8)
    (report,) = plan.limiting
    assert (report.position, report.reason) == (7, Reason.EVICTED)
    assert report.pool == session.model.plan.spec.pools[1].name
