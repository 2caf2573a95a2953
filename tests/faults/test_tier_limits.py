"""What an outer tier may cost the cache: a tier that fails, is shared, or protects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from tiered import Tiered, only_full

import hybridcache_jax as hc
from hybridcache_jax import Form, Verdict

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


@pytest.mark.parametrize(
    ("policy", "windows"),
    [
        (hc.Retention.every_block(), 30),
        (hc.Retention.every(16), 8),
        (hc.Retention.ends(), 9),
        (hc.Retention.none(), 0),
    ],
    ids=str,
)
def test_a_tier_has_places_for_what_can_be_kept(policy, windows):
    """120 tokens in blocks of 4: 30 of history, and windows at the points kept."""
    entry = hc.Entry.kv(1, 1)
    window, full = hc.LayerSpec(local=hc.Window(4, entry)), hc.Entries(entry)
    plan = hc.plan_capacity(
        hc.CacheSpec.from_layers([window, hc.LayerSpec(global_=full)], block_tokens=4),
        budget="1MiB",
        max_sequences=1,
        max_length=40,
        max_chunk=8,
        retention=policy,
        staging_blocks=1,
    )
    sizes = {pool.form: pool.block_bytes + 48 for pool in plan.spec.pools}
    budget = windows * sizes[Form.SWA_WINDOW] + 30 * sizes[Form.FULL_KV]
    budget += plan.index_bytes(120)
    for more, blocks in ((0, 30), (-1, 29)):
        tier = hc.HostTier(plan, budget=budget + more)
        places = zip(plan.spec.pools, tier.places, strict=True)
        counts = {pool.form: len(table.stage) for pool, table in places}
        assert counts[Form.FULL_KV] == blocks
        assert windows - 3 <= counts[Form.SWA_WINDOW] <= windows
    with pytest.raises(ValueError, match="not even what 4 stored tokens keep"):
        hc.HostTier(plan, budget=47)


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


def test_after_a_warm_up_nothing_compiles_on_the_way_out_and_back():
    some = toy.three_forms()
    session = Tiered(some, cache=jax.tree.map(jnp.copy, some.empty))
    prefixes = session.prefixes
    session.put(prefixes.warm_up(session.cache, some.identity))
    for before, after in zip(some.empty.pools, session.cache.pools, strict=True):
        assert all(np.array_equal(before[name], after[name]) for name in before)
    owners = (prefixes, prefixes._upkeep, prefixes._outer._transfer)
    parts = [part for owner in owners for part in vars(owner).values()]
    parts = [getattr(part, "jitted", part) for part in parts]
    functions = [part for part in parts if hasattr(part, "_cache_size")]
    sizes = [function._cache_size() for function in functions]
    assert min(sizes) > 0
    session.store(P[:8])
    session.move_out()
    assert session.load([*P[:8], 0]).ready
    session.feed(session.admit([*P[:8], 0]), [0])
    assert [function._cache_size() for function in functions] == sizes


def stored_bytes(session):
    sizes = zip(session.cache.tables, session.model.plan.spec.pools, strict=True)
    return sum(int(np.asarray(t.kept).sum()) * p.block_bytes for t, p in sizes)


def test_without_a_history_the_index_holds_what_the_tier_holds():
    """One window: the device's own bound would drop what lies outside."""
    model = toy.model((toy.window(6),), blocks=2, stored=24, rows=1)
    session = Tiered(model, budget="1MiB")
    prompts = [[digit] * 22 for digit in range(1, 7)]
    assert model.plan.index_tokens < 22 * len(prompts)
    for prompt in prompts:
        session.store(prompt, [2], each=True)
        session.move_out()
    for prompt in prompts:
        assert session.match([*prompt, 0]).verdict == Verdict.NEEDS_IO
