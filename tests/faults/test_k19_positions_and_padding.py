"""K19: positions and padding.

The entry at logical position p is the same whatever the padding, the chunks or the
batch.  The next position is the number of positions consumed, not of entries stored.
"""

import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Status, StepInputs

DIGITS = st.integers(1, 9)
# What stands in the places of a step that are no tokens.
PADS = st.sampled_from([0, 9, -1, 10, 2**31 - 1, -(2**31)])
NO_ROWS = st.sampled_from([3, 99, -1, 2**31 - 1, -(2**31)])


def padded(inputs: StepInputs, pad: int, row: int) -> StepInputs:
    """The same step with other numbers wherever nothing counts."""
    idle = inputs.counts == 0
    place = np.arange(inputs.tokens.shape[1])
    return dataclasses.replace(
        inputs,
        rows=np.where(idle, np.int32(row), inputs.rows),
        tickets=np.where(idle, np.int32(pad), inputs.tickets),
        tokens=np.where(place < inputs.counts[:, None], inputs.tokens, np.int32(pad)),
    )


@pytest.mark.kind("K19")
@settings(max_examples=40)
@given(
    prompts=st.lists(st.lists(DIGITS, min_size=1, max_size=16), min_size=1, max_size=2),
    sizes=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    pad=PADS,
    row=NO_ROWS,
)
def test_padding_is_not_observable(prompts, sizes, pad, row):
    model = toy.mixed()
    plain = toy.Session(model)
    odd = toy.Session(
        model, step=lambda cache, inputs: model.step(cache, padded(inputs, pad, row))
    )
    odd.on_the_line_of(plain)
    results = []
    for session in (plain, odd):
        leases = [session.admit(tokens) for tokens in prompts]
        reads = [
            session.feed(lease, tokens, sizes)
            for lease, tokens in zip(leases, prompts, strict=True)
        ]
        for lease, tokens in zip(leases, prompts, strict=True):
            session.check(lease, tokens)
            session.publish(lease)
        results.append((reads, toy.kept_bytes(session.cache), session.cache))
    for one, other in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert results[0][1] == results[1][1]
    assert results[0][2].clock == results[1][2].clock
    assert toy.unchanged(results[0][2], results[1][2])


@pytest.mark.kind("K19")
@settings(max_examples=25)
@given(
    tokens=st.lists(DIGITS, min_size=9, max_size=24),
    neighbour=st.lists(DIGITS, min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    place=st.integers(0, 1),
)
def test_a_position_does_not_depend_on_chunks_or_batch(tokens, neighbour, sizes, place):
    """Resumed, split anyhow, beside anyone: the next position is what was consumed."""
    model = toy.mixed()
    session = toy.Session(model)
    session.store(tokens[:8], sizes)
    lease, other = session.admit(tokens), session.admit(neighbour)
    at = lease.plan.start
    for size in toy.cuts(len(tokens) - at, sizes):
        parts = [(lease, tokens[at : at + size])]
        if session.length(other) < len(neighbour):
            done = session.length(other)
            parts.insert(place, (other, neighbour[done : done + 1]))
        statuses, _ = session.run(*parts)
        assert set(statuses) == {Status.OK}
        at += size
        session.check(lease, tokens[:at])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_b75_a_short_row_does_not_see_its_long_neighbour(order):
    """Rows 3,1,4 and 7 in one step: row 2 has length 1, entry 7 at position 0."""
    model = toy.fine()
    session = toy.Session(model)
    prompts = [[3, 1, 4], [7]]
    leases = [session.admit(tokens) for tokens in prompts]
    statuses, reads = session.run(*[(leases[i], prompts[i]) for i in order])
    assert set(statuses) == {Status.OK}
    short = leases[1]
    assert session.length(short) == 1
    state = session.state(short)
    assert state.positions == ((0,), (0,), (0,))
    for rows in state.v:
        np.testing.assert_array_equal(rows[0, 0], [7.0] + [0.0] * 23)
    read = reads[:, order.index(1), 0]
    np.testing.assert_array_equal(read, np.broadcast_to(state.v[0][0, 0], read.shape))
    session.check(leases[0], [3, 1, 4])

    # A record made from it equals one made from a run alone.
    alone = toy.Session(model)
    single = alone.admit([7])
    alone.feed(single, [7])
    records = []
    for one, lease in ((session, short), (alone, single)):
        one.publish(lease)
        assert one.match([7, 1]).length == 1
        records.append(sorted(toy.kept_bytes(one.cache).values()))
    assert records[0] == records[1]
    assert len(records[0]) == 3
