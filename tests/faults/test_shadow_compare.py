"""A hit beside its cold run: every needed bit counts, and no other.

The oracle reads the cache back on the host (``testing.audit``), entry by entry.
"""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

import hybridcache_jax as hc
from hybridcache_jax.codes import Stage
from hybridcache_jax.contents import Contents
from hybridcache_jax.rollout import Scope
from hybridcache_jax.shadow import compare
from hybridcache_jax.testing import faults
from hybridcache_jax.testing.audit import row_state, violations

PROMPT = [(7 * n + n * n) % 5 + 1 for n in range(19)]
compared = jax.jit(compare, static_argnames="tolerance")


def beside(some, policy="namespace", **options):
    """A session, a hit that stands at its resume point, and its cold run."""
    session = toy.Session(some, policy=hc.ReusePolicy(policy, **options))
    session.store(PROMPT)
    hit = session.admit(PROMPT)
    return session, hit, cold_run(session, hit)


def cold_run(session, hit):
    plan = session.prefixes.cold_plan(PROMPT, session.model.identity)
    cold, point = session.acquire(plan), hit.plan.length
    session.feed(cold, PROMPT[:point])
    session.feed(hit, PROMPT[hit.plan.start : point])
    return cold


def differing(cache, row, other):
    """Per pool, entries of which any byte differs, read back one by one."""
    one, two = row_state(cache, row), row_state(cache, other)
    counts = []
    for pool in cache.plan.spec.pools:
        a, b = one[pool.name], two[pool.name]
        assert a["positions"].tolist() == b["positions"].tolist()
        counts.append(
            sum(
                any(
                    a[plane.name][layer, n].tobytes()
                    != b[plane.name][layer, n].tobytes()
                    for plane in pool.entry.planes
                )
                for layer in range(len(pool.layers))
                for n in range(len(a["positions"]))
            )
        )
    return counts


def check_flips(some, seed, count):
    """Flips bits, most of them in blocks of the rows; returns how many were found."""
    session, hit, cold = beside(some)
    point, found = np.int32(hit.plan.length), 0
    rng, cache = np.random.default_rng(seed), session.cache
    for _ in range(count):
        number = int(rng.integers(len(cache.plan.spec.pools)))
        pool = cache.plan.spec.pools[number]
        plane = pool.entry.planes[int(rng.integers(len(pool.entry.planes)))]
        blocks = cache.plan.blocks[number]
        ids = np.asarray(cache.rows.blocks[number])[[hit.row, cold.row]].ravel()
        block = int(rng.choice([*ids[ids < blocks], rng.integers(blocks)]))
        bits = 8 * cache.pools[number][plane.name].nbytes // blocks
        bit = int(rng.integers(bits))
        other = faults.flip_bit(cache, number, plane.name, block, bit)
        result = compared(other, hit.row, cold.row, point)
        want = differing(other, hit.row, cold.row)
        assert result.differing.tolist() == want
        assert result.equal.tolist() == [n == 0 for n in want]
        found += sum(want) > 0
    return found


def test_every_needed_bit_counts_and_no_other():
    found = check_flips(toy.three_forms(), seed=1, count=40)
    assert 5 < found < 35


@pytest.mark.slow
@pytest.mark.parametrize("name", list(toy.toy_models.EVERY_KIND))
def test_in_every_kind_of_layer(name):
    found = check_flips(toy.toy_models.EVERY_KIND[name](), seed=2, count=80)
    assert 5 < found < 80


def test_a_missing_block_differs_and_nan_equals_itself():
    session, hit, cold = beside(toy.three_forms())
    cache, point = session.cache, np.int32(hit.plan.length)
    pools = tuple(
        {name: jnp.full_like(x, jnp.nan) for name, x in planes.items()}
        for planes in cache.pools
    )
    same = dataclasses.replace(cache, pools=pools)
    assert compared(same, hit.row, cold.row, point).equal.all()
    for number, pool in enumerate(cache.plan.spec.pools):
        blocks = list(cache.rows.blocks)
        blocks[number] = jnp.full_like(blocks[number], cache.plan.blocks[number])
        rows = dataclasses.replace(cache.rows, blocks=tuple(blocks))
        lost = dataclasses.replace(cache, rows=rows)
        result = compared(lost, hit.row, cold.row, point)
        assert result.differing[number] == len(pool.layers) * len(
            row_state(cache, hit.row)[pool.name]["positions"]
        )


