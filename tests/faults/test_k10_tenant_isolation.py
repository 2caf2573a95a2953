"""K10: tenant isolation, on the device.

Everything that a tenant can observe is the same with and without another tenant's
records: verdicts, counts, reasons, explanations, what it may resume, and the order in
which its own blocks go.  The paired check is that the same tenant does hit.
"""

import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import (
    HybridCacheError,
    LeaseError,
    Reason,
    Verdict,
    eviction,
    versions,
)

# Few tokens, so that tenants store and ask for each other's prefixes.
TOKENS = st.lists(st.integers(1, 2), min_size=1, max_size=12)
ACTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["store", "ask"]), TOKENS),
    min_size=2,
    max_size=8,
)


def match(session, tenant, tokens):
    identity = session.model.identity.within(tenant)
    return session.prefixes.match(session.cache, tokens, identity)


def seen(session, tenant, tokens):
    """All that a tenant can learn of the store by asking."""
    plan = match(session, tenant, tokens)
    claimed = [(ids != np.iinfo(np.int32).max).tolist() for ids in plan.claims.blocks]
    return plan.to_dict(), plan.explain(), plan.claims.tokens.tolist(), claimed


def store(session, tenant, tokens):
    plan = match(session, tenant, tokens)
    lease = session.acquire(plan)
    session.feed(lease, tokens[plan.start :])
    session.check(lease, tokens)
    session.release(lease)


def order_of_going(session, tenant, prompts):
    """The tenant's blocks in the order in which they go, all pools in turn."""
    gone, names, size = [], {}, session.model.grid
    for tokens in prompts:
        claims = match(session, tenant, [*tokens, 1]).claims
        for pool, ids in enumerate(claims.blocks):
            for number, block in enumerate(ids.tolist()):
                names[pool, block] = tuple(tokens[: (number + 1) * size])
    for pool, table in enumerate(session.cache.tables):
        while True:
            table, ids = eviction.begin(
                table, np.int32(1), np.zeros(len(table.stage), bool)
            )
            block = int(ids[0])
            if block >= len(table.stage):
                break
            if (pool, block) in names:
                gone.append((pool, names[pool, block]))
    return gone


@pytest.mark.kind("K10")
@settings(max_examples=12)
@given(acts=ACTS)
def test_nothing_that_b_can_observe_depends_on_a(acts):
    observed = []
    for tenants in ("ab", "b"):
        session, mine = toy.Session(toy.only_full()), []
        prompts = [tokens for tenant, what, tokens in acts if tenant == "b"]
        for tenant, what, tokens in acts:
            if tenant not in tenants:
                continue
            if tenant == "b":
                mine.append(seen(session, "b", tokens))
            if what == "store":
                store(session, tenant, tokens)
                if tenant == "b":
                    mine.append(seen(session, "b", tokens))
        mine.append([seen(session, "b", tokens) for _, _, tokens in acts])
        mine.append(order_of_going(session, "b", prompts))
        observed.append(mine)
        # The paired check: whoever stored a whole block and asks again does hit.
        for tenant, what, tokens in acts:
            if tenant in tenants and what == "store" and len(tokens) >= 4:
                plan = match(session, tenant, [*tokens, 1])
                assert plan.verdict == Verdict.RESUMABLE
                assert plan.length == len(tokens) - len(tokens) % 4
    assert observed[0] == observed[1]


def test_b41_salts_isolate_tenants():
    """P[:8] stored by a: a hits, b and nobody do not; an empty salt is none."""
    session = toy.Session(toy.fine())
    store(session, "a", toy.P[:8])
    empty = toy.Session(toy.fine())
    hit = match(session, "a", toy.P[:9])
    assert (hit.verdict, hit.length) == (Verdict.RESUMABLE, 8)
    for other in ("b", None, ""):
        assert seen(session, other, toy.P[:9]) == seen(empty, other, toy.P[:9])
        plan = match(session, other, toy.P[:9])
        assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
        assert (plan.reason, plan.shared_length) == (Reason.NOT_STORED, 0)
    store(session, None, toy.P[:8])
    assert match(session, "", toy.P[:9]).length == 8
    assert match(session, "b", toy.P[:9]).length == 0


def test_a_plan_of_another_tenant_is_of_no_use():
    """Claims of a under b's name: the facts know who wrote the blocks."""
    session = toy.Session(toy.only_full())
    store(session, "a", toy.P[:8])
    theirs = match(session, "a", toy.P[:9])
    key = dataclasses.replace(theirs.key, identity=session.model.identity.within("b"))
    forged = dataclasses.replace(theirs, key=key)
    before = session.cache
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(forged)
    assert session.cache is before
    lease = session.acquire(theirs)
    session.check(lease, toy.P[:8])


def test_a_tenant_that_left_nothing_is_forgotten_and_its_number_too(monkeypatch):
    """Many come and go beside one that stored and one that runs."""
    monkeypatch.setattr(versions, "_SPARE", 3)
    session, prompt = toy.Session(toy.only_full()), [1, 2, 1, 2, 2, 1, 1, 1]
    store(session, "a", prompt)
    running = session.acquire(match(session, "b", prompt))
    session.feed(running, prompt)
    numbers = [int(session.cache.rows.version[running.row])]
    for guest in [*range(12), 0]:
        lease = session.acquire(match(session, f"guest {guest}", prompt))
        numbers.append(int(session.cache.rows.version[lease.row]))
        session.release(lease, publish=False)
    # Two are alive; no number, not even that of the guest who came twice, comes again.
    assert len(session.prefixes._versions) <= 2 * 2 + 3
    assert len(set(numbers)) == len(numbers)
    session.release(running)
    for tenant in "ab":
        plan = match(session, tenant, [*prompt, 1])
        assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)
        lease = session.acquire(plan)
        session.check(lease, prompt)
        session.release(lease, publish=False)


def test_there_is_no_number_beyond_int32():
    numbers, known = versions.Versions(), toy.only_full().identity
    numbers.adopt({known: 2**31 - 1})
    assert numbers.give(known) == 2**31 - 1
    with pytest.raises(HybridCacheError, match="more than int32"):
        numbers.give(known.within("another"))
