"""Where replays can start: anywhere, from checkpoints, at points that keep forms.

One :class:`Origins` for each set of pools that a replay may keep.  Which start is the
best is a question of cost only: every one that is allowed and early enough is exact.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from hybridcache_jax._typing import Array
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import RULES
from hybridcache_jax.replay import bases, is_recurrent, last_of, latest_start, usable
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.validate import missing


@dataclasses.dataclass(frozen=True)
class Origins:
    """Starts of the replays that keep one set of pools.

    Attributes:
      latest: ``[K]`` int32, for each resume point the last start that is exact.
      positions: ``[M]`` int32 ascending, where a replay may start; None for anywhere,
        and then nothing is loaded for it.
      allowed: ``[M]`` bool, those at which all that is kept is held somewhere, and all
        checkpoints are.
      nbytes: ``[M]`` float32, bytes of it that must be loaded.
    """

    latest: Array
    positions: Array | None = None
    allowed: Array | None = None
    nbytes: Array | None = None

    def at_hand(self) -> Array:
        """``[K]`` int32: the last start for which nothing is loaded; 0 for none."""
        if self.positions is None:
            return self.latest
        return last_of(self.positions, self.allowed & (self.nbytes == 0), self.latest)

    def cheapest(self, base: Array, cost: CostModel) -> tuple[Array, Array]:
        """The start that is worth the most for each resume point, of equals the last.

        Args:
          base: ``[]`` int32, the position from which tokens are counted; near the
            starts, so that float32 is exact.
          cost: rates.

        Returns:
          ``[K]`` int32 starts, 0 for none, and ``[K]`` float32 bytes to load for them.
        """
        xp = self.latest.__array_namespace__()
        if self.positions is None or self.positions.shape[0] == 0:
            none = xp.zeros(self.latest.shape, xp.float32)
            return (self.latest if self.positions is None else self.latest * 0), none
        saved = cost.saved(self.positions - base, self.nbytes)
        value = xp.where(self.allowed, saved, -xp.inf)
        highest = _running_max(value)
        place = xp.arange(value.shape[0], dtype=xp.int32)
        last = _running_max(xp.where(value == highest, place, 0))
        rank = xp.searchsorted(self.positions, self.latest, side="right") - 1
        best = xp.take(last, xp.maximum(rank, 0), mode="clip")
        there = (rank >= 0) & xp.take(self.allowed, best)
        starts = xp.where(there, xp.take(self.positions, best), 0)
        return starts, xp.where(there, xp.take(self.nbytes, best), xp.float32(0))


def origins(
    spec: CacheSpec,
    points: Array,
    allowed: Array,
    held: tuple[Sequence[Array], Array],
    checkpoints: Array | None,
    checkpoints_away: Array | None,
) -> tuple[Origins, ...]:
    """Where replays can start, for each of ``replay.bases(spec)``.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32 candidates, ascending.
      allowed: ``[K]`` bool, those that are resume points of this prompt.
      held: per pool, what is held on the device, as ``validate.missing`` takes it; and
        ``[G, K]`` bool, which pool has all it requires, outer tiers included.
      checkpoints: ``[M]`` int32 ascending, where all recurrent layers have one.
      checkpoints_away: ``[E, M]`` bool, which of them lie in an outer tier; None for
        none.
    """
    xp = points.__array_namespace__()
    states = [n for n, pool in enumerate(spec.pools) if RULES[pool.form].exact]
    nothing_kept = Origins(latest_start(spec, points))
    if is_recurrent(spec):
        taken = xp.zeros(0, xp.int32) if checkpoints is None else checkpoints
        nbytes = xp.zeros(taken.shape, xp.float32)
        if checkpoints_away is not None:
            for number, away in zip(states, checkpoints_away, strict=True):
                nbytes = nbytes + away * xp.float32(spec.pools[number].block_bytes)
        nothing_kept = Origins(nothing_kept.latest, taken, usable(spec, taken), nbytes)
    found = [nothing_kept]
    for base in bases(spec)[1:]:
        there = allowed & (points > 0)
        nbytes = xp.zeros(points.shape, xp.float32)
        for number in (*base, *states):
            pool, on_device = spec.pools[number], held[0][number]
            there = there & held[1][number]
            blocks = missing(pool, points, on_device).astype(xp.float32)
            nbytes = nbytes + blocks * xp.float32(pool.block_bytes)
        if states:
            there = there & usable(spec, points, base)
        found.append(Origins(latest_start(spec, points, base), points, there, nbytes))
    return tuple(found)


def _running_max(values: Array) -> Array:
    """Largest of the values up to each."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values)
    # The ufunc's own is a loop over single values there.
    return jax.lax.cummax(values)