def apart(cache, row, other, tolerance):
    """Per pool, entries of which a number that a model reads is further away."""
    one, two = row_state(cache, row), row_state(cache, other)
    counts = []
    for pool in cache.plan.spec.pools:
        far = np.zeros((len(pool.layers), len(one[pool.name]["positions"])), bool)
        for plane in pool.entry.planes:
            if plane.name in pool.entry.scale_planes:
                continue
            a, b = (numbers(plane, side[pool.name]) for side in (one, two))
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.where(a == b, 0, np.abs(a - b))
            far |= ~(gap <= tolerance).all(axis=(-2, -1))
        counts.append(int(far.sum()))
    return counts


def numbers(plane, planes):
    value = planes[plane.name].astype(np.float32)
    if plane.scale is None:
        return value
    with np.errstate(invalid="ignore", over="ignore"):
        return value * np.repeat(planes[plane.scale], plane.run, axis=-1)


def test_a_tolerance_is_about_the_numbers_that_are_read():
    """Of codes and scales only the product counts."""
    session, hit, cold = beside(toy.three_forms())
    point, cache = np.int32(hit.plan.length), session.cache
    rng, counted = np.random.default_rng(5), collections.Counter()
    for _ in range(60):
        number = int(rng.integers(len(cache.plan.spec.pools)))
        names = [plane.name for plane in cache.plan.spec.pools[number].entry.planes]
        plane = names[int(rng.integers(len(names)))]
        ids = np.asarray(cache.rows.blocks[number])[cold.row]
        block = int(rng.choice(ids[ids < cache.plan.blocks[number]]))
        bits = 8 * cache.pools[number][plane].nbytes // cache.plan.blocks[number]
        other = faults.flip_bit(cache, number, plane, block, int(rng.integers(bits)))
        result = compared(other, hit.row, cold.row, point, tolerance=0.75)
        want = apart(other, hit.row, cold.row, 0.75)
        assert result.differing.tolist() == want
        counted[sum(want) > 0, sum(differing(other, hit.row, cold.row)) > 0] += 1
    # Some flips are tolerated, some are not.
    assert counted[False, True] > 5
    assert counted[True, True] > 5


@pytest.mark.parametrize(
    ("policy", "after"), [("namespace", Scope.REQUEST), ("global", Scope.REQUEST)]
)
def test_a_mismatch_narrows_the_scope_and_sets_the_blocks_aside(policy, after):
    session, hit, cold = beside(toy.three_forms(), policy)
    prefixes, me = session.prefixes, session.model.identity
    cache, report = prefixes.shadow_compare(session.cache, hit, cold)
    assert (report.equal, report.point) == (True, hit.plan.length)
    assert cache is session.cache
    assert prefixes.scope(me) == Scope.of(policy)

    sharer = session.admit(PROMPT)
    flipped_in(session, hit)
    cache = session.cache
    shared = [np.asarray(columns)[hit.row] for columns in cache.rows.blocks]
    cache, report = prefixes.shadow_compare(cache, hit, cold)
    name = session.model.plan.spec.pools[0].name
    assert not report.equal
    assert dict(report.differing) == {name: 1}
    assert prefixes.scope(me) is after
    session.put(cache)
    for table, ids in zip(cache.tables, shared, strict=True):
        real = ids[ids < len(table.stage)]
        assert (np.asarray(table.stage)[real] == Stage.QUARANTINED).all()
    # Whoever shares one is stale before it reads it; the cold run goes on.
    point = hit.plan.length
    (status, other), _ = session.run(
        (sharer, PROMPT[point:]), (cold, PROMPT[point : point + 1])
    )
    assert (status, other) == (hc.Status.STALE, hc.Status.OK)
    session.release(hit, publish=False)
    session.release(sharer, publish=False)
    session.release(cold)
    assert prefixes.stored_tokens == 0
    # What was set aside is free once nobody has it; the rest was dead weight.
    for table in session.cache.tables:
        assert (np.asarray(table.stage) != Stage.QUARANTINED).all()
    session.put(prefixes.make_room(session.cache, session.model.plan.blocks))
    for table in session.cache.tables:
        assert int(table.num_free) == len(table.stage)
    assert violations(session.cache) == []


