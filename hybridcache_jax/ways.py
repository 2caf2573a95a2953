"""The ways that a solution proved, as data: blocks to load, bytes, seconds.

Host code.  A block is named by its number ``n`` within the prefix: it holds the
positions from ``n * block_tokens`` on, or the checkpoint taken where it ends.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.replay import Base, bases, is_recurrent, latest_start, usable
from hybridcache_jax.resume import Solution
from hybridcache_jax.spec import CacheSpec

Loads = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One proved way to go on.

    Attributes:
      verdict: what it would be called.
      length: resume point, in tokens.
      start: first position to run.
      kept: numbers of the pools whose forms at ``start`` a replay goes on from.
      tokens_to_run: positions run before decoding, the replay included.
      bytes_to_load: bytes that must come from an outer tier first.
      bytes_from_store: those of them that lie in the store and not in host memory.
      seconds: what both cost by the rates of the moment.
    """

    verdict: Verdict
    length: int
    start: int
    kept: tuple[int, ...]
    tokens_to_run: int
    bytes_to_load: int
    bytes_from_store: int
    seconds: float


def kept_pools(spec: CacheSpec, base: int, length: int, start: int) -> tuple[int, ...]:
    """The pools whose forms at its start a replay goes on from, ascending.

    Args:
      spec: pools.
      base: place in ``replay.bases`` of what the replay keeps.
      length: the resume point.
      start: first position to run.

    Returns:
      Those of them of which anything is required there and which the replay cannot do
      without, checkpoints included; none where nothing is replayed.
    """
    if start >= length:
        return ()
    most = bases(spec)[base]
    least = next(
        some for some in bases(spec) if _enough(spec, some, most, length, start)
    )
    kept = []
    for number, pool in enumerate(spec.pools):
        lo, hi = required(pool.form, pool.geometry, start)
        if (RULES[pool.form].exact or number in least) and lo < hi:
            kept.append(number)
    return tuple(kept)


def _enough(spec: CacheSpec, some: Base, most: Base, length: int, start: int) -> bool:
    """Whether a replay that keeps these is exact; ``most`` are known to be enough."""
    if some == most:
        return True
    if not set(some) < set(most):
        return False
    points, starts = np.array([length], np.int32), np.array([start], np.int32)
    early = latest_start(spec, points, some) >= start
    return bool(early and (not is_recurrent(spec) or usable(spec, starts, some)))


def blocks_to_load(
    spec: CacheSpec,
    reasons: Sequence[np.ndarray],
    length: int,
    start: int,
    kept: Sequence[int],
) -> Loads:
    """What must be loaded to go on at ``start`` and resume at ``length``.

    A replay rebuilds the bounded forms, so of those only what it keeps is loaded, as it
    stands at the start.

    Args:
      spec: pools.
      reasons: per pool, ``[N]`` int32 ``Reason`` of each claimed block.
      length: the resume point.
      start: first position to run; below ``length`` for a replay.
      kept: numbers of the pools that a replay keeps.

    Returns:
      Per pool, ``[n]`` int32 ascending block numbers that lie in an outer tier.
    """
    loads = []
    for number, (pool, reason) in enumerate(zip(spec.pools, reasons, strict=True)):
        rebuilt = start < length and RULES[pool.form].remedy is Remedy.REPLAY
        lo, hi = required(pool.form, pool.geometry, start if rebuilt else length)
        if lo >= hi or (rebuilt and number not in kept):
            loads.append(np.zeros(0, np.int32))
            continue
        first, last = lo // pool.block_tokens, -(-hi // pool.block_tokens)
        away = np.flatnonzero(reason[first:last] == Reason.IN_OUTER_TIER)
        loads.append((first + away).astype(np.int32))
    return tuple(loads)


def bytes_of(spec: CacheSpec, loads: Sequence[np.ndarray]) -> int:
    """Bytes of the blocks named per pool."""
    return sum(
        len(blocks) * pool.block_bytes
        for pool, blocks in zip(spec.pools, loads, strict=True)
    )


def proved_ways(
    spec: CacheSpec,
    solution: Solution,
    reasons: Sequence[np.ndarray],
    stored: Sequence[np.ndarray],
    num_tokens: int,
    cost: CostModel,
) -> tuple[Alternative, ...]:
    """The best way of each kind: the chosen one first, then by what they cost.

    Args:
      spec: pools.
      solution: the solver's answer on the host.
      reasons: as for :func:`blocks_to_load`.
      stored: per pool, ``[N]`` bool, which of the claimed blocks lie in the store only.
      num_tokens: length of the prompt.
      cost: rates.

    Returns:
      One to five ways; a run of the whole prompt always is among them.
    """
    chosen = (
        Verdict(int(solution.verdict)),
        int(solution.point),
        int(solution.start),
        int(solution.base),
    )
    ways = {chosen, (Verdict.NEEDS_FULL_RECOMPUTE, 0, 0, 0)}
    for verdict, length, first, base in (
        (Verdict.RESUMABLE, solution.device_point, solution.device_point, 0),
        (
            Verdict.NEEDS_PARTIAL_RECOMPUTE,
            solution.replay_point,
            solution.replay_start,
            solution.replay_base,
        ),
        (Verdict.NEEDS_IO, solution.load_point, solution.load_point, 0),
        (
            Verdict.NEEDS_IO,
            solution.load_replay_point,
            solution.load_replay_start,
            solution.load_replay_base,
        ),
    ):
        if length > 0:
            ways.add((verdict, int(length), int(first), int(base)))

    def priced(verdict: Verdict, length: int, first: int, base: int) -> Alternative:
        tokens, nbytes, far = num_tokens - first, 0, 0
        kept = kept_pools(spec, base, length, first)
        if verdict == Verdict.NEEDS_IO:
            loads = blocks_to_load(spec, reasons, length, first, kept)
            nbytes = bytes_of(spec, loads)
            alone = (of[blocks] for of, blocks in zip(stored, loads, strict=True))
            far = bytes_of(spec, [np.flatnonzero(which) for which in alone])
        seconds = cost.seconds(tokens, nbytes, far)
        return Alternative(verdict, length, first, kept, tokens, nbytes, far, seconds)

    best = priced(*chosen)
    others = [priced(*way) for way in ways - {chosen}]
    return best, *sorted(others, key=lambda way: (way.seconds, way.verdict))
