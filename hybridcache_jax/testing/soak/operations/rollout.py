"""Operations on who may reuse what: other weights, other scopes, shadow runs."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from hybridcache_jax.codes import Verdict
from hybridcache_jax.rollout import Scope
from hybridcache_jax.testing import faults
from hybridcache_jax.testing.audit import row_state
from hybridcache_jax.testing.soak.operations.serving import (
    PRODUCER,
    acquired,
    advance,
    give_back,
    is_current,
    planned,
    stored_for,
)
from hybridcache_jax.testing.soak.oracle.ledger import Expected

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Holder, Machine


def bump(m: "Machine", a: int, b: int, c: int) -> bool:
    """Other weights from here on."""
    m.identity = a % 2 if b % 4 == 0 else 0
    return True


def set_scope(m: "Machine", a: int, b: int, c: int) -> bool:
    """Reuse of one producer, in all its namespaces, becomes wider or narrower."""
    # Wide and of who is served for the most part: else little is found.
    number, scope = m.identity, Scope.NAMESPACE
    if c % 4 == 0:
        number, scope = a % len(m.identities), Scope(b % len(Scope))
    producer = PRODUCER[number]
    m.prefixes.set_scope(m.identities[producer], scope)
    if scope != m.scopes[producer]:
        _moved(m, producer, scope)
    return True


def end_request(m: "Machine", a: int, b: int, c: int) -> bool:
    """What only this request could find is found no more."""
    if not m.plans:
        return False
    plan, expected, _ = m.plans[a % len(m.plans)]
    m.prefixes.end_request(plan)
    if expected.who.owner.startswith("request"):
        m.oracle.drop(lambda who: who == expected.who)
    return True


def shadow(m: "Machine", a: int, b: int, c: int) -> bool:
    """A hit is computed again and compared; in half of the runs a bit was flipped."""
    from hybridcache_jax.testing.soak.machine import Planned

    while len(m.holders) + 2 > m.model.rows:
        give_back(m, m.holders[0], store=False)

    number, reader = m.identity, ("request 0", "session")
    script, prompt = m.prompt(a, b, c, stored_for(m, number, *reader))
    plan, expected = planned(m, number, *reader, prompt)
    hits = expected.point > 0 and expected.verdict != Verdict.NEEDS_IO
    m.same("a shadow run is due", m.prefixes.shadow_due(plan), hits)
    if not hits:
        return True
    hit = acquired(m, Planned(plan, expected, script))
    assert hit is not None
    cold = _cold_row(m, number, expected, script)
    both = (hit, cold)
    while any(holder.row.length < expected.point for holder in both):
        if not advance(m, both, expected.point):
            for holder in both:
                give_back(m, holder, store=False)
            return True
    undo = _flip(m, hit, c // 2, expected.point) if a % 2 else None
    want = _differing(m, hit, cold)
    m.cache, report = m.prefixes.shadow_compare(m.cache, hit.lease, cold.lease)
    m.same("differing entries", dict(report.differing), want)
    if not want:
        if undo:
            m.cache = faults.flip_bit(m.cache, *undo)
        give_back(m, cold, store=bool(b % 2))
        return True
    m.mismatches += 1
    if is_current(m, expected.who):
        producer = PRODUCER[number]
        wide = m.scopes[producer] > Scope.REQUEST
        _moved(m, producer, Scope.REQUEST if wide else Scope.OFF)
    m.same("scope", m.prefixes.scope(m.identities[number]), m.scopes[PRODUCER[number]])
    counted = m.registry.value("hybridcache_shadow_mismatches_total")
    m.same("mismatches", counted, m.mismatches)
    m.oracle.rows.set_aside(hit.row)
    give_back(m, hit, store=False)
    return True


def _moved(m: "Machine", producer: int, scope: Scope) -> None:
    """The oracle forgets what was stored in the scope of before."""
    if scope < m.scopes[producer]:
        m.oracle.records.give_up(producer)
    m.scopes[producer] = scope
    m.generations[producer] += 1
    m.oracle.drop(lambda who: who.producer == producer)


def _cold_row(
    m: "Machine", number: int, expected: Expected, script: list[int]
) -> "Holder":
    """A row that reuses nothing, for the same reader."""
    plan = m.prefixes.cold_plan(
        expected.prompt, m.identities[number], request="request 0", session="session"
    )
    pools = len(m.oracle.pools)
    nothing = Expected(
        verdict=Verdict.NEEDS_FULL_RECOMPUTE,
        point=0,
        start=0,
        kept=(),
        loads=((),) * pools,
        far=0,
        claimed=0,
        held=(),
        claims=((),) * pools,
        who=expected.who,
        prompt=expected.prompt,
    )
    row = m.oracle.rows.admit(nothing)
    assert row is not None
    m.oracle.outer.acquired(nothing)
    m.cache, lease = m.prefixes.acquire(m.cache, plan)
    return m.hold(row, lease, script)


def _flip(m: "Machine", hit: "Holder", c: int, point: int) -> tuple[int, str, int, int]:
    """One bit of what a row refers to is another; how to turn it back."""
    held = [
        (index, block.id)
        for index, blocks in enumerate(hit.row.blocks)
        for block in blocks.values()
    ]
    pool, block = held[c % len(held)]
    planes = m.cache.pools[pool]
    name = sorted(planes)[c // 8 % len(planes)]
    bits = 8 * planes[name].nbytes // m.oracle.pools[pool].count
    where = pool, name, block, c * 31 % bits
    m.cache = faults.flip_bit(m.cache, *where)
    return where


def _differing(m: "Machine", one: "Holder", other: "Holder") -> dict[str, int]:
    """Per pool, entries of which any byte differs, read back one by one."""
    cache = jax.tree.map(np.asarray, m.cache)
    a, b = (row_state(cache, holder.lease.row) for holder in (one, other))
    found = {}
    for pool in m.model.plan.spec.pools:
        mine, yours = a[pool.name], b[pool.name]
        # By position too: the first of a tail that a replay rebuilt may lie further on.
        count = sum(
            any(
                mine[plane.name][layer, n].tobytes()
                != yours[plane.name][layer, n].tobytes()
                for plane in pool.entry.planes
            )
            for layer in range(len(pool.layers))
            for n in range(len(np.asarray(mine["positions"])))
        )
        if count:
            found[pool.name] = count
    return found
