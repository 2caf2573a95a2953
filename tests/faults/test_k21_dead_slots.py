"""K21: dead slots.

Outputs and records do not depend on the content of unused slots: fill them with NaN,
infinities, huge numbers or other tenants' data, and every bit is the same, and finite.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, Status

MODELS = {"mixed": toy.mixed, "softmax": toy.stacked}
DIGITS = st.integers(1, 9)
POISON = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf, "huge": 1e30}


def used_slots(cache, *, behind: bool):
    """Per pool ``[P, S]`` bool: what a live row or a stored prefix may still read.

    Args:
      cache: the cache.
      behind: count entries of a live row's blocks that lie behind its window too.
    """
    kinds = {}
    for layer, kind in enumerate(cache.plan.spec.layers):
        if kind.local:
            pool, _ = toy.pool_of(cache.plan.spec, layer)
            kinds[pool] = kind.local
    lengths = np.asarray(cache.rows.length)
    since = np.asarray(cache.rows.since)
    used = []
    for index, pool in enumerate(cache.plan.spec.pools):
        table, ratio = cache.tables[index], pool.entry_tokens
        mask = np.zeros((table.stage.shape[0], pool.block_entries), bool)
        mask[np.asarray(table.kept)] = True
        first = np.asarray(table.first)
        for row in np.flatnonzero(np.asarray(cache.rows.live)):
            ids = np.asarray(cache.rows.blocks[index][row])
            ids = ids[ids < len(mask)]
            positions = first[ids][:, None] + np.arange(pool.block_entries) * ratio
            # An entry is there once all that it stands for was run.
            seen = positions + ratio <= lengths[row]
            seen &= positions >= since[row, index]
            if index in kinds and not behind:
                start = _first(kinds[index], int(lengths[row]))
                seen &= positions >= start
            mask[ids] |= seen
        used.append(mask)
    return used


def _first(local, position):
    if type(local).__name__ == "Window":
        return max(0, position - local.size + 1)
    return position - position % local.size


def poisoned(cache, value, *, behind=True):
    """The cache with ``value`` in every slot that nobody uses."""
    pools = []
    for memory, used in zip(cache.pools, used_slots(cache, behind=behind), strict=True):
        dead = jnp.array(~used)[None, :, :, None]
        assert bool(dead.any())
        pools.append(
            {
                name: jnp.where(dead, jnp.asarray(value, plane.dtype), plane)
                for name, plane in memory.items()
            }
        )
    return dataclasses.replace(cache, pools=tuple(pools))


def lively(model, data):
    """A session with stored prefixes and two live rows, at any length."""
    session = toy.Session(model)
    stored = data.draw(st.lists(DIGITS, min_size=8, max_size=16))
    session.store(stored, [4], each=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        session.evict(Form.SWA_WINDOW)
    prompts = [
        [*stored, *data.draw(st.lists(DIGITS, min_size=1, max_size=4))],
        data.draw(st.lists(DIGITS, min_size=1, max_size=16)),
    ]
    leases = [session.admit(tokens) for tokens in prompts]
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    for lease, tokens in zip(leases, prompts, strict=True):
        session.feed(lease, tokens[lease.plan.start :], sizes)
    return session, stored, leases


def play(session, cache, stored, leases, new):
    """Goes on from ``cache``: steps, publishes, and resumes a stored prefix."""
    session.branch(cache)
    statuses, reads = session.run(*zip(leases, new, strict=True))
    assert set(statuses) == {Status.OK}
    results = [reads[:, place, : len(more)] for place, more in enumerate(new)]
    results += [session.state(lease) for lease in leases]
    third = session.admit([*stored, 1])
    results.append(session.feed(third, [*stored, 1][third.plan.start :]))
    results.append(session.state(third))
    return results


def assert_same_bits(one, other):
    for a, b in zip(one, other, strict=True):
        if isinstance(a, toy.Cold):
            toy.assert_same_state(a, b)
            assert all(np.isfinite(x).all() for x in b.k + b.v)
        else:
            assert np.isfinite(b).all()
            np.testing.assert_array_equal(a, b)


@pytest.mark.kind("K21")
@pytest.mark.parametrize("name", toy.marked(MODELS, "mixed"))
@settings(max_examples=25)
@given(data=st.data(), poison=st.sampled_from(sorted(POISON)))
def test_unused_slots_are_not_observable(name, data, poison):
    """Blocks that nobody holds, and slots that were not written yet."""
    session, stored, leases = lively(MODELS[name](), data)
    more = st.lists(DIGITS, min_size=1, max_size=3)
    new = [data.draw(more) for _ in leases]
    clean = session.cache
    want = play(session, clean, stored, leases, new)
    dirty = poisoned(clean, POISON[poison])
    assert_same_bits(want, play(session, dirty, stored, leases, new))


@pytest.mark.parametrize("name", toy.marked(MODELS, "mixed"))
@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
@given(data=st.data(), poison=st.sampled_from(sorted(POISON)))
def test_slots_behind_the_window_are_not_observable(name, data, poison):
    """Entries that no later query of the row sees are dead as well."""
    session, stored, leases = lively(MODELS[name](), data)
    more = st.lists(DIGITS, min_size=1, max_size=3)
    new = [data.draw(more) for _ in leases]
    clean = session.cache
    want = play(session, clean, stored, leases, new)
    dirty = poisoned(clean, POISON[poison], behind=False)
    assert_same_bits(want, play(session, dirty, stored, leases, new))


@pytest.mark.kind("K21")
@settings(max_examples=25)
@given(data=st.data(), poison=st.sampled_from(sorted(POISON)))
def test_records_do_not_depend_on_unused_slots(data, poison):
    """What is stored later has the same bytes, whatever lay there before."""
    model = toy.mixed()
    tokens = data.draw(st.lists(DIGITS, min_size=4, max_size=24))
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    records = []
    for cache in (model.empty, poisoned(model.empty, POISON[poison])):
        session = toy.Session(model, cache)
        session.store(tokens, sizes)
        records.append(toy.kept_bytes(session.cache))
    assert records[0] == records[1]
    assert len(records[0]) > 0


@pytest.mark.parametrize("poison", ["nan", "huge"])
@pytest.mark.parametrize(
    "build",
    [
        toy.only_full,
        toy.mixed,
        # Compressed entries, their tails, and index keys of every sort.
        pytest.param(toy.csa, marks=pytest.mark.slow),
        pytest.param(toy.sparse, marks=pytest.mark.slow),
    ],
)
def test_b82_nan_in_unused_slots_of_a_page(poison, build):
    """Page 4, length 13: reads are finite and equal to the zero-filled case."""
    model = build()
    tokens = [p % 9 + 1 for p in range(14)]
    reads = []
    for value in (0.0, POISON[poison]):
        session = toy.Session(model, poisoned(model.empty, value))
        lease = session.admit(tokens)
        session.feed(lease, tokens[:-1])
        session.cache = poisoned(session.cache, value)
        assert session.length(lease) == 13
        reads.append(session.feed(lease, tokens[-1:]))
    assert np.isfinite(reads[1]).all()
    np.testing.assert_array_equal(reads[0], reads[1])
    toy.assert_same_reads(reads[1], toy.cold(model, tokens).reads[:, -1:])
