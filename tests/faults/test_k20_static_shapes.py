"""K20: static shapes, tracing and clipping.

jit(f) = f for all values of length, slot and row within the declared capacity; one
trace per declared shape; an index outside capacity changes no stored value and is
reported through jit.  Admissions, evictions and decode steps never compile anew.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, LeaseError, NoRoomError, Status

DIGITS = st.integers(1, 9)
INT32 = np.iinfo(np.int32)


@pytest.mark.slow
def test_the_compiled_step_equals_the_plain_function():
    """Run without jit, operation by operation, the step gives the same state."""
    model = toy.only_window()
    compiled, plain = toy.Session(model), toy.Session(model, step=model.body)
    plain.on_the_line_of(compiled)
    tokens, results = [*toy.P, 1, 2], []
    for session in (compiled, plain):
        session.admit([1])  # another row is taken and idle
        lease = session.admit([])
        reads = session.feed(lease, tokens, [5, 8, 1])
        session.check(lease, tokens)
        results.append((reads, session.cache))
    (reads, cache), (plain_reads, plain_cache) = results
    toy.assert_same_reads(reads, plain_reads)
    assert cache.clock == plain_cache.clock
    assert toy.unchanged(cache, plain_cache)


@pytest.mark.parametrize("build", [toy.only_window, toy.mixed])
def test_every_change_gives_arrays_of_the_same_types(build):
    """Weak types and bindings count: with others every step would compile anew."""

    def types(cache):
        return [(leaf.aval, leaf.committed) for leaf in jax.tree.leaves(cache)]

    session = toy.Session(build())
    empty = types(session.cache)
    assert not any(aval.weak_type for aval, _ in empty)
    lease = session.admit([])
    session.feed(lease, toy.P[:5])
    session.publish(lease)
    session.release(lease)
    session.evict(Form.SWA_WINDOW)
    session.put(session.prefixes.recover(session.cache))
    assert types(session.cache) == empty


def test_b80_one_trace_for_all_lengths_and_rows():
    """Lengths 5, 6, 7 in rows 0 and 1: entries at 5, 6, 7 of the right row."""
    model = toy.only_full()
    session = toy.Session(model)
    step = jax.jit(chex.assert_max_traces(model.body, n=1))
    session.step = step
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]]
    leases = [session.admit([]) for _ in prompts]
    assert [lease.row for lease in leases] == [0, 1]
    for lease, tokens in zip(leases, prompts, strict=True):
        session.feed(lease, tokens[:5])
    for p in (5, 6, 7):
        for lease, tokens in zip(leases, prompts, strict=True):
            session.feed(lease, tokens[p : p + 1])
            session.check(lease, tokens[: p + 1])
    assert step._cache_size() == 1


WRONG = {
    "row below": (Status.BAD_ROW, {"row": -1}),
    "row past the end": (Status.BAD_ROW, {"row": 3}),
    "row far out": (Status.BAD_ROW, {"row": INT32.max}),
    "row far below": (Status.BAD_ROW, {"row": INT32.min}),
    "count below": (Status.BAD_COUNT, {"count": -1}),
    "count past the width": (Status.BAD_COUNT, {"count": 9}),
    "count far below": (Status.BAD_COUNT, {"count": INT32.min}),
    "token below": (Status.BAD_TOKEN, {"token": -1}),
    "token past the vocabulary": (Status.BAD_TOKEN, {"token": toy.VOCAB}),
    "token far out": (Status.BAD_TOKEN, {"token": INT32.max}),
    "foreign ticket": (Status.STALE, {"ticket": 77}),
}


def spoiled(inputs, place, row=None, count=None, token=None, ticket=None):
    """Step inputs with one thing wrong in one place of the batch."""
    arrays = {
        name: np.array(getattr(inputs, name))
        for name in ("rows", "tickets", "tokens", "counts")
    }
    if row is not None:
        arrays["rows"][place] = row
    if count is not None:
        arrays["counts"][place] = count
    if token is not None:
        arrays["tokens"][place, 0] = token
    if ticket is not None:
        arrays["tickets"][place] = ticket
    return dataclasses.replace(inputs, **arrays)


@pytest.mark.kind("K20")
@pytest.mark.parametrize("what", WRONG)
@settings(max_examples=8)
@given(
    tokens=st.lists(DIGITS, min_size=1, max_size=15),
    neighbour=st.lists(DIGITS, min_size=1, max_size=15),
    place=st.integers(0, 1),
)
def test_what_is_out_of_bounds_changes_nothing_and_is_reported(
    what, tokens, neighbour, place
):
    status, wrong = WRONG[what]
    model = toy.mixed()
    session = toy.Session(model)
    lease, other = session.admit([]), session.admit([])
    session.feed(lease, tokens)
    session.feed(other, neighbour)
    before = session.cache

    alone = spoiled(session.inputs([(lease, [5])]), 0, **wrong)
    after, statuses, _ = model.step(before, alone)
    assert statuses[0] == status
    assert toy.unchanged(before, after)

    parts = [(other, [5])]
    parts.insert(place, (lease, [5]))
    both = spoiled(session.inputs(parts), place, **wrong)
    after, statuses, _ = model.step(before, both)
    assert statuses[place] == status
    assert statuses[1 - place] == Status.OK
    session.put(after)
    session.check(lease, tokens)
    session.check(other, [*neighbour, 5])


@pytest.mark.parametrize("length", [24, 23, 20])
def test_a_row_never_outgrows_its_capacity(length):
    """One token too many changes nothing; what fits still runs."""
    model = toy.mixed()
    session = toy.Session(model)
    tokens = [p % 9 + 1 for p in range(24)]
    lease = session.admit([])
    session.feed(lease, tokens[:length])
    before = session.cache
    ((status,), _) = session.run((lease, [1] * (25 - length)))
    assert status == Status.TOO_LONG
    assert toy.unchanged(before, session.cache)
    session.feed(lease, tokens[length:])
    session.check(lease, tokens)


def compiled_functions(prefixes):
    """Everything that the façade compiles."""
    owners = (prefixes, prefixes._branching, prefixes._upkeep)
    parts = [part for owner in owners for part in vars(owner).values()]
    parts = [getattr(part, "jitted", part) for part in parts]
    return [part for part in parts if hasattr(part, "lower")]


CHANGES = ["admit", "release", "evict", "room", "fork", "rewind", "recover"]
CHANGES += ["reorder", "settle"] + ["step"] * 5


def one_change(session, random, live):
    """One random change: an admission, a decode step, a move of rows, an eviction.

    ``live`` maps rows to their lease and the prompt's tokens that wait to be run.
    """
    what = random.choice(CHANGES)
    if what == "admit":
        tokens = random.integers(1, 3, random.integers(1, 21)).tolist()
        try:
            lease = session.admit(tokens)
        except NoRoomError:
            assert len(live) == session.model.rows
            return
        live[lease.row] = (lease, tokens[lease.plan.start :])
    elif what == "step" and live:
        parts = []
        for lease, waiting in live.values():
            size = min(random.integers(1, 9), 24 - session.length(lease))
            parts.append((lease, (waiting + [1] * 8)[:size]))
        statuses, _ = session.run(*parts)
        for (lease, new), status in zip(parts, statuses, strict=True):
            assert status in (Status.OK, Status.IDLE, Status.NO_ROOM)
            if status == Status.OK:
                live[lease.row] = (lease, live[lease.row][1][len(new) :])
        if Status.NO_ROOM in statuses:
            session.put(session.prefixes.make_room(session.cache, [12, 12, 8]))
    elif what == "fork" and live:
        lease, waiting = live[random.choice(list(live))]
        try:
            cache, child = session.prefixes.fork(session.cache, lease)
        except NoRoomError:
            return
        session.put(cache)
        live[child.row] = (child, waiting)
    elif what == "rewind" and live:
        lease, waiting = live[random.choice(list(live))]
        length = int(random.integers(session.length(lease) + 1))
        if session.prefixes.can_rewind(session.cache, lease, length):
            cache, lease = session.prefixes.rewind(session.cache, lease, length)
            session.put(cache)
            live[lease.row] = (lease, waiting)
    elif what == "reorder" and live:
        rows = random.choice(list(live), random.integers(1, session.model.rows + 1))
        parents = [list(live).index(row) for row in rows]
        leases, waiting = zip(*live.values(), strict=True)
        try:
            cache, new = session.prefixes.reorder(session.cache, leases, parents)
        except NoRoomError:
            return
        session.put(cache)
        live.clear()
        for lease, parent in zip(new, parents, strict=True):
            live[lease.row] = (lease, waiting[parent])
    elif what == "settle" and live:
        leases, waiting = zip(*live.values(), strict=True)
        lengths = [
            max(session.length(one) - int(random.integers(5)), 0) for one in leases
        ]
        try:
            cache, new = session.prefixes.settle(session.cache, leases, lengths)
        except (LeaseError, NoRoomError):
            return
        session.put(cache)
        for lease, wait in zip(new, waiting, strict=True):
            live[lease.row] = (lease, wait)
    elif what == "recover":
        session.put(session.prefixes.recover(session.cache))
    elif what == "release" and live:
        lease, _ = live.pop(random.choice(list(live)))
        session.release(lease, publish=bool(random.integers(4)))
    elif what == "evict":
        session.evict(Form(random.choice([Form.SWA_WINDOW, Form.FULL_KV])))
    elif what == "room":
        session.put(session.prefixes.make_room(session.cache, [3, 3, 2]))


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_thousand_changes_compile_nothing_new(count):
    """Random admissions, steps, evictions; the donated cache changes in place."""
    model = toy.mixed()
    session = toy.Session(model, cache=jax.tree.map(jnp.copy, model.empty))
    donated = jax.jit(model.body, donate_argnums=0)
    session.step = donated
    session.put(session.prefixes.warm_up(session.cache, model.identity, sequences=True))
    random = np.random.default_rng(3)
    live = {}
    for _ in range(150):
        one_change(session, random, live)

    functions = [donated, *compiled_functions(session.prefixes)]
    assert len(functions) > 4
    sizes = [function._cache_size() for function in functions]
    assert min(sizes) > 0  # warm: each of them has run
    traces, compiled = model.traces["step"], toy.compilations()
    busy = []
    for _ in range(count):
        one_change(session, random, live)
        busy.append(len(live))
    assert [function._cache_size() for function in functions] == sizes
    assert model.traces["step"] == traces
    assert toy.compilations() == compiled
    assert max(busy) == model.rows  # it was full at times
    assert min(busy) < model.rows
