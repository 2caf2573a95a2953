"""What checked claims come to, in the terms of the solver."""

import numpy as np

from hybridcache_jax.codes import Reason
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES
from hybridcache_jax.resume import Holdings, Solution, solve
from hybridcache_jax.spec import CacheSpec, PoolSpec


def solve_claims(
    spec: CacheSpec,
    points: np.ndarray,
    num_tokens: int,
    reasons: list[np.ndarray],
    stored: list[np.ndarray],
    cost: CostModel,
) -> Solution:
    """Solves all candidate points of one prompt.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32 candidates.
      num_tokens: length of the prompt.
      reasons: per pool, ``[N]`` int32 ``Reason`` of each claim.
      stored: per pool, ``[N]`` bool, what of the outer tier lies in a store only.
      cost: rates.
    """
    # Plain ints: NumPy compares with an enum's member in 64 bits.
    here = [reason == int(Reason.OK) for reason in reasons]
    outer = [reason == int(Reason.IN_OUTER_TIER) for reason in reasons]
    away = outer if any(part.any() for part in outer) else None
    far = stored if any(part.any() for part in stored) else None
    checkpoints, checkpoints_away, checkpoints_stored = _checkpoints(
        spec, here, away, far
    )
    return solve(
        spec,
        points,
        np.int32(num_tokens),
        _holdings(spec, here, away, far, points),
        checkpoints=checkpoints,
        checkpoints_away=checkpoints_away,
        checkpoints_stored=checkpoints_stored,
        cost=cost,
    )


def _holdings(
    spec: CacheSpec,
    here: list[np.ndarray],
    away: list[np.ndarray] | None,
    far: list[np.ndarray] | None,
    points: np.ndarray,
) -> Holdings:
    """What the claims come to, in the terms of ``validate.missing``.

    Args:
      spec: pools.
      here: per pool, ``[N]`` bool, what lies on the device.
      away: per pool, ``[N]`` bool, what lies in an outer tier; None for nothing.
      far: per pool, ``[N]`` bool, what of that lies in a store only; likewise.
      points: ``[K]`` int32 candidates.
    """

    def covered(good: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        held = []
        for pool, blocks in zip(spec.pools, good, strict=True):
            if RULES[pool.form].exact:
                held.append(_taken_at(pool, blocks, points))
            else:
                held.append(blocks * np.int32(pool.block_tokens))
        return tuple(held)

    if away is None:
        return Holdings(covered(here))
    anywhere = [good | outer for good, outer in zip(here, away, strict=True)]
    if far is None:
        return Holdings(covered(here), covered(anywhere))
    near = [found & ~alone for found, alone in zip(anywhere, far, strict=True)]
    return Holdings(covered(here), covered(anywhere), covered(near))


def _taken_at(pool: PoolSpec, held: np.ndarray, points: np.ndarray) -> np.ndarray:
    """``[K]`` bool: is there a checkpoint at exactly each point, where a block ends?"""
    last = points // pool.block_tokens - 1
    inside = (points > 0) & (last < len(held))
    if not len(held):
        return inside
    return inside & held[np.clip(last, 0, len(held) - 1)]


def _checkpoints(
    spec: CacheSpec,
    here: list[np.ndarray],
    away: list[np.ndarray] | None,
    far: list[np.ndarray] | None,
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Where every recurrent pool has a checkpoint, and which of those lie away.

    Args:
      spec: pools.
      here: as for :func:`_holdings`.
      away: as for :func:`_holdings`.
      far: likewise.

    Returns:
      ``[M]`` int32 ascending positions, None for models without recurrent layers; and
      ``[E, M]`` bool, by recurrent pool, those away, None if no claim lies in an outer
      tier, and those in a store only, None if no claim does.
    """
    taking = [n for n, pool in enumerate(spec.pools) if RULES[pool.form].exact]
    if not taking:
        return None, None, None
    positions = None
    for number in taking:
        pool = spec.pools[number]
        held = here[number] if away is None else here[number] | away[number]
        if positions is None:
            positions = (np.flatnonzero(held) + 1) * np.int32(pool.block_tokens)
        else:
            on_its_grid = positions % pool.block_tokens == 0
            positions = positions[on_its_grid & _taken_at(pool, held, positions)]
    positions = np.asarray(positions, np.int32)

    def which(blocks: list[np.ndarray] | None) -> np.ndarray | None:
        if blocks is None:
            return None
        return np.stack(
            [_taken_at(spec.pools[n], blocks[n], positions) for n in taking]
        )

    return positions, which(away), which(far)
