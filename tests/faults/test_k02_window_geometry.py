"""K02: window geometry: logical position, physical slot, off by one.

Model the window as the map position -> entry.  After any sequence of appends and
restores: the kept positions are those that the next query sees, each entry equals the
model's, and every reported length and next position is n.  The physical layout is not
observable: neither the blocks handed out nor the size of the ring change anything.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

MODELS = {"mixed": toy.mixed, "fine": toy.fine, "window": toy.only_window}
DIGITS = st.integers(1, 9)
OPS = st.lists(
    st.one_of(
        st.lists(DIGITS, min_size=1, max_size=8),  # append these
        st.just("restore"),  # release, publish, come back by prefix hit
        st.just("publish"),
    ),
    min_size=2,
    max_size=8,
)


def wide_ring():
    """The window model with room for steps of 16: a ring with more columns."""
    return toy.model((toy.window(6),), blocks=2, max_chunk=16)


@pytest.mark.kind("K02")
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25)
@given(ops=OPS)
def test_the_window_is_a_map_from_position_to_entry(name, ops):
    model = MODELS[name]()
    session = toy.Session(model)
    lease, done = session.admit([]), []
    for op in ops:
        if op == "publish":
            session.publish(lease)
        elif op == "restore":
            session.release(lease)
            lease = session.admit([*done, 1][: model.max_length])
            session.feed(lease, done[lease.plan.start :], [3, 8])
        else:
            new = op[: model.max_length - len(done)]
            reads = session.feed(lease, new)
            done = done + new
            want = toy.cold(model, done).reads[:, len(done) - len(new) :]
            toy.assert_same_reads(reads, want)
        session.check(lease, done)


@pytest.mark.kind("K02")
@settings(max_examples=25)
@given(data=st.data())
def test_the_blocks_handed_out_are_not_observable(data):
    """A shuffled free stack gives the same bits everywhere."""
    model = toy.mixed()
    tokens = data.draw(st.lists(DIGITS, min_size=10, max_size=24))
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    tables = []
    for table in model.empty.tables:
        order = data.draw(st.permutations(range(table.free.shape[0])))
        tables.append(dataclasses.replace(table, free=jnp.array(order, jnp.int32)))
    shuffled = dataclasses.replace(model.empty, tables=tuple(tables))

    results = []
    for cache in (model.empty, shuffled):
        session = toy.Session(model, cache)
        session.store(tokens[:9], sizes, each=True)
        lease = session.admit(tokens)
        reads = session.feed(lease, tokens[lease.plan.start :], sizes)
        results.append((lease.plan.length, reads, session.state(lease)))
    (start, reads, state), (other_start, other_reads, other_state) = results
    assert start == other_start
    np.testing.assert_array_equal(reads, other_reads)
    toy.assert_same_state(state, other_state)


@pytest.mark.kind("K02")
@settings(max_examples=25)
@given(
    tokens=st.lists(DIGITS, min_size=1, max_size=24),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
)
def test_the_size_of_the_ring_is_not_observable(tokens, sizes):
    """Any capacity of W-1 plus a chunk or more gives the same state and reads."""
    narrow, wide = toy.Session(toy.only_window()), toy.Session(wide_ring())
    columns = [s.model.plan.columns(0) for s in (narrow, wide)]
    assert columns[0] < columns[1]
    states, reads = [], []
    for session in (narrow, wide):
        lease = session.admit(tokens)
        reads.append(session.feed(lease, tokens, sizes))
        states.append(session.state(lease))
    np.testing.assert_array_equal(*reads)
    toy.assert_same_state(*states)


def test_b06_the_oldest_entry_goes_one_step_after_the_window_is_full():
    """W=4: four tokens are all seen; the fifth no longer sees the first."""
    session = toy.Session(toy.fine())
    tokens = [1, 2, 3, 4, 5]
    lease = session.admit(tokens)
    reads = session.feed(lease, tokens, [3, 1, 1])
    after_four, after_five = reads[1, 3], reads[1, 4]
    assert np.flatnonzero(after_four).tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(after_four[:4] * 4, [1, 12, 23, 34])
    assert np.flatnonzero(after_five).tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(after_five[1:5] * 4, [12, 23, 34, 45])


def test_b07_every_layer_reports_the_same_length():
    """Past the window, the next entry is position 6 with value 62, not 42."""
    session = toy.Session(toy.fine())
    lease = session.admit(toy.P)
    session.feed(lease, toy.P[:6])
    assert session.length(lease) == 6
    ends = {positions[-1] + 1 for positions in session.state(lease).positions}
    assert ends == {6}

    session.feed(lease, toy.P[6:7])
    newest = [rows[-1].max() for rows in session.state(lease).v]
    assert newest == [62.0, 62.0, 62.0]
    session.check(lease, toy.P[:7])
