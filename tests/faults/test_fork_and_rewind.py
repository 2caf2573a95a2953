"""K03, K17: sequences are values: forked, rewound, gone on from, in any order.

Each row holds, bit for bit, what a cold run of its own tokens leaves, whatever became
of the rows it shares blocks with; it can be rewound exactly where every form can
resume, asking says so beforehand, and a refusal changes nothing.
"""

import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import LeaseError, NoRoomError, Verdict

DIGITS = st.integers(1, 9)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "fork", "rewind", "rewind", "end"]),
        st.integers(0, 99),
        st.lists(DIGITS, min_size=1, max_size=8),
    ),
    min_size=4,
    max_size=12,
)


def fresh(model):
    """A session of its own memory: a fork takes the memory it is given."""
    return toy.Session(model, hc.init(model.plan))


def fork(session, lease):
    cache, child = session.prefixes.fork(session.cache, lease)
    session.put(cache)
    return child


def rewind(session, lease, length):
    cache, lease = session.prefixes.rewind(session.cache, lease, length)
    session.put(cache)
    return lease


def can_rewind(session, lease, length):
    return session.prefixes.can_rewind(session.cache, lease, length)


def run_unchecked(session, lease):
    """A step of one token in a state that the laws do not hold in."""
    cache, status, reads = session.step(session.cache, session.inputs([(lease, [1])]))
    session.cache = cache
    return [hc.Status(int(status[0]))], reads


@pytest.mark.kind("K17")
@pytest.mark.parametrize("name", toy.marked(toy.EVERY_KIND, "fine"))
@settings(max_examples=12)
@given(acts=ACTS)
def test_every_row_is_what_a_cold_run_of_its_tokens_is(name, acts):
    model = toy.EVERY_KIND[name]()
    session = fresh(model)
    rows = [(session.admit([]), [])]
    for act, number, tokens in acts:
        if not rows:
            rows = [(session.admit(tokens), [])]
            rows[0] = (rows[0][0], tokens[: rows[0][0].plan.start])
        place = number % len(rows)
        lease, mine = rows[place]
        if act == "feed":
            tokens = tokens[: model.max_length - len(mine)]
            session.feed(lease, tokens)
            rows[place] = (lease, mine + tokens)
        elif act == "fork":
            if len(rows) == model.rows:
                with pytest.raises(NoRoomError, match="rows are taken"):
                    fork(session, lease)
                continue
            try:
                rows.append((fork(session, lease), list(mine)))
            except NoRoomError:
                continue
        elif act == "rewind":
            length = number % (len(mine) + 1)
            if not can_rewind(session, lease, length):
                with pytest.raises(LeaseError, match="cannot be rewound"):
                    rewind(session, lease, length)
            else:
                rows[place] = (rewind(session, lease, length), mine[:length])
                with pytest.raises(LeaseError, match="no longer holds"):
                    session.prefixes.publish(session.cache, lease)
        else:
            session.release(lease)
            rows.pop(place)
        for lease, mine in rows:
            session.check(lease, mine)
    for lease, _ in rows:
        session.release(lease)
    for _, mine in rows:
        # What was published of branches that were cut is true of their own tokens.
        prompt = [*mine[: model.max_length - 1], 1]
        lease = session.admit(prompt)
        session.feed(lease, prompt[lease.plan.start :])
        session.check(lease, prompt)
        session.release(lease, publish=False)


