"""The resume solver: where can this prefix be resumed now, and at what cost?

For every candidate resume point and every form: is all that is required held, at
three levels of presence: on the device; on the device or in an outer tier; on the
device or rebuildable by replay.  The usable points of a level are a set, the
intersection over forms; the cheapest proved point of the three wins.

All of it is array arithmetic in the namespace of its arguments: the same function
runs on the host (NumPy), inside a compiled step, and under ``jax.vmap`` for a
batch of requests.
"""

import dataclasses
from collections.abc import Sequence

import jax

from hybridcache_jax._typing import Array
from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.replay import replay_start
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.validate import boundary, intersection


@dataclasses.dataclass(frozen=True)
class CostModel:
    """What running a token and moving a byte cost, in seconds.

    Attributes:
      seconds_per_token: inverse of the prefill rate.
      seconds_per_byte: inverse of the bandwidth from the outer tier.
    """

    seconds_per_token: float = 1e-4
    seconds_per_byte: float = 1e-10

    def __post_init__(self):
        if self.seconds_per_token <= 0 or self.seconds_per_byte < 0:
            raise ValueError(
                f"CostModel needs seconds_per_token > 0 and seconds_per_byte >= 0, "
                f"got {self}."
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Holdings:
    """What one request's claims come to, per pool.

    Attributes:
      device: per pool, readable now; as ``validate.satisfied`` takes it.
      anywhere: per pool, readable now or after loading from an outer tier; the same
        tuple as ``device`` if no outer tier holds anything, which spares work.
    """

    device: tuple[Array, ...]
    anywhere: tuple[Array, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """The solver's answer; ``[]`` int32 unless said otherwise.

    Attributes:
      verdict: ``codes.Verdict``.
      point: the resume point ``p``; 0 for a full recompute.
      start: first position to run: ``p``, or ``k < p`` for a replay of ``k..p-1``.
      device_point: largest point whose forms are all on the device.
      anywhere_point: the same, outer tiers included.
      replay_point: point of the cheapest exact replay; 0 if there is none.
      replay_start: where that replay starts.
      history_point: how deep the growing forms alone go.
      per_pool: ``[G, K]`` bool, which pool has all it requires on the device.
    """

    verdict: Array
    point: Array
    start: Array
    device_point: Array
    anywhere_point: Array
    replay_point: Array
    replay_start: Array
    history_point: Array
    per_pool: Array


def solve(
    spec: CacheSpec,
    points: Array,
    num_tokens: Array,
    holdings: Holdings,
    *,
    checkpoints: Array | None = None,
    cost: CostModel = CostModel(),
) -> Solution:
    """Finds the cheapest proved way to resume.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32 candidates: grid points and checkpoint positions.  Those
        that layer 1 refuses do not count; negative ones are padding.
      num_tokens: ``[]`` int32, tokens of the prompt; at least one position is run,
        so only points up to ``num_tokens - 1`` count.
      holdings: what the claims come to.
      checkpoints: ``[M]`` int32 ascending, positions at which all recurrent layers
        have a checkpoint on the device; None for models without.
      cost: rates by which waiting, replaying and recomputing are compared.

    Returns:
      A :class:`Solution`.  Point 0 needs nothing, so there always is one.
    """
    xp = points.__array_namespace__()
    allowed = _resume_points(spec, points, holdings) & (points <= num_tokens - 1)
    ready, per_pool = intersection(spec, points, holdings.device)
    loadable = ready
    if holdings.anywhere is not holdings.device:
        loadable, _ = intersection(spec, points, holdings.anywhere)
    whole, lost = _split_by_remedy(spec, per_pool, xp)
    replayable = allowed & whole & lost
    starts = xp.where(replayable, replay_start(spec, points, checkpoints), 0)

    device_point = _deepest(points, allowed & ready)
    anywhere_point = _deepest(points, allowed & loadable)
    history_point = _deepest(points, allowed & _history_held(spec, per_pool, xp))
    best_start = xp.max(starts, initial=0)
    # Among replays from the same start the deepest point reads the most.
    replay_point = xp.where(
        best_start > 0, _deepest(points, (starts == best_start) & replayable), 0
    )

    # Differences of positions, not of total costs: exact in any float width.
    rate = cost.seconds_per_token
    load = cost.seconds_per_byte * _bytes_to_load(spec, anywhere_point, holdings)
    wait = (anywhere_point > device_point) & (
        load < (anywhere_point - device_point) * rate
    )
    wait = wait & (load <= (anywhere_point - best_start) * rate)
    replay = ~wait & (best_start > device_point)

    point = xp.where(replay, replay_point, device_point)
    point = xp.where(wait, anywhere_point, point)
    verdict = xp.where(
        point > 0, int(Verdict.RESUMABLE), int(Verdict.NEEDS_FULL_RECOMPUTE)
    )
    verdict = xp.where(replay, int(Verdict.NEEDS_PARTIAL_RECOMPUTE), verdict)
    verdict = xp.where(wait, int(Verdict.NEEDS_IO), verdict)
    return Solution(
        verdict=verdict,
        point=point,
        start=xp.where(replay, best_start, point),
        device_point=device_point,
        anywhere_point=anywhere_point,
        replay_point=replay_point,
        replay_start=best_start,
        history_point=history_point,
        per_pool=per_pool,
    )


def _deepest(points: Array, mask: Array) -> Array:
    xp = points.__array_namespace__()
    return xp.max(xp.where(mask, points, 0), initial=0)


def _resume_points(spec: CacheSpec, points: Array, holdings: Holdings) -> Array:
    """Layer 1: grid points, and points where every checkpoint form has one."""
    legal = boundary(points, spec.grid) == Reason.OK
    taken = [
        held
        for pool, held in zip(spec.pools, holdings.anywhere, strict=True)
        if RULES[pool.form].exact
    ]
    if not taken:
        return legal
    xp = points.__array_namespace__()
    return legal | ((points >= 0) & xp.all(xp.stack(taken), axis=0))


def _split_by_remedy(spec: CacheSpec, per_pool: Array, xp) -> tuple[Array, Array]:
    """Points where all that a replay cannot rebuild is held; where the rest is not."""
    whole, bounded = [], []
    for index, pool in enumerate(spec.pools):
        part = bounded if RULES[pool.form].remedy is Remedy.REPLAY else whole
        part.append(per_pool[index])
    return _all_of(whole, per_pool, xp), ~_all_of(bounded, per_pool, xp)


def _history_held(spec: CacheSpec, per_pool: Array, xp) -> Array:
    """Points at which every form that grows with the history is held."""
    return _all_of(
        [
            per_pool[index]
            for index, pool in enumerate(spec.pools)
            if RULES[pool.form].grows
        ],
        per_pool,
        xp,
    )


def _all_of(parts: Sequence[Array], per_pool: Array, xp) -> Array:
    result = xp.ones(per_pool.shape[1], bool)
    for part in parts:
        result = result & part
    return result


def _bytes_to_load(spec: CacheSpec, point: Array, holdings: Holdings) -> Array:
    """Bytes that lie in an outer tier and are required at ``point``."""
    xp = point.__array_namespace__()
    total = xp.zeros((), xp.float32)
    if holdings.anywhere is holdings.device:
        return total
    for pool, device, anywhere in zip(
        spec.pools, holdings.device, holdings.anywhere, strict=True
    ):
        if RULES[pool.form].exact:
            continue
        lo, hi = required(pool.form, pool.geometry, point)
        block = xp.arange(device.shape[0]) * pool.block_tokens
        outside = (anywhere > device) & (block + pool.block_tokens > lo) & (block < hi)
        total = total + xp.sum(outside) * float(pool.block_bytes)
    return total
