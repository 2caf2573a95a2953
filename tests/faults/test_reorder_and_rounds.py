"""K03, K17: beams and speculative rounds, over any tree of forks.

Rows are reordered, selected and settled all together or not at all.  Each row holds
then, bit for bit, what a cold run of its own tokens leaves; rows that were dropped
leave nothing behind.
"""

import dataclasses

import jax
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import LeaseError, NoRoomError, Status
from hybridcache_jax.codes import Stage

DIGITS = st.integers(1, 9)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "round", "round", "reorder", "reorder", "select"]),
        st.lists(st.integers(0, 99), min_size=3, max_size=3),
        st.lists(DIGITS, min_size=1, max_size=8),
    ),
    min_size=3,
    max_size=8,
)


def fresh(model):
    """A session of its own memory: a reordering takes the memory it is given."""
    return toy.Session(model, hc.init(model.plan))


def call(session, name, leases, numbers):
    """``reorder``, ``select`` or ``settle``; the laws hold after it."""
    method = getattr(session.prefixes, name)
    cache, leases = method(session.cache, leases, numbers)
    session.put(cache)
    return list(leases)


def refused(session, error, name, leases, numbers, match=None):
    """The same call raises, and changes nothing."""
    before = session.cache
    with pytest.raises(error, match=match):
        call(session, name, leases, numbers)
    assert session.cache is before
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(before))


def all_free(session):
    """Whether no block is in use."""
    counts = session.prefixes.account(session.cache).values()
    return all(count["free"] == count["total"] for count in counts)


def without_free_blocks(session):
    """The cache with nothing left to hand out.  The laws do not hold in it."""
    tables = [
        dataclasses.replace(t, num_free=t.num_free * 0) for t in session.cache.tables
    ]
    return dataclasses.replace(session.cache, tables=tuple(tables))


def a_round(session, rows, numbers, drafts):
    """Drafts for all rows in one step, each accepted in part; or nothing at all."""
    leases = [lease for lease, _ in rows]
    room = min(session.model.max_length - len(mine) for _, mine in rows)
    drafts = drafts[:room]
    statuses, _ = session.run(*((lease, drafts) for lease in leases))
    ran = [mine + drafts for _, mine in rows]
    if not drafts or set(statuses) != {Status.OK}:
        ran = [
            longer if status == Status.OK and drafts else mine
            for (_, mine), longer, status in zip(rows, ran, statuses, strict=True)
        ]
        return list(zip(leases, ran, strict=True))
    lengths = [
        len(mine) + number % (len(drafts) + 1)
        for (_, mine), number in zip(rows, numbers, strict=False)
    ]
    can = [
        session.prefixes.can_rewind(session.cache, lease, length)
        for lease, length in zip(leases, lengths, strict=True)
    ]
    if not all(can):
        row = leases[can.index(False)].row
        refused(session, LeaseError, "settle", leases, lengths, f"Row {row} cannot")
        return list(zip(leases, ran, strict=True))
    new = call(session, "settle", leases, lengths)
    for one, other, mine, length in zip(leases, new, ran, lengths, strict=True):
        assert (one == other) == (length == len(mine))
    kept = [mine[:length] for mine, length in zip(ran, lengths, strict=True)]
    return list(zip(new, kept, strict=True))


@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=5)
@given(acts=ACTS)
def test_every_leaf_of_a_tree_is_a_cold_run_of_its_own_tokens(name, acts):
    model = toy.EVERY_KIND[name]()
    session = fresh(model)
    rows = [(session.admit([]), [])]
    for act, numbers, tokens in acts:
        leases = [lease for lease, _ in rows]
        places = [n % len(rows) for n in numbers]
        if act == "feed":
            lease, mine = rows[places[0]]
            tokens = tokens[: model.max_length - len(mine)]
            session.feed(lease, tokens)
            rows[places[0]] = (lease, mine + tokens)
        elif act == "round":
            rows = a_round(session, rows, numbers, tokens)
        else:
            if act == "select":
                places = list(dict.fromkeys(places[:2]))
            new = call(session, act, leases, places)
            for place, lease in zip(places, new, strict=True):
                first = places.index(place) == new.index(lease)
                assert (lease == leases[place]) == first
            kept = [list(rows[place][1]) for place in places]
            rows = list(zip(new, kept, strict=True))
        for lease, mine in rows:
            session.check(lease, mine)
    for lease, _ in rows:
        session.release(lease, publish=False)
    assert all_free(session)