@pytest.mark.parametrize("name", toy.marked(["fine", "csa", "sparse"], "fine"))
@settings(max_examples=10)
@given(tokens=st.lists(DIGITS, min_size=1, max_size=16), draft=st.integers(1, 8))
def test_whatever_one_step_ran_can_be_rewound(name, tokens, draft):
    """A speculative round: draft in one step, keep some of it."""
    model = toy.EVERY_KIND[name]()
    session = fresh(model)
    lease = session.admit([])
    session.feed(lease, tokens, [3])
    session.run((lease, [9] * draft))
    for length in range(len(tokens) + draft, len(tokens) - 1, -1):
        assert can_rewind(session, lease, length)
    kept = len(tokens) + draft // 2
    lease = rewind(session, lease, kept)
    session.check(lease, (tokens + [9] * draft)[:kept])
    session.feed(lease, [1, 2])
    session.check(lease, [*(tokens + [9] * draft)[:kept], 1, 2])


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(toy.FINE, id="fine"),
        pytest.param(toy.SPARSE, id="sparse", marks=pytest.mark.slow),
    ],
)
@settings(max_examples=8)
@given(tokens=st.lists(DIGITS, min_size=6, max_size=24), back=st.integers(0, 6))
def test_the_rollback_that_was_planned_is_held_whatever_ran(kinds, tokens, back):
    model = toy.model(kinds, blocks=4, style="chain", rollback=6)
    session = fresh(model)
    lease = session.admit([])
    for token in tokens:
        session.feed(lease, [token])
        assert session.prefixes.can_rewind_after(session.cache, lease, 6)
    assert can_rewind(session, lease, len(tokens) - back)
    lease = rewind(session, lease, len(tokens) - back)
    session.check(lease, tokens[: len(tokens) - back])


@pytest.mark.kind("K03")
@settings(max_examples=20)
@given(first=st.integers(1, 14), more=st.integers(1, 8))
def test_what_is_said_beforehand_is_so_afterwards(first, more):
    """Without a margin, token by token; the step after them finds no room."""
    model = toy.fine()
    session = fresh(model)
    lease = session.admit([])
    session.feed(lease, [5] * first, [1])
    said = session.prefixes.can_rewind_after(session.cache, lease, more)
    session.feed(lease, [6] * more, [1])
    sound = session.cache
    tables = [
        dataclasses.replace(t, num_free=t.num_free * 0) for t in session.cache.tables
    ]
    session.cache = dataclasses.replace(session.cache, tables=tuple(tables))
    (status,), _ = run_unchecked(session, lease)
    assert status == hc.Status.NO_ROOM
    session.cache = dataclasses.replace(session.cache, tables=sound.tables)
    assert can_rewind(session, lease, first) or not said


def test_b11_a_round_of_drafts_after_the_window_has_wrapped():
    model = toy.model((toy.window(4), toy.window(4)), blocks=1, style="sums")
    session = fresh(model)
    lease = session.admit([])
    session.feed(lease, toy.P[:8])
    session.run((lease, [0, 0, 0]))
    lease = rewind(session, lease, 9)
    assert session.length(lease) == 9
    cold = fresh(model)
    other = cold.admit([])
    cold.feed(other, [*toy.P[:8], 0])
    toy.assert_same_state(session.state(lease), cold.state(other))
    reads = session.feed(lease, [0])
    toy.assert_same_reads(reads, cold.feed(other, [0]))


def test_b13_keep_none_drop_none_drop_too_many():
    session = fresh(toy.only_full())
    lease = session.admit([])
    session.feed(lease, [3, 1, 4])
    lease = rewind(session, lease, 3)
    session.check(lease, [3, 1, 4])
    before = session.cache
    for outside in (-2, 4):
        assert not can_rewind(session, lease, outside)
        with pytest.raises(ValueError, match="stands at 3"):
            rewind(session, lease, outside)
    assert session.cache is before
    lease = rewind(session, lease, 0)
    session.check(lease, [])
    session.feed(lease, [7, 8])
    session.check(lease, [7, 8])


def test_b68_the_record_and_the_sibling_stay_as_they_were():
    session = fresh(toy.fine())
    first = session.admit([])
    session.feed(first, toy.P[:5])
    second = fork(session, first)
    session.feed(second, [9])
    session.check(first, list(toy.P[:5]))
    session.feed(first, [0])
    session.check(second, [*toy.P[:5], 9])
    session.check(first, [*toy.P[:5], 0])


def test_a_fork_past_an_unfinished_state_leaves_no_block_behind():
    """3 and 6 tokens: the state at 3 was never finished, and is nobody's to copy."""
    session = fresh(toy.model((toy.STATE, toy.FULL)))
    lease = session.admit([])
    session.feed(lease, toy.P[:9], [3, 6])
    child = fork(session, lease)
    session.feed(child, [7, 7])
    session.check(child, [*toy.P[:9], 7, 7])
    session.feed(lease, [8])
    session.check(lease, [*toy.P[:9], 8])
    for row in (child, lease):
        session.release(row, publish=False)
    for counts in session.prefixes.account(session.cache).values():
        assert counts["free"] == counts["total"]


