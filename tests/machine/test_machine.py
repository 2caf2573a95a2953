"""The whole façade against the plain oracle: hypothesis draws the operations."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from hybridcache_jax import matching
from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.forms import Form
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.soak.machine import Machine, Operation
from hybridcache_jax.testing.soak.operations import STORE_WEIGHTS, WEIGHTS
from hybridcache_jax.testing.soak.run import (
    STORES,
    TIERS,
    Rooms,
    operations,
    replay,
    shrink,
    soak,
)
from hybridcache_jax.testing.toy_models import FINE, SOAKED, fine

NUMBERS = st.integers(0, 2**16 - 1)


# With a small outer tier everything there is to do is done.
SMALL = TIERS[0]


def begun(name: str, rooms: Rooms) -> Machine:
    return Machine(SOAKED[name](), rooms.tier, known_grids=rooms.known)


def machine_of(name: str, *rooms: Rooms) -> type[RuleBasedStateMachine]:
    """One rule per operation, and one that serves a request from end to end."""

    class Facade(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.machine = begun(name, rooms[0])

        @rule(other=st.sampled_from(rooms))
        def begin_again(self, other):
            self.machine = begun(name, other)

        @rule(a=NUMBERS, b=NUMBERS, c=NUMBERS)
        def serve(self, a, b, c):
            for step in ("admit", "step", "step", "release", "inspect"):
                self.machine.apply(Operation(step, a, b, c))

    for operation in STORE_WEIGHTS if rooms[0].known else WEIGHTS:

        def act(self, a, b, c, operation=operation):
            self.machine.apply(Operation(operation, a, b, c))

        act.__name__ = f"do_{operation}"
        act = rule(a=NUMBERS, b=NUMBERS, c=NUMBERS)(act)
        setattr(Facade, act.__name__, act)
    return Facade


def check(name: str, rooms: Sequence[Rooms], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine_of(name, *rooms),
        settings=settings(max_examples=examples, stateful_step_count=steps),
    )


def test_any_operations_in_any_order():
    check("fine", TIERS, examples=4, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOAKED)
def test_any_operations_in_any_order_with_every_kind(name):
    check(name, TIERS, examples=15, steps=60)


@pytest.mark.slow
def test_any_operations_in_any_order_with_a_store():
    check("fine", STORES, examples=15, steps=60)


def mixed():
    """A window, a chunk and the history, in blocks of two sizes; quick to compile."""
    kinds = (toy.Kind("window", 6), toy.Kind("chunk", 5), toy.Kind(ratio=1))
    return toy.model(kinds, blocks={Form.SWA_WINDOW: 2, Form.FULL_KV: 4})


# How a poll must find a load at least once: it came, waits, or failed in each way.
LOADS = {"REGISTERED", "READ", "LATE", "LAYOUT", "DIGEST", "ROOM", "CANCELLED"}


def test_a_seed_in_step():
    """Nothing differs; every operation, every verdict and every load occur."""
    machine = begun("fine", SMALL)
    for operation in operations(19, 0, 550):
        machine.apply(operation)
    assert set(machine.counts) == set(WEIGHTS)
    assert set(machine.verdicts) == {verdict.name for verdict in Verdict}
    assert set(machine.loaded) >= LOADS
    assert machine.origins > 0
    assert machine.mismatches > 0


def test_a_seed_in_step_with_a_store():
    """Processes end, and others find what was saved and not damaged."""
    machine = begun("fine", STORES[0])
    for operation in operations(2, 0, 300, store=True):
        machine.apply(operation)
    assert set(machine.counts) >= {"save", "restart", "spoil", "collect"}
    assert set(machine.saved) >= {"saved", "there", "merged", "lost"}
    assert machine.found > 10
    assert machine.loaded["REGISTERED"] > 10


@pytest.mark.slow
def test_a_seed_in_step_with_blocks_of_two_sizes():
    machine = Machine(mixed(), SMALL.tier)
    for operation in operations(4, 0, 1200):
        machine.apply(operation)


def test_a_run_counts_what_it_did():
    report = soak(fine(), count=100, seed=5)
    assert report.failure is None
    assert (report.operations, report.episodes) == (100, 1)
    machine = begun("fine", TIERS[0])
    for operation in operations(5, 0, 2000):
        if machine.counts.total() < 100:
            machine.apply(operation)
    assert report.loads == machine.loaded
    assert report.loads["REGISTERED"] > 0
    assert report.verdicts == machine.verdicts
    assert (report.tokens, report.origins) == (machine.tokens, machine.origins)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "store", "count"),
    [
        *((name, False, 2000) for name in SOAKED),
        ("fine", True, 500),
        ("csa", True, 500),
    ],
)
def test_a_seeded_run_with_every_kind(name, store, count):
    given = {"count": count, "seed": 1, "episode_length": count // 4, "store": store}
    report = soak(SOAKED[name](), **given)
    assert report.failure is None
    assert report.operations == count
    assert bool(report.found) == bool(report.saves) == store


def test_a_seed_gives_the_same_operations():
    assert operations(3, 1, 50) == operations(3, 1, 50)
    assert operations(3, 1, 50) != operations(3, 2, 50)
    assert operations(3, 1, 50) != operations(4, 1, 50)
    assert operations(3, 1, 50) != operations(3, 1, 50, store=True)


def test_claims_that_nobody_checks_are_found_and_made_short(monkeypatch):
    """What the index says is believed: a block that is gone counts as held."""

    def believe(facts, pool, ids, *claim):
        return np.full(len(ids), Reason.OK, np.int32)

    monkeypatch.setattr(HostFacts, "reasons", believe)
    report = soak(fine(), count=2000, seed=2)
    assert report.failure is not None
    drawn = report.failure.operations
    assert len(drawn) < 12
    assert "DivergenceError" in report.failure.message
    rooms = report.failure.rooms
    assert replay(fine(), drawn, rooms) == report.failure.message
    monkeypatch.undo()
    assert replay(fine(), drawn, rooms) == ""


def test_too_small_a_point_is_found_as_well(monkeypatch):
    """Sound, but not complete: the deepest point is never tried."""
    whole = matching.solve_claims

    def timid(spec, points, *rest):
        return whole(spec, points[: max(1, len(points) - 1)], *rest)

    monkeypatch.setattr(matching, "solve_claims", timid)
    report = soak(fine(), count=500, seed=2)
    assert report.failure is not None
    assert "DivergenceError" in report.failure.message


def test_shrinking_keeps_only_what_is_needed(monkeypatch):
    def sulk(machine, a, b, c):
        assert machine.counts["bump"] < 2
        return True

    some = {"bump": sulk, "match": lambda *_: True}
    monkeypatch.setattr("hybridcache_jax.testing.soak.machine.OPERATIONS", some)
    drawn = [Operation(name) for name in ("bump", "match", "bump", "match", "bump")]
    assert shrink(fine(), drawn) == [Operation("bump")] * 3


def test_what_cannot_be_soaked_is_refused():
    only_windows = toy.model(FINE[:2], blocks=1)
    with pytest.raises(ValueError, match="No form of this model grows"):
        Machine(only_windows)
    with pytest.raises(ValueError, match="needs places in a tier"):
        Machine(fine(), known_grids=4)
    with pytest.raises(ValueError, match="episode_length must be >= 1"):
        soak(fine(), count=1, episode_length=0)


def test_the_report_is_data():
    report = soak(fine(), count=3, seed=9)
    assert report.to_dict() == dataclasses.asdict(report) | {"operations": 3}