def test_beams_move_without_a_copy_and_the_dropped_row_serves_the_fork():
    """Three beams become two of the last and one of the first; rows are full."""
    session = fresh(toy.fine())
    leases = [session.admit([]) for _ in range(3)]
    for digit, lease in enumerate(leases, 1):
        session.feed(lease, [digit] * 5)
    a, b, c = leases
    new = call(session, "reorder", leases, [2, 2, 0])
    assert (new[0], new[2]) == (c, a)
    assert new[1].row == b.row
    assert new[1].ticket > b.ticket
    for lease, digit in zip(new, (3, 3, 1), strict=True):
        session.check(lease, [digit] * 5)
    for call_it in (session.prefixes.publish, session.prefixes.release):
        with pytest.raises(LeaseError):
            call_it(session.cache, b)
    assert session.prefixes.stored_tokens == 0
    for place, lease in enumerate(new):
        session.feed(lease, [7 + place])
    for place, (lease, digit) in enumerate(zip(new, (3, 3, 1), strict=True)):
        session.check(lease, [digit] * 5 + [7 + place])


def test_what_does_not_fit_changes_nothing():
    session = fresh(toy.only_full())
    leases = [session.admit([]) for _ in range(2)]
    for lease in leases:
        session.feed(lease, [3, 1, 4])
    refused(session, NoRoomError, "reorder", leases, [0, 0, 1, 1], "2 more are wanted")
    # One row, but no block for the copy of what it is writing.
    full = without_free_blocks(session)
    with pytest.raises(NoRoomError, match="Row 1 cannot be forked: no free block"):
        session.prefixes.reorder(full, leases, [0, 1, 1])
    # What the dropped row lets go of suffices.
    with pytest.raises(LeaseError, match="no longer holds"):
        session.prefixes.publish(
            session.prefixes.reorder(full, leases, [1, 1])[0], leases[0]
        )


@pytest.mark.parametrize("name", ["reorder", "select", "settle"])
def test_wrong_numbers_and_foreign_leases_are_refused(name):
    session = fresh(toy.only_full())
    one, two = session.admit([]), session.admit([])
    session.feed(one, [3, 1, 4])
    session.feed(two, [3, 1])
    good = {"reorder": [1, 1], "select": [1], "settle": [2, 1]}[name]
    bad = {"reorder": [[0, 2], [-1]], "select": [[0, 0], [2]]}
    for numbers in bad.get(name, [[3, 3], [-1, 2], [2], [2, 2**40]]):
        refused(session, ValueError, name, [one, two], numbers)
    refused(session, ValueError, name, [one, one], good, "once")
    for change in (
        {"ticket": one.ticket + 1},
        {"row": 99},
        {"row": session.model.rows},
    ):
        forged = dataclasses.replace(one, **change)
        refused(session, LeaseError, name, [forged, two], good)
    session.check(one, [3, 1, 4])
    session.check(two, [3, 1])


def test_a_round_is_settled_by_all_rows_or_none():
    """Drafts in two steps: what the window saw at 7 is gone, and no row moves."""
    session = fresh(toy.fine())
    leases = [session.admit([]) for _ in range(3)]
    tokens = [*toy.P[:8], 9, 9]
    session.run(*((lease, tokens[:8]) for lease in leases))
    for _ in range(2):
        session.run(*((lease, [9]) for lease in leases))
    refused(session, LeaseError, "settle", leases, [9, 7, 10], "Row 1 .* 7: .*requires")
    new = call(session, "settle", leases, [9, 10, 10])
    assert [a == b for a, b in zip(leases, new, strict=True)] == [False, True, True]
    for lease, length in zip(new, (9, 10, 10), strict=True):
        session.check(lease, tokens[:length])


@pytest.mark.slow
def test_a_round_of_states_goes_back_to_checkpoints_or_not_at_all():
    session = fresh(toy.recurrent())
    leases = [session.admit([]) for _ in range(3)]
    for lease in leases:
        session.feed(lease, list(toy.P[:8]))
    session.run(*((lease, [9, 9]) for lease in leases))
    tokens = [*toy.P[:8], 9, 9]
    refused(session, LeaseError, "settle", leases, [8, 9, 10], "Row 1 .* 9: .*requires")
    new = call(session, "settle", leases, [8, 10, 8])
    for lease, length in zip(new, (8, 10, 8), strict=True):
        session.check(lease, tokens[:length])


def test_rows_that_share_a_finished_block_take_it_apart():
    """Three rows go back into one block: one writes it on, the others get copies."""
    session = fresh(toy.only_full())
    lease = session.admit([])
    session.feed(lease, toy.P[:8])
    leases = call(session, "reorder", [lease], [0, 0, 0])
    shared = {int(session.cache.rows.blocks[0][lease.row, 1]) for lease in leases}
    assert len(shared) == 1
    leases = call(session, "settle", leases, [7, 5, 6])
    own = [int(session.cache.rows.blocks[0][lease.row, 1]) for lease in leases]
    assert len(set(own)) == 3
    assert shared < set(own)
    for digit, (lease, length) in enumerate(zip(leases, (7, 5, 6), strict=True)):
        session.feed(lease, [digit])
        session.check(lease, [*toy.P[:length], digit])