def test_a_row_alone_needs_no_free_block_to_go_back():
    model = toy.model((toy.FULL,), max_length=8, rows=1, stored=0)
    session = fresh(model)
    lease = session.admit([])
    session.feed(lease, toy.P[:8])
    assert int(session.cache.tables[0].num_free) == 0
    lease = rewind(session, lease, 7)
    session.check(lease, list(toy.P[:7]))
    session.feed(lease, [0])
    session.check(lease, [*toy.P[:7], 0])


@pytest.mark.parametrize("length", [-1, 25, 2**40, -(2**40)])
def test_a_length_that_no_row_has_is_refused(length):
    session = fresh(toy.only_full())
    lease = session.admit([])
    session.feed(lease, [3, 1, 4])
    assert not can_rewind(session, lease, length)
    with pytest.raises(ValueError, match="stands at 3"):
        rewind(session, lease, length)
    session.check(lease, [3, 1, 4])


def test_a_recurrent_row_goes_back_to_its_checkpoint_alone():
    session = fresh(toy.recurrent())
    lease = session.admit([])
    session.feed(lease, list(toy.P[:11]), [4])
    at = [n for n in range(12) if can_rewind(session, lease, n)]
    assert at == [0, 8, 11]
    lease = rewind(session, lease, 8)
    session.check(lease, list(toy.P[:8]))


def test_cut_into_a_shared_prefix_the_row_publishes_its_own_tokens():
    """Rewound below its resume point, and gone another way."""
    session = fresh(toy.only_full())
    session.store(list(toy.P))
    lease = session.admit([*toy.P, 1])
    assert lease.plan.length == 12
    lease = rewind(session, lease, 6)
    other = [*toy.P[:6], 7, 7, 7, 7, 7, 7]
    session.feed(lease, other[6:])
    session.check(lease, other)
    session.release(lease)
    for tokens in (other, list(toy.P)):
        lease = session.admit([*tokens, 1])
        assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 12)
        session.check(lease, tokens)
        session.release(lease, publish=False)


def test_a_row_does_not_go_back_into_what_it_replayed():
    """Its first rebuilt rows are not exact; nothing, and what it ran itself, is."""
    session = fresh(toy.fine())
    session.store(list(toy.P))
    session.evict(hc.Form.SWA_WINDOW)
    prompt = [*toy.P, 3]
    lease = session.admit(prompt)
    assert (lease.plan.start, lease.plan.length) == (7, 12)
    session.feed(lease, prompt[7:11])
    session.feed(lease, prompt[11:])
    at = [length for length in range(14) if can_rewind(session, lease, length)]
    assert at == [0, 12, 13]


def test_a_row_that_is_forked_in_a_replay_replays_to_the_end():
    """The child knows the ids as its parent does, and where its own entries begin."""
    session = fresh(toy.fine())
    session.store(list(toy.P))
    session.evict(hc.Form.SWA_WINDOW)
    prompt = [*toy.P, 3]
    parent = session.admit(prompt)
    assert (parent.plan.start, parent.plan.length) == (7, 12)
    session.feed(parent, prompt[7:9])
    child = fork(session, parent)
    for lease in (child, parent):
        (status,), _ = session.run((lease, [prompt[9] + 1, *prompt[10:]]))
        assert status == hc.Status.OTHER_TOKEN
        session.feed(lease, prompt[9:], [1])
        session.check(lease, prompt)
        # Within what was replayed there is nothing to go back to, in either row.
        at = [length for length in range(14) if can_rewind(session, lease, length)]
        assert at == [0, 12, 13]
        session.release(lease)


def test_no_room_for_the_copy_loses_nothing():
    session = fresh(toy.only_full())
    lease = session.admit([])
    session.feed(lease, [3, 1, 4])
    (table,) = session.cache.tables
    nothing = dataclasses.replace(table, num_free=table.num_free * 0)
    full = dataclasses.replace(session.cache, tables=(nothing,))
    with pytest.raises(NoRoomError, match="no free block"):
        session.prefixes.fork(full, lease)
    session.check(lease, [3, 1, 4])
    assert np.asarray(session.cache.pools[0]["k"]).size
    assert hc.Status.NOT_HELD.explanation
