"""From claims and facts to a plan.  Pure host code: nothing changes, nothing runs.

The order is that of the validation layers: is anything claimed at all, is the point
legal, do facts and claims agree, what does every form require, what is cheapest.
"""

import numpy as np

from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.contents import Contents
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.prefix_index import PrefixIndex, no_claims
from hybridcache_jax.resume import Holdings, Solution, solve
from hybridcache_jax.resume_plan import FormReport, ResumePlan
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec, PoolSpec
from hybridcache_jax.ways import blocks_to_load, proved_ways

# Points that are tried before all of them.
_NEAR = 256


def make_plan(
    spec: CacheSpec,
    facts: HostFacts,
    index: PrefixIndex,
    tokens: np.ndarray,
    key: Key,
    version: int,
    cost: CostModel,
    contents: Contents = Contents(),
) -> ResumePlan:
    """Solves one prompt against the claims and facts of this moment.

    Args:
      spec: pools and layers.
      facts: of this moment.
      index: claims.
      tokens: ``[n]`` int32.
      key: who asks, and whose claims count.
      version: id of the key's identity in the facts.
      cost: rates for weighing alternatives.
      contents: what placeholder tokens stand for.
    """
    shared = key.reason == Reason.OK
    claims = index.lookup(key, tokens, contents) if shared else no_claims(spec)
    reasons = [
        facts.reasons(
            number,
            ids,
            seen,
            np.int32(version),
            _firsts(pool, len(ids)),
            key.provenance,
        )
        for number, (pool, ids, seen) in enumerate(
            zip(spec.pools, claims.blocks, claims.epochs, strict=True)
        )
    ]
    points = np.arange(0, claims.length + 1, spec.grid, dtype=np.int32)
    points = points[points <= max(len(tokens) - 1, 0)]
    points, solution = _solve(spec, points, len(tokens), reasons, cost)
    claimed = int(points[-1])
    reports = _reports(spec, solution, reasons, claimed)
    reason, changed = _reason(index, tokens, contents, key, spec.grid, claimed, reports)
    ways = proved_ways(spec, solution, reasons, len(tokens), cost)
    length, start = int(solution.point), int(solution.start)
    return ResumePlan(
        verdict=Verdict(int(solution.verdict)),
        length=length,
        start=start,
        num_tokens=len(tokens),
        reason=reason,
        forms=reports,
        claimed_length=claimed,
        history_length=int(solution.history_point),
        lost_length=int(solution.lost_point),
        shared_length=claims.shared,
        stored_token=claims.stored_token,
        bytes_to_load=ways[0].bytes_to_load,
        seconds=ways[0].seconds,
        loads=blocks_to_load(spec, reasons, length, start),
        alternatives=ways,
        changed=changed,
        key=key,
        claims=claims,
        contents=contents,
        stored_content=claims.stored_content,
    )


def make_cold_plan(
    spec: CacheSpec,
    num_tokens: int,
    key: Key,
    cost: CostModel,
    contents: Contents = Contents(),
) -> ResumePlan:
    """A plan that reuses nothing because nobody asked for reuse."""
    return ResumePlan(
        verdict=Verdict.NEEDS_FULL_RECOMPUTE,
        length=0,
        start=0,
        num_tokens=num_tokens,
        reason=Reason.REUSE_OFF,
        forms=(),
        claimed_length=0,
        history_length=0,
        lost_length=0,
        shared_length=0,
        stored_token=-1,
        bytes_to_load=0,
        seconds=cost.seconds(num_tokens, 0),
        loads=(np.zeros(0, np.int32),) * len(spec.pools),
        alternatives=(),
        changed=(),
        key=key,
        claims=no_claims(spec),
        contents=contents,
    )


def _firsts(pool: PoolSpec, count: int) -> np.ndarray:
    """First token positions of ``count`` blocks from the beginning on."""
    return np.arange(count, dtype=np.int32) * np.int32(pool.block_tokens)


def _solve(
    spec: CacheSpec,
    points: np.ndarray,
    num_tokens: int,
    reasons: list[np.ndarray],
    cost: CostModel,
) -> tuple[np.ndarray, Solution]:
    """Solves the deepest points first: if the very deepest is ready, nothing is better.

    It loads nothing and starts last, so that holds whatever loads and tokens cost.

    Returns:
      The points that were solved, and the solution.
    """
    checkpoints, away = _checkpoints(spec, reasons)

    def answer(points):
        return solve(
            spec,
            points,
            np.int32(num_tokens),
            _holdings(spec, reasons, points),
            checkpoints=checkpoints,
            checkpoints_away=away,
            cost=cost,
        )

    deepest = points[-_NEAR:]
    solution = answer(deepest)
    if solution.device_point == deepest[-1] or len(deepest) == len(points):
        return deepest, solution
    return points, answer(points)


