"""How late a replay may start and still rebuild the lost forms exactly.

A row that layer ``l`` keeps at position ``t`` is made from the layer's input at
``t``, which depends on every row that the layers below attend to from ``t``.  To
have layer ``l`` right from position ``x`` on, a window layer below must be right
from ``x - (W - 1)`` on, a chunk layer from the start of ``x``'s chunk; entries that
are held add nothing as long as the replay reads and never overwrites them.
Walking down from the topmost layer whose form is lost gives the exact start; for
windows alone it is ``p - sum(W_l - 1)`` (receptive field argument; sharp).

A replay may also *keep* forms: go on from what a pool must hold to resume at the
replay's own start.  Up to the lowest layer whose rows are not kept all that the replay
makes is right from its first position on, so the walk ends there.  Above that layer the
first rows are wrong whatever was held, so only sets of pools from the bottom up help.

A recurrent layer can start only from a checkpoint taken at the replay's own start,
and only if its input is right from there on: a window below it must be kept, a chunk
below it that is not kept allows starts of its own chunks.
"""

import functools
import itertools
import math

from hybridcache_jax._typing import Array
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.layers import Chunk, Window
from hybridcache_jax.spec import CacheSpec

Step = Window | Chunk
Base = tuple[int, ...]
_INT32_MAX = 2**31 - 1


@functools.lru_cache(maxsize=256)
def bases(spec: CacheSpec) -> tuple[Base, ...]:
    """The sets of pools that a replay may keep, by number; fewest first.

    The empty one is the first.  All of them together are none: where nothing is lost,
    nothing is replayed.  Checkpoints are no part of it; a replay over recurrent layers
    always starts from them.

    Args:
      spec: pools and layers.
    """
    bounded = _rebuilt(spec)
    local = [n for n in bounded if _reaches(spec, n)]
    local.sort(key=lambda n: spec.pools[n].layers[0])
    tails = [n for n in bounded if spec.pools[n].geometry.local is None]
    # Between two grid points lie whole tails; at exact positions that is not so.
    some = tails if is_recurrent(spec) else []
    found = {
        tuple(sorted((*local[:count], *kept)))
        for count in range(len(local) + 1)
        for size in range(len(some) + 1)
        for kept in itertools.combinations(some, size)
    } - {(), tuple(sorted((*local, *tails)))}
    return ((), *sorted(found, key=lambda base: (len(base), base)))


def latest_start(spec: CacheSpec, points: Array, base: Base = ()) -> Array:
    """The last position from which a replay leaves every form right at each point.

    A replay rebuilds all forms that a replay can rebuild, also those that are still
    held: during it they are needed at positions before the ones that are held.

    Args:
      spec: the layers.
      points: ``[K]`` int32 resume points; all history forms must be held there.
      base: the pools that are kept, one of :func:`bases`; they must hold what resuming
        at the start requires.

    Returns:
      ``[K]`` int32, 0 or less where nothing but a run from the beginning will do.
      Every earlier start will do as well.  Recurrent layers add what :func:`usable`
      says.
    """
    xp = points.__array_namespace__()
    floor, start = _lowest_empty(spec, base), points
    for number in _rebuilt(spec):
        pool = spec.pools[number]
        top = pool.layers[-1]
        if number in base and top <= floor:
            continue
        lo, hi = required(pool.form, pool.geometry, points)
        needed = xp.where(lo < hi, lo, points)
        for step in _steps_between(spec, floor, top):
            needed = step.first_visible(needed)
        start = xp.minimum(start, needed)
    return start


def usable(spec: CacheSpec, positions: Array, base: Base = ()) -> Array:
    """At which positions recurrent layers would start on inputs that are right.

    Args:
      spec: the layers.
      positions: ``[M]`` int32, where all of them have a checkpoint.
      base: the pools that are kept.

    Returns:
      ``[M]`` bool; False for position 0, which needs no checkpoint.
    """
    unit = _unit(spec, base)
    return (positions > 0) & (positions % unit == 0) if unit else positions < 0


def replay_start(
    spec: CacheSpec, points: Array, checkpoints: Array | None = None
) -> Array:
    """Where a replay starts that keeps nothing.

    Args:
      spec: the layers.
      points: ``[K]`` int32 resume points; all history forms must be held there.
      checkpoints: ``[M]`` int32 ascending positions at which *all* recurrent layers
        have a checkpoint, or None for none.

    Returns:
      ``[K]`` int32, 0 where only a run from the beginning rebuilds everything.
    """
    latest = latest_start(spec, points)
    if not is_recurrent(spec):
        return latest
    if checkpoints is None:
        return latest * 0
    return last_of(checkpoints, usable(spec, checkpoints), latest)


