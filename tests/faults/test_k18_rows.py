"""K18: rows and slots of a batch.

Row i's result depends on row i's tokens alone: equal under permutation of the batch,
other neighbours, other lengths, reused slots and earlier occupants.  Live requests
never share a slot.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Status, Verdict

DIGITS = st.integers(1, 9)


def used(model, seed):
    """A session whose memory is full of other requests' entries."""
    session = toy.Session(model)
    random = np.random.default_rng(seed)
    leases = []
    for _ in range(model.rows):
        tokens = random.integers(1, 10, 20).tolist()
        leases.append(session.admit(tokens))
        session.feed(leases[-1], tokens)
    for place in random.permutation(model.rows):
        session.release(leases[place], publish=bool(random.integers(2)))
    return session


def interleave(session, prompts, plan):
    """Runs prompts together; ``plan`` gives per step the order and the counts.

    Returns:
      The leases, and per prompt its reads.
    """
    leases = [session.admit([]) for _ in prompts]
    at, reads = [0] * len(prompts), [[] for _ in prompts]
    turn = 0
    while any(a < len(x) for a, x in zip(at, prompts, strict=True)):
        order, counts = plan[turn % len(plan)]
        turn += 1
        parts, who = [], []
        for i in order:
            count = min(counts[i], len(prompts[i]) - at[i])
            if count:
                parts.append((leases[i], prompts[i][at[i] : at[i] + count]))
                who.append((i, count))
        if not parts:
            continue
        statuses, out = session.run(*parts)
        assert set(statuses) == {Status.OK}
        for place, (i, count) in enumerate(who):
            reads[i].append(out[:, place, :count])
            at[i] += count
    return leases, [np.concatenate(parts, axis=1) for parts in reads]


STEP = st.tuples(
    st.permutations(range(3)), st.lists(st.integers(1, 8), min_size=3, max_size=3)
)
PROMPTS = st.lists(st.lists(DIGITS, min_size=1, max_size=20), min_size=3, max_size=3)
STEPS = st.lists(STEP, min_size=1, max_size=4)


@pytest.mark.kind("K18")
@settings(max_examples=30)
@given(prompts=PROMPTS, plan=STEPS, seed=st.integers(0, 9))
def test_rows_equal_cold_whatever_their_neighbours(prompts, plan, seed):
    model = toy.mixed()
    session = used(model, seed)
    leases, reads = interleave(session, prompts, plan)
    for lease, tokens, read in zip(leases, prompts, reads, strict=True):
        toy.assert_same_reads(read, toy.cold(model, tokens).reads)
        session.check(lease, tokens)
    blocks = [
        set(ids[ids < count].tolist())
        for ids, count in _live_blocks(session.cache, leases)
    ]
    # Nothing is stored here that the three share: each has blocks of its own.
    for pool in range(len(model.plan.blocks)):
        mine = blocks[pool * 3 : pool * 3 + 3]
        assert sum(map(len, mine)) == len(set().union(*mine))


def _live_blocks(cache, leases):
    for pool, count in enumerate(cache.plan.blocks):
        for lease in leases:
            yield np.asarray(cache.rows.blocks[pool][lease.row]), count


@pytest.mark.slow
@settings(max_examples=25)
@given(prompts=PROMPTS, plan=STEPS, seed=st.integers(0, 9))
def test_softmax_rows_have_the_bits_of_a_run_alone(prompts, plan, seed):
    """Same chunks, alone in a fresh cache or among others in a used one."""
    model = toy.stacked()
    leases, together = interleave(session := used(model, seed), prompts, plan)
    for i, (lease, tokens) in enumerate(zip(leases, prompts, strict=True)):
        alone = toy.Session(model)
        (other,), (reads,) = interleave(
            alone, [tokens], [([0], [counts[i]]) for _, counts in plan]
        )
        np.testing.assert_array_equal(together[i], reads)
        toy.assert_same_state(session.state(lease), alone.state(other))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_b70_each_row_is_written_at_its_own_length(order):
    """Lengths 1 and 4: entries land at 1 and 4; row 1's entry 1 stays."""
    model = toy.only_full()
    session = toy.Session(model)
    prompts = [[7], [3, 1, 4, 1]]
    leases = [session.admit([]) for _ in prompts]
    for lease, tokens in zip(leases, prompts, strict=True):
        session.feed(lease, tokens)
    session.run(*[(leases[i], [5]) for i in order])
    short, long = (session.state(lease).v[0].max(axis=(1, 2)) for lease in leases)
    np.testing.assert_array_equal(short, [7, 15])
    np.testing.assert_array_equal(long, [3, 11, 24, 31, 45])
    assert [session.length(lease) for lease in leases] == [2, 5]


