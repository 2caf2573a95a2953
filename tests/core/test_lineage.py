"""Only the newest value of a line of caches is accepted."""

import dataclasses

import pytest

import hybridcache_jax as hc
from hybridcache_jax.lineage import Lineage

SPEC = hc.CacheSpec.from_layers(
    [hc.LayerSpec(global_=hc.Entries(hc.Entry.kv(1, 1)))], block_tokens=4
)
PLAN = hc.plan_capacity(
    SPEC, budget="1MiB", max_sequences=1, max_length=16, stored_tokens=64, backend="cpu"
)


def test_an_older_or_a_foreign_value_is_refused():
    line, other = Lineage(PLAN), Lineage(PLAN)
    first = hc.init(PLAN)
    line.require_newest(first)
    second = line.stamped(first)
    line.require_newest(second)
    for old in (first, other.stamped(first)):
        with pytest.raises(hc.StaleCacheError, match="not the newest value"):
            line.require_newest(old)
    # A step changes the memory and keeps the stamp.
    line.require_newest(dataclasses.replace(second, clock=second.clock + 1))
