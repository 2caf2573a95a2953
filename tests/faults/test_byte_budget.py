"""Red line 1: what goes first when bytes are short, and that the index is bounded.

Windows go before the history, the longest unused first, the end of a chain before its
beginning; what a lease needs stays.  After any history the index holds no more tokens
than the plan counts.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Retention, Verdict

OLD = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
NEW = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]


def stored_bytes(session):
    spec = session.model.plan.spec
    counts = session.prefixes.account(session.cache)
    return {
        pool.name: counts[pool.name]["evictable"] * pool.block_bytes
        for pool in spec.pools
    }


def shrink(session, nbytes):
    session.put(session.prefixes.shrink(session.cache, nbytes))


def test_windows_go_before_the_history_and_the_oldest_first():
    session = toy.Session(toy.fine())
    session.store(OLD, each=True)
    session.store(NEW, each=True)
    spec = session.model.plan.spec
    history = [pool.name for pool in spec.pools if pool.form == Form.FULL_KV]
    before = stored_bytes(session)
    windows = sum(size for name, size in before.items() if name not in history)
    shrink(session, windows // 2)
    after = stored_bytes(session)
    assert [after[name] for name in history] == [before[name] for name in history]
    assert sum(before.values()) - sum(after.values()) == windows // 2
    assert session.match([*NEW, 0]).length == 12
    assert session.match([*NEW, 0]).verdict == Verdict.RESUMABLE
    assert session.match([*OLD, 0]).verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    shrink(session, windows // 2 + 1)
    after = stored_bytes(session)
    assert sum(after.values()) == sum(after[name] for name in history)
    # One block of the history went: the last of the prompt that is older.
    assert session.match([*OLD, 0]).history_length == 11
    assert session.match([*NEW, 0]).history_length == 12


@settings(max_examples=6)
@given(parts=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_as_many_bytes_go_as_were_asked_and_hardly_more(parts):
    session = toy.Session(toy.fine())
    session.store(OLD, each=True)
    session.store(NEW, each=True)
    for part in parts:
        before = sum(stored_bytes(session).values())
        shrink(session, part)
        gone = before - sum(stored_bytes(session).values())
        assert gone >= min(part, before)
        # No form of higher priority is touched while a cheaper one is left.
        sizes = stored_bytes(session)
        cheap = sum(
            sizes[pool.name]
            for pool in session.model.plan.spec.pools
            if pool.form == Form.SWA_WINDOW
        )
        whole = stored_history(session) == 24
        assert whole or cheap == 0


def stored_history(session):
    counts = session.prefixes.account(session.cache)
    return next(
        counts[pool.name]["evictable"]
        for pool in session.model.plan.spec.pools
        if pool.form == Form.FULL_KV
    )


def test_a_lease_that_is_not_released_keeps_what_it_needs():
    session = toy.Session(toy.fine())
    session.store(OLD, each=True)
    lease = session.admit([*OLD, 7])
    assert lease.plan.verdict == Verdict.RESUMABLE
    shrink(session, 2**40)
    # Others' publications come and go meanwhile.
    session.store(NEW, each=True)
    shrink(session, 2**40)
    session.feed(lease, [*OLD, 7][lease.plan.start :])
    session.check(lease, [*OLD, 7])
    session.release(lease)
    assert session.match([*OLD, 7, 1]).length == 13


def test_no_negative_bytes():
    session = toy.Session(toy.fine())
    with pytest.raises(ValueError, match="whole number from 0"):
        session.prefixes.shrink(session.cache, -1)


def only_window(retention=Retention.every_block()):
    return toy.model((toy.window(6),), blocks=2, stored=8, rows=1, retention=retention)


BOUNDED = {
    "window": lambda: only_window(),
    "ends": lambda: only_window(Retention.ends()),
    "none": lambda: only_window(Retention.none()),
    "state": lambda: toy.model((toy.STATE,), style="chain", stored=8, rows=1),
    "full": lambda: toy.model((toy.FULL,), stored=8, rows=1),
}


@pytest.mark.parametrize("name", toy.marked(BOUNDED, "window"))
@settings(max_examples=6)
@given(seeds=st.lists(st.integers(0, 400), min_size=4, max_size=9))
def test_the_index_holds_no_more_than_the_plan_counts(name, seeds):
    """Many prompts, some of which share a beginning, and room made for each."""
    session = toy.Session(BOUNDED[name]())
    plan = session.model.plan
    for seed in seeds:
        random = np.random.default_rng(seed)
        prompt = [seed % 2] * (seed % 7) + random.integers(0, 10, 14).tolist()
        # Room for a whole prompt, as an engine makes it.
        wanted = [min(count, 11) for count in plan.blocks]
        session.put(session.prefixes.make_room(session.cache, wanted))
        session.store(prompt, [4], each=seed % 3 == 0)
        assert session.prefixes.stored_tokens <= plan.index_tokens
        lease = session.admit(prompt)
        session.release(lease, publish=False)
    if name == "none":
        assert session.prefixes.stored_tokens == 0