def _holdings(
    spec: CacheSpec, reasons: list[np.ndarray], points: np.ndarray
) -> Holdings:
    """What the claims come to, in the terms of ``validate.satisfied``."""

    def covered(good: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        held = []
        for pool, blocks in zip(spec.pools, good, strict=True):
            if RULES[pool.form].exact:
                held.append(_taken_at(pool, blocks, points))
            else:
                held.append(blocks * np.int32(pool.block_tokens))
        return tuple(held)

    ready = [reason == Reason.OK for reason in reasons]
    device = covered(ready)
    outer = [reason == Reason.IN_OUTER_TIER for reason in reasons]
    if not any(part.any() for part in outer):
        return Holdings(device)
    anywhere = [here | away for here, away in zip(ready, outer, strict=True)]
    return Holdings(device, covered(anywhere))


def _taken_at(pool: PoolSpec, held: np.ndarray, points: np.ndarray) -> np.ndarray:
    """``[K]`` bool: is there a checkpoint at exactly each point, where a block ends?"""
    last = points // pool.block_tokens - 1
    inside = (points > 0) & (last < len(held))
    if not len(held):
        return inside
    return inside & held[np.clip(last, 0, len(held) - 1)]


def _checkpoints(
    spec: CacheSpec, reasons: list[np.ndarray]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Where every recurrent pool has a checkpoint, and which of those lie away.

    Returns:
      ``[M]`` int32 ascending positions, None for models without recurrent layers; and
      per recurrent pool ``[E, M]`` bool, None if no claim lies in an outer tier.
    """
    pools = [
        (pool, reason)
        for pool, reason in zip(spec.pools, reasons, strict=True)
        if RULES[pool.form].exact
    ]
    if not pools:
        return None, None
    positions = None
    for pool, reason in pools:
        held = (reason == Reason.OK) | (reason == Reason.IN_OUTER_TIER)
        if positions is None:
            positions = (np.flatnonzero(held) + 1) * np.int32(pool.block_tokens)
        else:
            on_its_grid = positions % pool.block_tokens == 0
            positions = positions[on_its_grid & _taken_at(pool, held, positions)]
    positions = np.asarray(positions, np.int32)
    if not any((reason == Reason.IN_OUTER_TIER).any() for reason in reasons):
        return positions, None
    away = [
        _taken_at(pool, reason == Reason.IN_OUTER_TIER, positions)
        for pool, reason in pools
    ]
    return positions, np.stack(away)


def _reports(
    spec: CacheSpec,
    solution: Solution,
    reasons: list[np.ndarray],
    point: int,
) -> tuple[FormReport, ...]:
    """Per pool, what resuming at ``point``, the last that was solved, lacks."""
    reports = []
    for number, pool in enumerate(spec.pools):
        lo, hi = (int(x) for x in required(pool.form, pool.geometry, point))
        found, loadable = max(hi - lo, 0), 0
        reason, position, remedy = Reason.OK, -1, RULES[pool.form].remedy
        if not solution.per_pool[number, -1]:
            size = pool.block_tokens
            blocks = np.arange(lo // size, -(-hi // size))
            why = reasons[number][blocks]
            amount = np.minimum(hi, (blocks + 1) * size) - np.maximum(lo, blocks * size)
            found = int(amount[why == Reason.OK].sum())
            loadable = int(amount[why == Reason.IN_OUTER_TIER].sum())
            # What cannot be loaded decides; only where all can does loading help.
            bad = (why != Reason.OK) & (why != Reason.IN_OUTER_TIER)
            if not bad.any():
                bad, remedy = why != Reason.OK, Remedy.LOAD
            worst = int(np.argmax(bad))
            reason = Reason(int(why[worst]))
            position = max(lo, int(blocks[worst]) * size)
        reports.append(
            FormReport(
                pool=pool.name,
                form=pool.form,
                required=(lo, hi),
                found=found,
                loadable=loadable,
                reason=reason,
                position=position,
                remedy=remedy,
            )
        )
    return tuple(reports)


def _reason(
    index: PrefixIndex,
    tokens: np.ndarray,
    contents: Contents,
    key: Key,
    grid: int,
    claimed: int,
    reports: tuple[FormReport, ...],
) -> tuple[Reason, tuple[str, ...]]:
    """Why not more was reused, and which identity fields are to blame if any."""
    if len(tokens) == 0:
        return Reason.EMPTY_PROMPT, ()
    if key.reason != Reason.OK:
        return key.reason, ()
    if len(tokens) <= grid:
        return Reason.SHORTER_THAN_GRID, ()
    for report in reports:
        if not report.held:
            return report.reason, ()
    if claimed > 0:
        return Reason.OK, ()
    # Only these readers' own: what other tenants or requests stored must not show.
    others = [
        (index.lookup(other, tokens, contents).length, other.identity)
        for other in index.stored_keys()
        if _readers(other) == _readers(key) and other.identity != key.identity
    ]
    length, other = max(others, key=lambda pair: pair[0], default=(0, key.identity))
    if length > 0:
        return Reason.PRODUCER_CHANGED, key.identity.differences(other)
    return Reason.NOT_STORED, ()


def _readers(key: Key) -> tuple:
    """Those who may find what is stored under a key, whoever the producer is."""
    return key.scope, key.owner, key.identity.namespace, key.provenance
