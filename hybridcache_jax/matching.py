"""From claims and facts to a plan.  Pure host code: nothing changes, nothing runs.

The order is that of the validation layers: is anything claimed at all, is the point
legal, do facts and claims agree, what does every form require, what is cheapest.
"""

import dataclasses

import numpy as np

from hybridcache_jax.claims import no_claims
from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.contents import Contents
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.holdings import solve_claims
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.resume import ready_at
from hybridcache_jax.resume_plan import FormReport, ResumePlan
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec, PoolSpec
from hybridcache_jax.ways import blocks_to_load, proved_ways


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
    # One position at least is run.
    last = min(claims.length, max(len(tokens) - 1, 0))
    claimed = last - last % spec.grid
    firsts = {
        size: np.arange(0, claims.length, size, dtype=np.int32)
        for size in {pool.block_tokens for pool in spec.pools}
    }

    def look(number: int, positions: tuple[int, int]):
        """The claims of a pool that cover ``[lo, hi)``, as ``HostFacts`` asks."""
        size, (lo, hi) = spec.pools[number].block_tokens, positions
        part = slice(lo // size, -(-hi // size))
        ids, epochs = claims.blocks[number][part], claims.epochs[number][part]
        first = firsts[size][part]
        return number, ids, epochs, np.int32(version), first, key.provenance

    needed = [required(pool.form, pool.geometry, claimed) for pool in spec.pools]
    reasons: list[np.ndarray] = []
    stored: list[np.ndarray] = []
    if all(facts.hold(*look(n, positions)) for n, positions in enumerate(needed)):
        # It loads nothing and starts last: whatever loads and tokens cost, nothing is
        # better.
        solution = ready_at(spec, np.int32(claimed))
        reports = tuple(_held(pool, claimed) for pool in spec.pools)
    else:
        points = np.arange(0, claimed + 1, spec.grid, dtype=np.int32)
        whole = 0, claims.length
        reasons = [facts.reasons(*look(n, whole)) for n in range(len(spec.pools))]
        stored = [
            (why == int(Reason.IN_OUTER_TIER)) & facts.stored(n, claims.blocks[n])
            for n, why in enumerate(reasons)
        ]
        solution = solve_claims(spec, points, len(tokens), reasons, stored, cost)
        reports = tuple(
            _report(pool, each, claimed)
            for pool, each in zip(spec.pools, reasons, strict=True)
        )
    reason, changed = _reason(index, tokens, contents, key, spec.grid, claimed, reports)
    ways = proved_ways(spec, solution, reasons, stored, len(tokens), cost)
    verdict = Verdict(int(solution.verdict))
    length, start = int(solution.point), int(solution.start)
    loads = (np.zeros(0, np.int32),) * len(spec.pools)
    if verdict == Verdict.NEEDS_IO:
        loads = blocks_to_load(spec, reasons, length, start, ways[0].kept)
    return ResumePlan(
        verdict=verdict,
        length=length,
        start=start,
        kept=ways[0].kept,
        num_tokens=len(tokens),
        reason=reason,
        forms=reports,
        claimed_length=claimed,
        history_length=int(solution.history_point),
        joint_length=int(solution.anywhere_point),
        lost_length=int(solution.lost_point),
        shared_length=claims.shared,
        stored_token=claims.stored_token,
        asked_token=_asked_token(tokens, claims.shared),
        bytes_to_load=ways[0].bytes_to_load,
        bytes_from_store=ways[0].bytes_from_store,
        seconds=ways[0].seconds,
        loads=loads,
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
        kept=(),
        num_tokens=num_tokens,
        reason=Reason.REUSE_OFF,
        forms=(),
        claimed_length=0,
        history_length=0,
        joint_length=0,
        lost_length=0,
        shared_length=0,
        stored_token=-1,
        asked_token=-1,
        bytes_to_load=0,
        bytes_from_store=0,
        seconds=cost.seconds(num_tokens),
        loads=(np.zeros(0, np.int32),) * len(spec.pools),
        alternatives=(),
        changed=(),
        key=key,
        claims=no_claims(spec),
        contents=contents,
    )


def _held(pool: PoolSpec, point: int) -> FormReport:
    """A pool that lacks nothing to resume at ``point``."""
    lo, hi = (int(x) for x in required(pool.form, pool.geometry, point))
    return FormReport(
        pool=pool.name,
        form=pool.form,
        required=(lo, hi),
        found=max(hi - lo, 0),
        loadable=0,
        reason=Reason.OK,
        position=-1,
        remedy=RULES[pool.form].remedy,
    )


def _report(pool: PoolSpec, reasons: np.ndarray, point: int) -> FormReport:
    """What resuming at ``point``, the deepest that is claimed, lacks of a pool.

    Args:
      pool: which.
      reasons: ``[N]`` int32 ``Reason`` of each claim.
      point: the resume point.
    """
    report, size = _held(pool, point), pool.block_tokens
    lo, hi = report.required
    first, last = lo // size, -(-hi // size)
    why = reasons[first:last] if lo < hi else reasons[:0]
    bad = why != int(Reason.OK)
    if not bad.any():
        return report
    begin = np.arange(first, last) * size
    amount = np.minimum(hi, begin + size) - np.maximum(lo, begin)
    # What cannot be loaded decides; only where all can does loading help.
    lost = bad & (why != Reason.IN_OUTER_TIER)
    remedy = report.remedy if lost.any() else Remedy.LOAD
    worst = int(np.argmax(lost if lost.any() else bad))
    return dataclasses.replace(
        report,
        found=int(amount[~bad].sum()),
        loadable=int(amount[why == Reason.IN_OUTER_TIER].sum()),
        reason=Reason(int(why[worst])),
        position=max(lo, int(begin[worst])),
        remedy=remedy,
    )


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


def _asked_token(tokens: np.ndarray, position: int) -> int:
    return int(tokens[position]) if position < len(tokens) else -1


def _readers(key: Key) -> tuple:
    """Those who may find what is stored under a key, whoever the producer is."""
    return key.scope, key.owner, key.identity.namespace, key.provenance