def last_of(positions: Array, allowed: Array, limits: Array) -> Array:
    """The last allowed position at or before each limit; 0 if there is none.

    Args:
      positions: ``[M]`` int32 ascending.
      allowed: ``[M]`` bool.
      limits: ``[K]`` int32.

    Returns:
      ``[K]`` int32.
    """
    xp = limits.__array_namespace__()
    if positions.shape[0] == 0:
        return limits * 0
    positions = xp.sort(xp.where(allowed, positions, 0))
    rank = xp.searchsorted(positions, limits, side="right")
    return xp.where(rank > 0, xp.take(positions, rank - 1, mode="clip"), 0)


@functools.lru_cache(maxsize=1024)
def companions(spec: CacheSpec, pool: int) -> Base:
    """The pools that must be held beside a bounded one for it to be of use.

    What is held at a grid point serves to resume there or as the start of a replay.  A
    checkpoint needs those of the other recurrent layers and the windows and chunks
    below them; a window or chunk these and those that lie lower; a tail all bounded
    forms, for no replay goes on from one.  A chunk that starts at the point requires
    nothing there, and so is never missed.

    Args:
      spec: pools and layers.
      pool: number of the bounded pool.

    Returns:
      Numbers of the pools, ascending, its own among them.
    """
    states = [n for n, other in enumerate(spec.pools) if RULES[other.form].exact]
    bounded = sorted((*_rebuilt(spec), *states))
    top = max((spec.pools[n].layers[-1] for n in states), default=0)
    local = [n for n in bounded if _reaches(spec, n)]
    below = [n for n in local if spec.pools[n].layers[0] < top]
    if pool in states:
        return tuple(sorted({*states, *below}))
    if pool not in local:
        return tuple(bounded)
    first = spec.pools[pool].layers[0]
    lower = [n for n in local if spec.pools[n].layers[0] <= first]
    return tuple(sorted({*states, *below, *lower}))


def is_recurrent(spec: CacheSpec) -> bool:
    """Whether a replay needs checkpoints to start from."""
    return any(layer.recurrent is not None for layer in spec.layers)


def _rebuilt(spec: CacheSpec) -> list[int]:
    """The pools that a replay can rebuild from nothing: all bounded but checkpoints."""
    return [
        number
        for number, pool in enumerate(spec.pools)
        if RULES[pool.form].remedy is Remedy.REPLAY and not RULES[pool.form].exact
    ]


def _reaches(spec: CacheSpec, number: int) -> bool:
    """Whether layers attend to earlier rows of a pool."""
    local = spec.pools[number].geometry.local
    return local is not None and local.reach > 0


def _lowest_empty(spec: CacheSpec, base: Base) -> int:
    """The lowest layer that attends to rows which are not kept."""
    return min(
        (
            pool.layers[0]
            for number, pool in enumerate(spec.pools)
            if number not in base and _reaches(spec, number)
        ),
        default=len(spec.layers),
    )


@functools.lru_cache(maxsize=1024)
def _steps_between(spec: CacheSpec, floor: int, top: int) -> tuple[Step, ...]:
    """Widening steps below one layer down to another one, runs merged."""
    steps: list[Step] = []
    for layer in reversed(spec.layers[floor:top]):
        # A layer that reads an owner's window widens nothing: the owner lies below
        # and widens from a position that is at least as early.
        step = layer.local
        last = steps[-1] if steps else None
        if isinstance(step, Window) and isinstance(last, Window):
            steps[-1] = Window(last.size + step.reach, last.entry)
        elif step is not None and step != last:
            steps.append(step)
    return tuple(steps)


@functools.lru_cache(maxsize=1024)
def _unit(spec: CacheSpec, base: Base) -> int | None:
    """A replay over recurrent layers starts at a multiple of it; None if never."""
    top = max(n for n, layer in enumerate(spec.layers) if layer.recurrent is not None)
    kept = {
        layer
        for number in base
        if _reaches(spec, number)
        for layer in spec.pools[number].layers
    }
    unit = 1
    for number, layer in enumerate(spec.layers[:top]):
        if number in kept:
            continue
        if isinstance(layer.local, Chunk):
            unit = math.lcm(unit, layer.local.size)
        elif layer.local is not None and layer.local.reach:
            return None
    # No position is a multiple of more.
    return unit if unit <= _INT32_MAX else None