@pytest.mark.parametrize("stored", [True, False])
def test_b71_a_row_shows_nothing_of_its_last_occupant(stored):
    """Row 0 held another request; P[:9] comes in by a hit at 8, or not at all."""
    session = toy.Session(toy.mixed())
    if stored:
        session.store(toy.P[:8])
    before = session.admit([9] * 9)
    session.feed(before, [9] * 24)
    row = before.row
    session.release(before, publish=False)

    lease = session.admit(toy.P[:9])
    assert lease.row == row
    if stored:
        assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 8)
        session.check(lease, toy.P[:8])
    else:
        assert lease.plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
        assert session.length(lease) == 0
        assert session.state(lease).positions == ((), (), ())
    reads = session.feed(lease, toy.P[lease.plan.start : 9])
    want = toy.cold(session.model, toy.P[:9]).reads
    toy.assert_same_reads(reads[:, -1], want[:, 8])
    session.check(lease, toy.P[:9])


# S <- (2 S + t) mod 1000 is 999 after these.
ENDS_IN_999 = (1, 1, 1, 9, 8, 9, 9, 9, 9)


def state_of(session, lease):
    return session.state(lease).parts[0, "state"].planes["s"].item()


def slot_of(session, lease):
    """Block of the state that a row goes on from: its columns are a ring."""
    model = session.model
    ids = session.cache.rows.blocks[model.pool_of(0, "state")][lease.row]
    last = (session.length(lease) - 1) // model.block(0, "state")
    return int(ids[last % len(ids)])


@pytest.mark.parametrize("stored", [True, False])
def test_b71_a_state_slot_shows_nothing_of_its_last_occupant(stored):
    """A slot held 999 of another request: the snapshot 678 goes first, then 361."""
    session = toy.Session(toy.model((toy.STATE, toy.FULL)))
    if stored:
        session.store(toy.P[:8])
    before = session.admit(ENDS_IN_999)
    session.feed(before, ENDS_IN_999)
    assert state_of(session, before) == 999
    row, slot = before.row, slot_of(session, before)
    session.release(before, publish=False)

    lease = session.admit(toy.P[:9])
    assert lease.row == row
    if stored:
        assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 8)
        assert state_of(session, lease) == 678
    else:
        assert lease.plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
        session.feed(lease, toy.P[:8])
    written = [slot_of(session, lease)]
    session.feed(lease, toy.P[8:9])
    written.append(slot_of(session, lease))
    # The very slot, handed out again: for position 8, or for the run before it.
    assert written[stored] == slot
    assert state_of(session, lease) == 361
    session.check(lease, toy.P[:9])


def test_b71_without_its_snapshot_a_hit_does_not_resume():
    session = toy.Session(toy.model((toy.STATE, toy.FULL)))
    session.store(toy.P[:8])
    session.evict(Form.RECURRENT_STATE)
    plan = session.match(toy.P[:9])
    assert (plan.claimed_length, plan.history_length) == (8, 8)
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert session.answer(toy.P[:9]).start == 0


@pytest.mark.kind("K18")
@settings(max_examples=25)
@given(
    first=st.lists(DIGITS, min_size=1, max_size=24),
    second=st.lists(DIGITS, min_size=1, max_size=24),
    publish=st.booleans(),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=3),
)
def test_reused_rows_and_blocks_start_clean(first, second, publish, sizes):
    """Whatever ran before in a row, the next request is as in a fresh cache."""
    model = toy.mixed()
    session = toy.Session(model)
    before = session.admit(first)
    session.feed(before, first, sizes)
    session.release(before, publish=publish)
    lease = session.admit(second)
    assert lease.row == before.row
    assert lease.ticket != before.ticket
    start = lease.plan.start
    reads = session.feed(lease, second[start:], sizes)
    exact = lease.plan.length - start
    want = toy.cold(model, second).reads[:, lease.plan.length :]
    toy.assert_same_reads(reads[:, exact:], want)
    session.check(lease, second)


def test_a_refused_row_takes_nothing_from_the_next():
    """One free block: the row that wants two is refused, in whichever place."""
    model = toy.model((toy.Kind("full"),), max_length=24, rows=3, stored=0)
    assert model.plan.blocks == (8,)
    outcomes = []
    for order in ((0, 1), (1, 0)):
        session = toy.Session(model)
        leases = [session.admit([]) for _ in range(3)]
        for lease, length in zip(leases, (12, 8, 8), strict=True):
            session.feed(lease, [1] * length)
        parts = [(leases[0], [2] * 8), (leases[1], [3] * 4)]
        statuses, _ = session.run(*(parts[number] for number in order))
        outcomes.append(
            {n: Status(int(s)) for n, s in zip(order, statuses, strict=True)}
        )
    assert outcomes[0] == outcomes[1] == {0: Status.NO_ROOM, 1: Status.OK}
