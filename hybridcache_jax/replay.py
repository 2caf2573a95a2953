"""How far back a replay must start to rebuild lost forms exactly.

A row that layer ``l`` keeps at position ``t`` is made from the layer's input at
``t``, which depends on every row that the layers below attend to from ``t``.  To
have layer ``l`` right from position ``x`` on, a window layer below must be right
from ``x - (W - 1)`` on, a chunk layer from the start of ``x``'s chunk; entries that
are held add nothing as long as the replay reads and never overwrites them.
Walking down from the topmost layer whose form is lost gives the exact start; for
windows alone it is ``p - sum(W_l - 1)`` (receptive field argument; sharp).

A recurrent layer can start only from a checkpoint taken at the replay's own start,
and only if its input is right from there on: a window below it makes that impossible,
a chunk below it allows starts of its own chunks.
"""

import functools
import math

from hybridcache_jax._typing import Array
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.layers import Chunk, Window
from hybridcache_jax.spec import CacheSpec

Step = Window | Chunk


def replay_start(
    spec: CacheSpec, points: Array, checkpoints: Array | None = None
) -> Array:
    """First position to run again so that every lost form is exact at each point.

    A replay rebuilds all forms that a replay can rebuild, also those that are still
    held: during it they are needed at positions before the ones that are held.

    Args:
      spec: the layers.
      points: ``[K]`` int32 resume points; all history forms must be held there.
      checkpoints: ``[M]`` int32 ascending positions at which *all* recurrent layers
        have a checkpoint, or None for none.

    Returns:
      ``[K]`` int32, 0 where only a run from the beginning rebuilds everything.
    """
    xp = points.__array_namespace__()
    start = points
    for index, pool in enumerate(spec.pools):
        rule = RULES[pool.form]
        if rule.remedy is not Remedy.REPLAY or rule.exact:
            continue
        lo, hi = required(pool.form, pool.geometry, points)
        needed = xp.where(lo < hi, lo, points)
        for step in _steps_below(spec, index):
            needed = step.first_visible(needed)
        start = xp.minimum(start, needed)
    if any(layer.recurrent is not None for layer in spec.layers):
        start = _floor_to(_usable(checkpoints, _unit(spec)), start)
    return start


@functools.lru_cache(maxsize=256)
def _steps_below(spec: CacheSpec, pool: int) -> tuple[Step, ...]:
    """Widening steps from the pool's topmost layer down, runs merged."""
    steps: list[Step] = []
    for layer in reversed(spec.layers[: spec.pools[pool].layers[-1]]):
        # A layer that reads an owner's window widens nothing: the owner lies below
        # and widens from a position that is at least as early.
        step = layer.local
        last = steps[-1] if steps else None
        if isinstance(step, Window) and isinstance(last, Window):
            steps[-1] = Window(last.size + step.reach, last.entry)
        elif step is not None and step != last:
            steps.append(step)
    return tuple(steps)


@functools.lru_cache(maxsize=256)
def _unit(spec: CacheSpec) -> int | None:
    """A replay over recurrent layers starts at a multiple of it; None if never."""
    top = max(n for n, layer in enumerate(spec.layers) if layer.recurrent is not None)
    unit = 1
    for layer in spec.layers[:top]:
        if isinstance(layer.local, Chunk):
            unit = math.lcm(unit, layer.local.size)
        elif layer.local is not None and layer.local.reach:
            return None
    return unit


def _usable(checkpoints: Array | None, unit: int | None) -> Array | None:
    """Those from which every recurrent layer gets an input that is right."""
    if checkpoints is None or unit is None or unit == 1:
        return checkpoints if unit else None
    xp = checkpoints.__array_namespace__()
    return xp.sort(xp.where(checkpoints % unit == 0, checkpoints, 0))


def _floor_to(checkpoints: Array | None, needed: Array) -> Array:
    """The last checkpoint at or before each position; 0 if there is none."""
    if checkpoints is None or checkpoints.shape[0] == 0:
        return needed * 0
    xp = needed.__array_namespace__()
    rank = xp.searchsorted(checkpoints, needed, side="right")
    return xp.where(rank > 0, xp.take(checkpoints, rank - 1, mode="clip"), 0)
