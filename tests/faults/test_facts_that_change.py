"""K05, K23: facts that change between match, lease and step.

A block that a plan may name is lost, handed over to someone else, or written by another
producer: before the lookup, between lookup and lease, or under the row.  Each fault
writes over the block too, so whoever went on reading it would be wrong.  The answer is
that of a cold run, or it is refused; it is never wrong.
"""

import dataclasses
import functools

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import LeaseError, Status
from hybridcache_jax.testing import faults

FOREIGN = 2**31 - 1  # a producer that nobody is
MATCH, ACQUIRE, STEP = MOMENTS = ("before match", "before acquire", "before the step")


def hand_over_within(cache, pool, block):
    """To another prompt of the same producer: the epoch alone tells them apart."""
    version = int(cache.tables[pool].version[block])
    cache = faults.hand_over(cache, pool, block)
    return faults.rewrite_version(cache, pool, block, version)


def rewrite_version(cache, pool, block):
    return faults.rewrite_version(cache, pool, block, FOREIGN)


FAULTS = {
    "lose": faults.lose,
    "hand over": faults.hand_over,
    "hand over within": hand_over_within,
    "rewrite version": rewrite_version,
}


def written_over(cache, pool, block):
    """Other numbers in every plane of a block."""
    pools = list(cache.pools)
    pools[pool] = {
        name: plane.at[:, block].set(555) for name, plane in pools[pool].items()
    }
    return dataclasses.replace(cache, pools=tuple(pools))


def without_pins(cache, pool, block):
    """As if nobody had counted who holds the block."""
    tables = list(cache.tables)
    pins = tables[pool].pins.at[block].set(0)
    tables[pool] = dataclasses.replace(tables[pool], pins=pins)
    return dataclasses.replace(cache, tables=tuple(tables))


def stored_session(model, tokens):
    session = toy.Session(model)
    session.store(tokens, [4], each=True)
    return session


def stored_blocks(session):
    """Pool and id of everything that is stored."""
    return [
        (pool, block)
        for pool in range(len(session.model.plan.blocks))
        for block in faults.stored(session.cache, pool)
    ]


def strike(session, fault, pool, block):
    """The fault, and other numbers in the block.

    A pinned block is not lost; where it is all the same, there was no pin.
    """
    cache = session.cache
    pinned = int(cache.tables[pool].pins[block]) > 0
    if pinned and fault is not rewrite_version:
        with pytest.raises(ValueError, match="is pinned"):
            fault(cache, pool, block)
        cache = without_pins(cache, pool, block)
    session.cache = written_over(fault(cache, pool, block), pool, block)


def ask(session, prompt, moment, change):
    """One answer with ``change()`` at its moment; whether it was refused."""
    if moment == MATCH:
        change()
    plan = session.match(prompt)
    if moment == ACQUIRE:
        change()
    try:
        lease = session.acquire(plan)
    except LeaseError:
        assert moment == ACQUIRE
        return True
    if moment == STEP:
        change()
    step = prompt[plan.start :][: toy.WIDTH]
    cache, statuses, reads = session.step(
        session.cache, session.inputs([(lease, step)])
    )
    if statuses[0] == Status.STALE:
        assert moment == STEP
        assert not np.asarray(reads).any()
        with pytest.raises(LeaseError, match="nothing was published"):
            session.prefixes.publish(cache, lease)
        session.cache = cache
        session.release(lease, publish=False)
        return True
    assert statuses[0] == Status.OK
    session.put(cache)
    done = plan.start + len(step)
    session.feed(lease, prompt[done:])
    # What a replay reads on its way is nobody's answer.
    new = np.asarray(reads)[:, 0, plan.length - plan.start : len(step)]
    want = toy.cold(session.model, prompt).reads[:, plan.length : done]
    toy.assert_same_reads(new, want)
    session.check(lease, prompt)
    session.release(lease, publish=False)
    return False


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize(
    "build", [toy.only_full, pytest.param(toy.fine, marks=pytest.mark.slow)]
)
def test_an_answer_is_right_or_refused_whatever_changes(build, name, moment):
    """Every stored block in turn."""
    model, prompt, refused = build(), toy.P[:9], 0
    blocks = stored_blocks(stored_session(model, toy.P))
    for pool, block in blocks:
        session = stored_session(model, toy.P)
        change = functools.partial(strike, session, FAULTS[name], pool, block)
        refused += ask(session, prompt, moment, change)
        # Whoever asks again is right.
        assert not ask(session, prompt, MATCH, lambda: None)
    assert (refused > 0) == (moment != MATCH)
    assert refused < len(blocks)


@pytest.mark.kind("K05")
@settings(max_examples=20)
@given(
    pick=st.integers(0, 99),
    moment=st.sampled_from(MOMENTS),
    version=st.sampled_from([-1, 0, 1, 2, FOREIGN]),
    tokens=st.integers(1, 12),
    other=st.integers(0, 3),
)
def test_a_version_that_index_and_memory_do_not_share(
    pick, moment, version, tokens, other
):
    """Another producer's number is refused or not reused; one's own is right."""
    session = stored_session(toy.only_full(), toy.P)
    blocks = stored_blocks(session)
    pool, block = blocks[pick % len(blocks)]
    own = int(session.cache.tables[pool].version[block])
    prompt = [*toy.P[:tokens], *[9] * other, 0]

    def change():
        cache = faults.rewrite_version(session.cache, pool, block, version)
        same = version == own
        session.cache = cache if same else written_over(cache, pool, block)

    before = session.match(prompt).length
    refused = ask(session, prompt, moment, change)
    after = session.match(prompt).length
    named = int(session.cache.tables[pool].first[block]) < before
    assert after == before if version == own or not named else after < before
    assert refused == (named and version != own and moment != MATCH)
    assert not ask(session, prompt, MATCH, lambda: None)