def test_what_one_row_lets_go_of_serves_the_copy_of_another():
    """No block is free, and the row that needs one stands before the one that gives."""
    session = fresh(toy.only_full())
    stored = session.admit([])
    session.feed(stored, toy.P[:4])
    session.release(stored)
    first, second = session.admit([*toy.P[:4], 1]), session.admit([])
    session.feed(second, toy.P[:8])
    refused_cache = without_free_blocks(session)
    with pytest.raises(NoRoomError, match="Row 0 cannot be rewound to 3"):
        session.prefixes.rewind(refused_cache, first, 3)
    with pytest.raises(NoRoomError, match="Row 0 cannot be rewound to 3"):
        session.prefixes.settle(refused_cache, [first, second], [3, 8])
    cache, _ = session.prefixes.settle(refused_cache, [first, second], [3, 4])
    assert np.asarray(cache.rows.length)[[first.row, second.row]].tolist() == [3, 4]
    assert int(cache.tables[0].num_free) == 0


def test_the_transitions_themselves_give_back_what_they_were_given():
    """One of two rows cannot: facts are as before, and there is nothing to copy."""
    session = fresh(toy.only_full())
    one, two = session.admit([]), session.admit([])
    for lease in (one, two):
        session.feed(lease, toy.P[:8])
    branching, size = session.prefixes._branching, session.model.rows
    facts = dataclasses.replace(session.cache, pools=())
    forged = dataclasses.replace(two, ticket=two.ticket + 1)
    for moved in (
        branching._rewind_facts(facts, [one, two], [7, 9], [True, True], size),
        branching._branch_facts(facts, [one, forged], [], [0], [2], size),
        branching._branch_facts(facts, [one, two], [], [0], [1], size),
    ):
        codes = np.asarray(moved.status).tolist()
        assert not set(codes) <= {Status.OK, Status.IDLE}
        assert toy.leaves_equal(moved.cache, facts)
        assert (np.asarray(moved.targets) == session.model.plan.blocks[0]).all()


@settings(max_examples=15)
@given(data=st.data())
def test_no_copy_reads_what_another_one_writes(data):
    """Sources stay assigned until all copies are made, and targets are no sources."""
    session = fresh(toy.only_full())
    lease = session.admit([])
    session.feed(lease, toy.P[: data.draw(st.integers(1, 12))])
    if data.draw(st.booleans()):
        session.publish(lease)
    leases = call(session, "reorder", [lease], [0] * session.model.rows)
    for other in leases:
        session.feed(other, [4] * data.draw(st.integers(0, 5)))
    lengths = [data.draw(st.integers(0, session.length(one))) for one in leases]
    facts = dataclasses.replace(session.cache, pools=())
    rows, tickets = (
        np.array([getattr(one, n) for one in leases]) for n in ("row", "ticket")
    )
    moved = session.prefixes._branching.rewind_facts(
        facts,
        rows.astype(np.int32),
        tickets.astype(np.int32),
        np.int32(lengths),
        rows >= 0,
    )
    assert set(np.asarray(moved.status).tolist()) == {Status.OK}
    targets, sources = np.asarray(moved.targets)[:, 0], np.asarray(moved.sources)[:, 0]
    real = targets < session.model.plan.blocks[0]
    stage = np.asarray(moved.cache.tables[0].stage)
    assert (stage[sources[real]] != Stage.FREE).all()
    assert len(set(targets[real])) == real.sum()
    assert not set(targets[real]) & set(sources[real])


def test_after_a_warm_up_nothing_compiles_for_other_batches():
    session = fresh(toy.only_full())
    session.put(
        session.prefixes.warm_up(session.cache, session.model.identity, sequences=True)
    )
    assert all_free(session)
    lease = session.admit([])
    session.feed(lease, toy.P[:6])
    branching = session.prefixes._branching
    functions = (branching.branch_facts, branching.rewind_facts, branching.copy)
    sizes = [function._cache_size() for function in functions]
    leases = call(session, "reorder", [lease], [0, 0, 0])
    leases = call(session, "settle", leases, [5, 6, 4])
    leases = call(session, "settle", leases[:2], [5, 3])
    (lease,) = call(session, "select", leases, [1])
    session.put(session.prefixes.rewind(session.cache, lease, 2)[0])
    assert [function._cache_size() for function in functions] == sizes
