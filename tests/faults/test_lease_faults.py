"""K18 and K20, seen from the lease: stale, foreign and doubled references.

A row whose block changed hands since its lease was granted runs nothing, writes
nothing and publishes nothing; its neighbours run.  The same holds for a ticket that was
given back, a row that stands twice in a batch, bad tokens, and rows that do not fit.
"""

import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import LeaseError, NoRoomError, Status

DIGITS = st.integers(1, 9)
TOKENS = [p * 7 % 9 + 1 for p in range(24)]


def change_hands(cache, pool, block):
    """The cache after block ``block`` was taken away and handed out once more."""
    table = cache.tables[pool]
    tables = list(cache.tables)
    tables[pool] = dataclasses.replace(table, epoch=table.epoch.at[block].add(2))
    return dataclasses.replace(cache, tables=tuple(tables))


def references(session, lease):
    """Blocks that the row's next step reads or writes: ``(pool, block, read)``."""
    model, length = session.model, session.length(lease)
    for layer, kind in enumerate(model.kinds):
        pool, size = model.pool_of(layer), model.block(layer)
        first = np.asarray(session.cache.tables[pool].first)
        ids = np.asarray(session.cache.rows.blocks[pool][lease.row])
        for block in ids[ids < len(first)].tolist():
            start = int(first[block])
            read = start < length and start + size > kind.first(length)
            if read and kind.first(length) < length:
                yield pool, block, True
            elif start <= length < start + size:
                yield pool, block, False


def assert_refused(session, lease, other, done):
    """The row is STALE alone and beside ``other``, which runs."""
    before = session.cache
    after, statuses, reads = session.step(before, session.inputs([(lease, [5])]))
    assert statuses[0] == Status.STALE
    assert not np.asarray(reads).any()
    assert toy.unchanged(before, after)
    with pytest.raises(LeaseError, match="nothing was published"):
        session.prefixes.publish(before, lease)
    assert session.prefixes.stored_tokens == 0

    after, statuses, reads = session.step(
        before, session.inputs([(lease, [5]), (other, [5])])
    )
    assert [int(s) for s in statuses[:2]] == [Status.STALE, Status.OK]
    session.cache = after
    session.check(other, [*done, 5])
    want = toy.cold(session.model, [*done, 5]).reads[:, -1]
    toy.assert_same_reads(np.asarray(reads)[:, 1, 0], want)
    assert not np.asarray(reads)[:, 0].any()
    assert toy.leaves_equal(_row(before, lease.row), _row(after, lease.row))


def _row(cache, row):
    rows = cache.rows
    plain = [rows.live, rows.ticket, rows.version, rows.length, rows.since, rows.tokens]
    return [array[row] for array in (*plain, *rows.blocks, *rows.epochs)]


@pytest.mark.parametrize("build", [toy.mixed, toy.fine])
@settings(max_examples=30)
@given(data=st.data(), length=st.integers(1, 20))
def test_a_block_that_changed_hands_is_never_read(build, data, length):
    model = build()
    session = toy.Session(model)
    lease, other = session.admit([]), session.admit([])
    session.feed(lease, TOKENS[:length], [3, 8])
    session.feed(other, TOKENS[3:9])
    reads = [(pool, block) for pool, block, read in references(session, lease) if read]
    pool, block = data.draw(st.sampled_from(reads))
    session.cache = change_hands(session.cache, pool, block)
    assert_refused(session, lease, other, TOKENS[3:9])


@pytest.mark.parametrize("length", [5, 15])
def test_a_block_that_changed_hands_is_never_written(length):
    """At a chunk's start nothing is read, but the open block is written next."""
    session = toy.Session(toy.mixed())
    lease, other = session.admit([]), session.admit([])
    session.feed(lease, TOKENS[:length])
    session.feed(other, TOKENS[3:9])
    writes = [(p, b) for p, b, read in references(session, lease) if not read]
    assert [pool for pool, _ in writes] == [1]  # the chunk's
    session.cache = change_hands(session.cache, *writes[0])
    assert_refused(session, lease, other, TOKENS[3:9])


@settings(max_examples=25)
@given(
    tokens=st.lists(DIGITS, min_size=1, max_size=16),
    publish=st.booleans(),
    again=st.booleans(),
)
def test_a_ticket_is_good_until_it_is_given_back(tokens, publish, again):
    session = toy.Session(toy.mixed())
    old = session.admit(tokens)
    session.feed(old, tokens[old.plan.start :])
    session.release(old, publish=publish)
    # The row itself says that it is void, whether or not it was handed out again.
    assert session.cache.rows.ticket[old.row] != old.ticket
    new = session.admit(tokens) if again else None
    before, stored = session.cache, session.prefixes.stored_tokens

    ((status,), _) = session.run((old, [5]))
    assert status == Status.STALE
    assert toy.unchanged(before, session.cache)
    for call in (session.prefixes.publish, session.prefixes.release):
        with pytest.raises(LeaseError):
            call(session.cache, old)
    with pytest.raises(LeaseError, match="released once"):
        session.prefixes.release(session.cache, old, publish=False)
    assert session.prefixes.stored_tokens == stored
    if new is not None:
        assert new.row == old.row
        session.feed(new, tokens[new.plan.start :])
        session.check(new, tokens)


