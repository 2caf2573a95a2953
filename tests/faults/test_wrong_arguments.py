"""What a ``PrefixCache`` was not made for is refused at once, and says what is."""

from typing import Any

import pytest
import toy

import hybridcache_jax as hc
from hybridcache_jax.observe import MemoryRegistry


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "namespace"}, "policy as a ReusePolicy"),
        ({"metrics": MemoryRegistry()}, "metrics as Metrics over a registry"),
        ({"tier": "1GiB"}, "tier as a HostTier"),
    ],
)
def test_parts_of_another_type_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        hc.PrefixCache(toy.only_full().plan, **options)


def test_wrong_numbers_and_names_are_refused_and_change_nothing():
    session = toy.Session(toy.only_full())
    session.store(toy.P)
    prefixes: Any = session.prefixes
    cache = session.cache
    identity = session.model.identity
    with pytest.raises(ValueError, match="each of 1 pools, got 2 numbers"):
        prefixes.make_room(cache, [1, 1])
    with pytest.raises(ValueError, match="is no form"):
        prefixes.evict(cache, "FULL_KV")
    with pytest.raises(ValueError, match="approximate_replay must be a whole number"):
        prefixes.match(cache, toy.P, identity, approximate_replay=2.5)
    with pytest.raises(ValueError, match="flat sequence of integers"):
        prefixes.cold_plan([0.5], identity)
    with pytest.raises(
        ValueError, match=f"the plan allows {prefixes.plan.max_length};"
    ):
        prefixes.cold_plan([5] * (prefixes.plan.max_length + 1), identity)
    with pytest.raises(ValueError, match=r"identity must be the Identity .* got None"):
        prefixes.match(cache, toy.P, None)
    with pytest.raises(ValueError, match="Expected a HybridCache, got NoneType"):
        prefixes.match(None, toy.P, identity)
    with pytest.raises(ValueError, match="parts of several lengths"):
        prefixes.match(cache, [[1, 2], [3]], identity)
    assert session.match([*toy.P, 7]).length == 12


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([(0.5, 2, "a")], "start of a contents' span must be a whole number, got 0.5"),
        ([(0, "2", "a")], "stop of a contents' span must be a whole number, got '2'"),
        ([(False, 2, "a")], "start of a contents' span must be a whole number"),
        ([(0, 2)], r"is \(start, stop, content id\), got \(0, 2\)"),
        ([7], r"is \(start, stop, content id\), got 7"),
        (None, r"Contents are spans .* got None"),
        ("ab", r"Contents are spans .* got 'ab'"),
    ],
)
def test_contents_that_are_no_spans_are_refused(contents, message):
    session = toy.Session(toy.only_full())
    with pytest.raises(ValueError, match=message):
        session.prefixes.match(
            session.cache, toy.P, session.model.identity, contents=contents
        )


def test_lengths_and_places_that_are_no_whole_numbers_are_refused():
    session = toy.Session(toy.only_full())
    lease = session.admit([])
    session.feed(lease, [3, 1, 4])
    prefixes: Any = session.prefixes
    for wrong in (None, True, 1.0, "1"):
        for move in (prefixes.can_rewind, prefixes.can_rewind_after, prefixes.rewind):
            with pytest.raises(ValueError, match="must be a whole number"):
                move(session.cache, lease, wrong)
        with pytest.raises(ValueError, match="A parent must be a whole number"):
            prefixes.reorder(session.cache, [lease], [wrong])
        with pytest.raises(ValueError, match="length must be a whole number"):
            prefixes.settle(session.cache, [lease], [wrong])
    assert prefixes.can_rewind(session.cache, lease, 3)
