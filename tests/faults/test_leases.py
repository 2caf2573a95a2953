"""K18: leases in doubt.  An alarm that keeps the memory, and only the own receipt ends.

Deadlines count ticks of the cache's own clock.  A lease that outlives its deadline is
named with what it pins, goes on running, and loses nothing until it is released.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import Form, LeaseError, Status

LAST = 2**31 - 1
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "feed", "fork", "rewind", "renew", "end"]),
        st.integers(0, 99),
        st.none() | st.integers(1, 4),
    ),
    min_size=4,
    max_size=14,
)


def fresh():
    """A session of its own memory: a fork takes the memory it is given."""
    model = toy.only_full()
    return toy.Session(model, hc.init(model.plan))


def admit(session, deadline, tokens=()):
    plan = session.match(list(tokens))
    cache, lease = session.prefixes.acquire(session.cache, plan, deadline=deadline)
    session.put(cache)
    return lease


def overdue(session):
    return session.prefixes.overdue(session.cache)


def renew(session, lease, deadline):
    session.put(session.prefixes.renew(session.cache, lease, deadline))


def expected(session, rows):
    """Records of those of ``(lease, due)`` whose time is over; blocks have 4 tokens."""
    clock = int(session.cache.clock)
    size = session.model.plan.spec.pools[0].block_bytes
    found = []
    for lease, due in sorted(rows, key=lambda row: row[0].row):
        blocks = -(-session.length(lease) // 4)
        if due is not None and clock > due:
            record = (lease.row, lease.ticket, clock - due, (blocks,), blocks * size)
            found.append(record)
    return found


@settings(max_examples=15)
@given(acts=ACTS)
def test_exactly_the_leases_whose_time_is_over_are_named(acts):
    session = fresh()
    rows = []  # lease and the clock that it is due at
    for act, number, deadline in acts:
        place = number % max(len(rows), 1)
        now = int(session.cache.clock)
        due = None if deadline is None else now + deadline
        if act == "admit" and len(rows) < session.model.rows:
            rows.append((admit(session, deadline), due))
        elif act == "admit" or not rows:
            continue
        elif act == "feed":
            room = session.model.max_length - session.length(rows[place][0])
            session.feed(rows[place][0], [1] * min(5, room))
        elif act == "fork" and len(rows) < session.model.rows:
            cache, child = session.prefixes.fork(session.cache, rows[place][0])
            session.put(cache)
            rows.append((child, rows[place][1]))
        elif act == "rewind":
            lease, due = rows[place]
            length = number % (session.length(lease) + 1)
            cache, lease = session.prefixes.rewind(session.cache, lease, length)
            session.put(cache)
            rows[place] = (lease, due)
        elif act == "renew":
            renew(session, rows[place][0], deadline)
            assert int(session.cache.clock) == now
            rows[place] = (rows[place][0], due)
        elif act == "end":
            session.release(rows.pop(place)[0])
        named = [dataclasses.astuple(record) for record in overdue(session)]
        assert named == expected(session, rows)


def test_a_lease_in_doubt_keeps_its_memory_until_its_receipt_comes():
    session = fresh()
    session.store(toy.P[:8])
    lease = admit(session, 1, [*toy.P[:8], 1])
    assert overdue(session) == ()
    session.feed(lease, [1])
    (record,) = overdue(session)
    assert (record.row, record.ticket, record.late) == (lease.row, lease.ticket, 1)
    assert record.blocks == (3,)
    # Nobody takes what it pins, and it still runs.
    session.evict(Form.FULL_KV)
    session.put(session.prefixes.make_room(session.cache, [99]))
    session.put(session.prefixes.recover(session.cache))
    session.feed(lease, [2])
    session.check(lease, [*toy.P[:8], 1, 2])
    before = session.cache
    with pytest.raises(ValueError, match="publish=False"):
        session.release(record)
    assert session.cache is before
    session.release(record, publish=False)
    assert overdue(session) == ()
    for receipt in (record, lease):
        with pytest.raises(LeaseError, match="released once"):
            session.release(receipt, publish=False)
    ((status,), _) = session.run((lease, [3]))
    assert status == Status.STALE
    # The next lease of the row has its own deadline: none.
    other = session.admit([])
    assert other.row == lease.row
    session.feed(other, toy.P, [1])
    assert overdue(session) == ()


def test_only_a_lease_that_holds_is_renewed():
    session = fresh()
    lease = admit(session, 1)
    session.feed(lease, [3, 1])
    forged = dataclasses.replace(lease, ticket=lease.ticket + 1)
    outside = dataclasses.replace(lease, row=session.model.rows)
    (table,) = session.cache.tables
    before, block = session.cache, int(session.cache.rows.blocks[0][lease.row, 0])
    for wrong in (forged, outside):
        with pytest.raises(LeaseError, match="cannot be renewed"):
            renew(session, wrong, 9)
        # The transition itself says so, and changes nothing.
        after, status = session.prefixes._renew(
            before, np.int32(wrong.row), np.int32(wrong.ticket), np.int32(9)
        )
        assert status == Status.STALE
        assert toy.unchanged(before, after)
    assert session.cache is before
    # A block of the row changed hands: its alarm stays, and counts what it still pins.
    taken = dataclasses.replace(table, epoch=table.epoch.at[block].add(2))
    session.cache = dataclasses.replace(before, tables=(taken,))
    with pytest.raises(LeaseError, match="cannot be renewed"):
        renew(session, lease, 9)
    (record,) = overdue(session)
    assert (record.blocks, record.nbytes) == ((0,), 0)
    # Its release takes no pin from the one who has the block now.
    pins = np.asarray(session.cache.tables[0].pins)
    cache = session.prefixes.release(session.cache, record, publish=False)
    np.testing.assert_array_equal(np.asarray(cache.tables[0].pins), pins)


@pytest.mark.parametrize("deadline", [0, -1, LAST, 2**40, True])
def test_a_deadline_that_the_clock_does_not_reach_is_refused(deadline):
    session = fresh()
    lease = session.admit([])
    before = session.cache
    with pytest.raises(ValueError, match="expected 1 to"):
        admit(session, deadline)
    with pytest.raises(ValueError, match="expected 1 to"):
        renew(session, lease, deadline)
    assert session.cache is before


def test_at_its_end_the_clock_stops_and_gives_no_false_alarm():
    session = fresh()
    session.cache = dataclasses.replace(session.cache, clock=jnp.int32(LAST - 3))
    first = admit(session, 1)  # due at LAST - 2
    second = admit(session, None)
    assert int(session.cache.clock) == LAST - 1
    with pytest.raises(ValueError, match="expected 1 to 0"):
        renew(session, second, 1)
    for _ in range(3):
        session.feed(second, [1])
        assert int(session.cache.clock) == LAST
        assert [(r.row, r.late) for r in overdue(session)] == [(first.row, 2)]
    session.check(second, [1, 1, 1])