@pytest.mark.parametrize("what", ["row", "ticket"])
def test_a_forged_receipt_does_not_run_or_release(what):
    session = toy.Session(toy.mixed())
    mine, other = session.admit([]), session.admit([])
    session.feed(other, TOKENS[:6])
    wrong = {"row": {"row": other.row}, "ticket": {"ticket": mine.ticket + 1}}[what]
    forged = dataclasses.replace(mine, **wrong)
    if what == "row":
        forged = dataclasses.replace(forged, ticket=forged.ticket + 5)
    before = session.cache
    ((status,), _) = session.run((forged, [5]))
    assert status == Status.STALE
    with pytest.raises(LeaseError):
        session.prefixes.release(session.cache, forged, publish=False)
    assert toy.unchanged(before, session.cache)
    session.check(other, TOKENS[:6])


@settings(max_examples=25)
@given(data=st.data(), size=st.sampled_from([8, 12, 16]))
def test_a_plan_is_refused_when_a_block_went_in_between(data, size):
    """Matched, then one block is lost: no lease, and the cache is as it was."""
    model = toy.mixed()
    session = toy.Session(model)
    session.store(TOKENS[:size], [4], each=True)
    prompt = TOKENS[: size + 1]
    plan = session.match(prompt)
    assert plan.length == size
    layer = data.draw(st.integers(0, 2))
    step = model.block(layer)
    needed = range(model.kinds[layer].first(size) // step, -(-size // step))
    if not needed or model.kinds[layer].first(size) == size:
        layer, needed = 2, range(size // 4)
    session.lose(layer, data.draw(st.sampled_from(list(needed))), prompt)
    before = session.cache
    with pytest.raises(LeaseError, match="match again"):
        session.prefixes.acquire(before, plan)
    lease = session.admit(prompt)
    session.feed(lease, prompt[lease.plan.start :])
    session.check(lease, prompt)


def test_the_same_row_twice_in_a_batch_runs_once():
    session = toy.Session(toy.mixed())
    lease = session.admit([])
    session.feed(lease, TOKENS[:5])
    statuses, _ = session.run((lease, TOKENS[5:7]), (lease, [9, 9, 9]))
    assert statuses == [Status.OK, Status.BAD_ROW]
    session.check(lease, TOKENS[:7])


@pytest.mark.parametrize(
    ("new", "status"),
    [
        ([5, -1], Status.BAD_TOKEN),
        ([toy.VOCAB], Status.BAD_TOKEN),
        ([1] * 5, Status.TOO_LONG),
    ],
)
def test_a_refused_row_does_not_hold_its_neighbours_up(new, status):
    session = toy.Session(toy.mixed())
    lease, other = session.admit([]), session.admit([])
    session.feed(lease, TOKENS[:20])
    before = session.cache
    assert session.run((lease, new))[0] == [status]
    assert toy.unchanged(before, session.cache)
    assert session.run((lease, new), (other, TOKENS[:8]))[0] == [status, Status.OK]
    session.check(lease, TOKENS[:20])
    session.check(other, TOKENS[:8])


@settings(max_examples=25)
@given(data=st.data())
def test_without_room_a_row_stays_as_it_was(data):
    """Stored prefixes fill a pool; the row waits, and runs once there is room."""
    model = toy.mixed()
    session = toy.Session(model)
    tokens = data.draw(st.lists(DIGITS, min_size=24, max_size=24))
    length = data.draw(st.integers(0, 16))
    lease = session.admit([])
    session.feed(lease, tokens[:length])
    # Other prompts, stored whole, until no block of the history is free.
    for first in range(1, 9):
        filler = session.admit([first] * 24)
        while session.length(filler) < 24:
            (status,), _ = session.run((filler, [first] * 4))
            if status == Status.NO_ROOM:
                break
            session.publish(filler)
        session.release(filler)
        if status == Status.NO_ROOM:
            break
    assert status == Status.NO_ROOM

    before = session.cache
    ((status,), _) = session.run((lease, tokens[length : length + 8]))
    assert status == Status.NO_ROOM
    session.check(lease, tokens[:length])
    assert toy.leaves_equal(before.pools, session.cache.pools)
    assert toy.kept_bytes(before) == toy.kept_bytes(session.cache)

    session.put(session.prefixes.make_room(session.cache, [9, 9, 6]))
    reads = session.feed(lease, tokens[length:])
    toy.assert_same_reads(reads, toy.cold(model, tokens).reads[:, length:])
    session.check(lease, tokens)


def test_without_an_idle_row_nothing_is_admitted():
    session = toy.Session(toy.mixed())
    leases = [session.admit([]) for _ in range(3)]
    before = session.cache
    with pytest.raises(NoRoomError, match="All 3 rows are taken"):
        session.admit(TOKENS)
    assert session.cache is before
    session.release(leases[1])
    assert session.admit(TOKENS).row == leases[1].row