def flipped_in(session, lease):
    """One bit of a block that the row refers to is another."""
    plane = session.model.plan.spec.pools[0].entry.planes[0].name
    block = int(session.cache.rows.blocks[0][lease.row, 0])
    session.cache = faults.flip_bit(session.cache, 0, plane, block, 0)


def test_hits_of_one_moment_narrow_the_scope_once():
    session, hit, cold = beside(toy.three_forms())
    prefixes, me = session.prefixes, session.model.identity
    session.release(hit)
    session.release(cold, publish=False)
    other = [2, *PROMPT[1:]]
    session.store(other)
    first, second = session.admit(PROMPT), session.admit(other)
    for lease, tokens in ((first, PROMPT), (second, other)):
        flipped_in(session, lease)
        cold = session.acquire(prefixes.cold_plan(tokens, me))
        session.feed(cold, tokens[: lease.plan.length])
        cache, report = prefixes.shadow_compare(session.cache, lease, cold)
        session.put(cache)
        assert not report.equal
        session.release(lease, publish=False)
        session.release(cold, publish=False)
        assert prefixes.scope(me) is Scope.REQUEST


def test_from_request_a_producer_falls_to_off():
    registry = hc.MemoryRegistry()
    session = toy.Session(
        toy.three_forms(),
        policy=hc.ReusePolicy("request"),
        metrics=hc.Metrics(registry),
    )
    prefixes, me = session.prefixes, session.model.identity
    cold = session.acquire(prefixes.cold_plan(PROMPT, me, request="1"))
    session.feed(cold, PROMPT)
    session.release(cold)
    hit = session.acquire(prefixes.match(session.cache, PROMPT, me, request="1"))
    cold = cold_run(session, hit)
    flipped_in(session, hit)
    _, report = prefixes.shadow_compare(session.cache, hit, cold)
    assert not report.equal
    assert prefixes.scope(me) is Scope.OFF
    for name in ("compared", "mismatches"):
        assert registry.value(f"hybridcache_shadow_{name}_total") == 1


def test_only_exact_hits_that_can_run_are_due():
    session = toy.Session(
        toy.three_forms(), policy=hc.ReusePolicy("namespace", shadow_share=1.0)
    )
    prefixes, me = session.prefixes, session.model.identity
    assert not prefixes.shadow_due(prefixes.cold_plan(PROMPT, me))
    assert not prefixes.shadow_due(session.match(PROMPT))
    session.store(PROMPT)
    plan = session.match(PROMPT)
    assert prefixes.shadow_due(plan)
    waiting = dataclasses.replace(plan, verdict=hc.Verdict.NEEDS_IO)
    assert not prefixes.shadow_due(waiting)
    key = dataclasses.replace(plan.key, provenance=hc.Provenance.APPROXIMATE)
    approximate = dataclasses.replace(plan, key=key)
    assert approximate.provenance == hc.Provenance.APPROXIMATE
    assert not prefixes.shadow_due(approximate)


def test_rows_that_cannot_be_compared_are_refused():
    session, hit, cold = beside(toy.three_forms())
    compare_rows = session.prefixes.shadow_compare
    for pair in ((cold, hit), (hit, hit), (cold, cold)):
        with pytest.raises(ValueError, match="compares a hit with a cold run"):
            compare_rows(session.cache, *pair)
    session.release(cold, publish=False)
    with pytest.raises(hc.LeaseError, match="do not both hold"):
        compare_rows(session.cache, hit, cold)
    plan = session.prefixes.cold_plan(PROMPT, session.model.identity)
    other = dataclasses.replace(plan, contents=Contents.of([(1, 3, "picture")], 3))
    point = hit.plan.length
    for asked, tokens in (
        (plan, PROMPT[: point - 1]),
        (plan, [5, *PROMPT[1:point]]),
        (plan, PROMPT),
        (other, PROMPT[:point]),
    ):
        cold = session.acquire(asked)
        session.feed(cold, tokens)
        with pytest.raises(ValueError, match="run the same"):
            compare_rows(session.cache, hit, cold)
        session.release(cold, publish=False)
    assert session.prefixes.scope(session.model.identity) is Scope.NAMESPACE
