"""The ways to resume that load something first: what each costs, and the cheapest.

Seconds are compared in float32, as differences from the best way that loads nothing,
so that long prompts lose no precision.
"""

import dataclasses
from collections.abc import Sequence

from hybridcache_jax._typing import Array
from hybridcache_jax.cost import Bytes, CostModel
from hybridcache_jax.forms import RULES, Remedy
from hybridcache_jax.origins import Origins, bytes_missing
from hybridcache_jax.spec import CacheSpec


@dataclasses.dataclass(frozen=True)
class Way:
    """One way that loads; all ``[]``.

    Attributes:
      seconds: float32, those saved; ``-inf`` if there is no such way.
      point: int32, the resume point; 0 if there is none.
      start: int32, first position to run; 0 if there is none.
      nbytes: float32, bytes to load.
      base: int32, what a replay keeps, by its place in ``replay.bases``.
    """

    seconds: Array
    point: Array
    start: Array
    nbytes: Array
    base: Array


def no_way(points: Array) -> Way:
    """What stands for none.

    Args:
      points: any array of the namespace.
    """
    xp = points.__array_namespace__()
    zero = xp.zeros((), xp.int32)
    return Way(xp.float32(-xp.inf), zero, zero, xp.zeros((), xp.float32), zero)


def ways_that_load(
    spec: CacheSpec,
    points: Array,
    device: Sequence[Array],
    near: Sequence[Array] | None,
    candidates: tuple[Array, Array],
    origins: Sequence[Origins],
    base: Array,
    cost: CostModel,
) -> tuple[Way, Way]:
    """The cheapest way that loads and replays nothing, and the cheapest that does both.

    One that starts no later than what loads nothing is none: it would wait in vain.

    Args:
      spec: pools and layers.
      points: ``[K]`` int32.
      device: per pool, what is held on the device, as ``validate.missing`` takes it.
      near: the same with host memory; None if nothing lies in a store only.
      candidates: ``[K]`` bool twice: points whose forms are all held somewhere, and
        those where that is so of the forms that a replay cannot rebuild.
      origins: where replays can start.
      base: ``[]`` int32, where the best way that loads nothing starts.
      cost: rates.
    """
    loadable, reachable = candidates
    bounded = [
        number
        for number, pool in enumerate(spec.pools)
        if RULES[pool.form].remedy is Remedy.REPLAY
    ]
    growing = [number for number in range(len(spec.pools)) if number not in bounded]
    history = bytes_missing(spec, growing, points, device, near)
    rest = bytes_missing(spec, bounded, points, device, near)

    def best(mask, starts, first: Bytes, second: Bytes, number):
        nbytes = Bytes(first.total + second.total, first.stored + second.stored)
        saved = cost.saved(starts - base, nbytes) - cost.latency(nbytes)
        useful = mask & (nbytes.total > 0) & (starts > base)
        return _best(points, useful, saved, starts, nbytes.total, number)

    load = best(loadable, points, history, rest, 0)
    load_replay = no_way(points)
    for number, origin in enumerate(origins):
        for stored in (False,) if near is None else (False, True):
            starts, more = origin.cheapest(base, cost, stored)
            replays = reachable & (starts < points)
            way = best(replays, starts, history, more, number)
            load_replay = _better(load_replay, way)
    return load, load_replay


def _best(points, mask, saved, starts, nbytes, number: int) -> Way:
    """The best of one kind of way; of equals the one at the last point."""
    xp = points.__array_namespace__()
    none = xp.full(1, -xp.inf, xp.float32)
    saved = xp.concatenate([xp.where(mask, saved, -xp.inf)[::-1], none])
    at = xp.argmax(saved)
    there = saved[at] > -xp.inf

    def pick(array):
        nothing = xp.zeros(1, array.dtype)
        picked = xp.take(xp.concatenate([array[::-1], nothing]), at)
        return xp.where(there, picked, nothing[0])

    base = xp.where(there, xp.int32(number), xp.int32(0))
    return Way(saved[at], pick(points), pick(starts), pick(nbytes), base)


def _better(one: Way, other: Way) -> Way:
    """The better of two ways; of equals the one at the later point, then the first.

    Two that keep the same are of one kind: of those the one that starts later.
    """
    xp = one.point.__array_namespace__()
    later = (other.base == one.base) & (other.start > one.start)
    after = (other.point > one.point) | ((other.point == one.point) & later)
    take = (other.seconds > one.seconds) | ((other.seconds == one.seconds) & after)
    return Way(
        *(
            xp.where(take, getattr(other, field.name), getattr(one, field.name))
            for field in dataclasses.fields(Way)
        )
    )
