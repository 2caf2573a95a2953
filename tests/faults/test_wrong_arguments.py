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
    assert session.match([*toy.P, 7]).length == 12
