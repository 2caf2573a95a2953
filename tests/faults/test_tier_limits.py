"""What an outer tier may cost the cache: a tier that fails, is shared, or protects."""

import numpy as np
import pytest
import toy
from tiered import Tiered, only_full

import hybridcache_jax as hc
from hybridcache_jax import Verdict

P = list(toy.P)


def freed(session):
    """Everything that can go goes; whether every block is free then."""
    blocks = session.model.plan.blocks
    session.put(session.prefixes.make_room(session.cache, blocks))
    return [int(table.num_free) for table in session.cache.tables] == list(blocks)


def test_a_tier_that_takes_nothing_does_not_keep_blocks_on_the_device():
    registry = hc.MemoryRegistry()
    session = only_full(metrics=hc.Metrics(registry))
    session.store(P)
    session.tier.fail_stores(MemoryError("the host is full"))
    assert freed(session)
    assert session.match([*P, 0]).verdict == Verdict.NEEDS_FULL_RECOMPUTE
    name = "hybridcache_store_failures_total"
    assert registry.value(name, form="FULL_KV") == len(P) // 4
    assert registry.value("hybridcache_moved_out_blocks_total") == 0
    session.tier.fail_stores(None)
    session.answer([*P, 0])
    session.store(P)
    session.move_out()
    assert session.answer([*P, 0]).verdict == Verdict.RESUMABLE


def test_the_blocks_that_a_failing_tier_did_take_are_found_again():
    """The second of three stores fails: the claims of the others lead to their own."""
    session = only_full()
    session.store(P[:12])
    store, seen = session.tier.store, []

    def second_fails(pool, payload, **facts):
        seen.append(facts["first"])
        if facts["first"] == 8:
            raise OSError("no space left")
        return store(pool, payload, **facts)

    session.tier.store = second_fails
    session.move_out()
    assert sorted(seen) == [0, 4, 8]
    assert session.match([*P[:12], 0]).length == 8
    assert session.answer([*P[:12], 0]).length == 8


def test_a_tier_serves_one_prefix_cache():
    session = only_full()
    with pytest.raises(ValueError, match="serves another PrefixCache"):
        hc.PrefixCache(session.model.plan, tier=session.tier)


def test_what_a_load_protects_is_no_part_of_what_shrink_counts_on():
    """Protected windows are cheapest; counted on, they would be missing in the sum."""
    session = Tiered(toy.three_forms())
    session.store(P[:8])
    session.move_out()
    assert session.load([*P[:8], 0]).ready
    protected = stored_bytes(session)
    session.store([7] * 12)
    others = stored_bytes(session) - protected
    session.put(session.prefixes.shrink(session.cache, others))
    assert stored_bytes(session) == protected > 0
    assert session.match([*P[:8], 0]).verdict == Verdict.RESUMABLE


def stored_bytes(session):
    sizes = zip(session.cache.tables, session.model.plan.spec.pools, strict=True)
    return sum(int(np.asarray(t.kept).sum()) * p.block_bytes for t, p in sizes)
