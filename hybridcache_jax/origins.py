"""Where replays can start: anywhere, from checkpoints, at points that keep forms.

One :class:`Origins` for each set of pools that a replay may keep.  Which start is the
best is a question of cost only: every one that is allowed and early enough is exact.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from hybridcache_jax._typing import Array
from hybridcache_jax.cost import Bytes, CostModel
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
      nbytes: ``[M]`` each, bytes of it that must be loaded.
    """

    latest: Array
    positions: Array | None = None
    allowed: Array | None = None
    nbytes: Bytes | None = None

    def at_hand(self) -> Array:
        """``[K]`` int32: the last start for which nothing is loaded; 0 for none."""
        if self.nbytes is None:
            return self.latest
        free = self.allowed & (self.nbytes.total == 0)
        return last_of(self.positions, free, self.latest)

    def cheapest(
        self, base: Array, cost: CostModel, stored: bool
    ) -> tuple[Array, Bytes]:
        """The start that is worth the most for each resume point, of equals the last.

        Args:
          base: ``[]`` int32, the position from which tokens are counted; near the
            starts, so that float32 is exact.
          cost: rates.
          stored: whether to look among starts for which something comes from the store,
            or among the others: loads of the two differ in what they take besides
            their bytes.

        Returns:
          ``[K]`` int32 starts, 0 for none, and ``[K]`` bytes to load for them.
        """
        xp = self.latest.__array_namespace__()
        none = xp.zeros(self.latest.shape, xp.float32)
        if self.nbytes is None:
            return self.latest * (not stored), Bytes(none, none)
        if self.nbytes.total.shape[0] == 0:
            return self.latest * 0, Bytes(none, none)
        allowed = self.allowed & ((self.nbytes.stored > 0) == stored)
        saved = cost.saved(self.positions - base, self.nbytes)
        value = xp.where(allowed, saved, -xp.inf)
        highest = _running_max(value)
        place = xp.arange(value.shape[0], dtype=xp.int32)
        last = _running_max(xp.where(value == highest, place, 0))
        rank = xp.searchsorted(self.positions, self.latest, side="right") - 1
        best = xp.take(last, xp.maximum(rank, 0), mode="clip")
        there = (rank >= 0) & xp.take(allowed, best)

        def picked(array: Array) -> Array:
            return xp.where(there, xp.take(array, best), xp.zeros((), array.dtype))

        return picked(self.positions), Bytes(*map(picked, self.nbytes))


def origins(
    spec: CacheSpec,
    points: Array,
    allowed: Array,
    held: tuple[Sequence[Array], Sequence[Array] | None, Array],
    checkpoints: Array | None,
    checkpoints_away: Array | None,
    checkpoints_stored: Array | None,
) -> tuple[Origins, ...]:
    """Where replays can start, for each of ``replay.bases(spec)``.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32 candidates, ascending.
      allowed: ``[K]`` bool, those that are resume points of this prompt.
      held: per pool, what is held on the device, as ``validate.missing`` takes it; the
        same with host memory, None if nothing lies in a store only; and ``[G, K]``
        bool, which pool has all it requires, outer tiers included.
      checkpoints: ``[M]`` int32 ascending, where all recurrent layers have one.
      checkpoints_away: ``[E, M]`` bool, which of them lie in an outer tier; None for
        none.
      checkpoints_stored: ``[E, M]`` bool, which of those lie in a store only; None for
        none.
    """
    xp = points.__array_namespace__()
    device, near, complete = held
    states = [n for n, pool in enumerate(spec.pools) if RULES[pool.form].exact]
    nothing_kept = Origins(latest_start(spec, points))
    if is_recurrent(spec):
        taken = xp.zeros(0, xp.int32) if checkpoints is None else checkpoints
        nbytes = Bytes(
            *(
                _bytes_of(spec, states, taken, some)
                for some in (checkpoints_away, checkpoints_stored)
            )
        )
        nothing_kept = Origins(nothing_kept.latest, taken, usable(spec, taken), nbytes)
    found = [nothing_kept]
    for base in bases(spec)[1:]:
        kept = [*base, *states]
        there = allowed & (points > 0)
        for number in kept:
            there = there & complete[number]
        if states:
            there = there & usable(spec, points, base)
        nbytes = bytes_missing(spec, kept, points, device, near)
        found.append(Origins(latest_start(spec, points, base), points, there, nbytes))
    return tuple(found)


def bytes_missing(
    spec: CacheSpec,
    pools: Iterable[int],
    points: Array,
    device: Sequence[Array],
    near: Sequence[Array] | None,
) -> Bytes:
    """Bytes of what some pools require and do not hold on the device.

    Args:
      spec: pools.
      pools: numbers of those that count.
      points: ``[K]`` int32 resume points.
      device: per pool, what is held on the device, as ``validate.missing`` takes it.
      near: the same with host memory; None if nothing lies in a store only.
    """
    xp = points.__array_namespace__()
    total = stored = xp.zeros(points.shape, xp.float32)
    for number in pools:
        pool = spec.pools[number]
        size = xp.float32(pool.block_bytes)
        away = missing(pool, points, device[number]).astype(xp.float32)
        total = total + away * size
        if near is not None:
            far = missing(pool, points, near[number]).astype(xp.float32)
            stored = stored + far * size
    return Bytes(total, stored)


def _bytes_of(
    spec: CacheSpec, states: Sequence[int], taken: Array, which: Array | None
) -> Array:
    """``[M]`` float32: bytes of those checkpoints of which ``which`` says yes."""
    xp = taken.__array_namespace__()
    nbytes = xp.zeros(taken.shape, xp.float32)
    if which is not None:
        for number, some in zip(states, which, strict=True):
            nbytes = nbytes + some * xp.float32(spec.pools[number].block_bytes)
    return nbytes


def _running_max(values: Array) -> Array:
    """Largest of the values up to each."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values)
    # The ufunc's own is a loop over single values there.
    return jax.lax.cummax(values)
