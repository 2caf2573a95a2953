"""How far back a replay must start to rebuild lost forms exactly.

A row that layer ``l`` keeps at position ``t`` is made from the layer's input at
``t``, which depends on every row that the layers below attend to from ``t``.  To
have layer ``l`` right from position ``x`` on, a window layer below must be right
from ``x - (W - 1)`` on, a chunk layer from the start of ``x``'s chunk; entries that
are held add nothing as long as the replay reads and never overwrites them.
Walking down from the topmost layer whose form is lost gives the exact start; for
windows alone it is ``p - sum(W_l - 1)`` (receptive field argument; sharp).

A recurrent layer on the way can start only from a checkpoint, and only if nothing
below it needs rows from before that checkpoint.
"""

import dataclasses
import functools

from hybridcache_jax._typing import Array
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.layers import Chunk, Window
from hybridcache_jax.spec import CacheSpec


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """Widening step of recurrent layers: down to a checkpoint at or before."""


Step = Window | Chunk | _Checkpoint


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
        if rule.remedy is not Remedy.REPLAY:
            continue
        lo, hi = required(pool.form, pool.geometry, points)
        needed = xp.where(lo < hi, lo, points)
        fixed = rule.exact
        if fixed:
            needed = _floor_to(checkpoints, points)
        for step in _steps_below(spec, index):
            if isinstance(step, _Checkpoint):
                needed = _floor_to(checkpoints, needed)
                fixed = True
            else:
                seen = step.first_visible(needed)
                # A checkpoint cannot move: what lies below must need nothing earlier.
                needed = xp.where(seen == needed, needed, 0) if fixed else seen
        start = xp.minimum(start, needed)
    if any(layer.recurrent is not None for layer in spec.layers):
        # All layers start together, so the recurrent ones need their state there.
        start = _floor_to(checkpoints, start)
    return start


@functools.lru_cache(maxsize=256)
def _steps_below(spec: CacheSpec, pool: int) -> tuple[Step, ...]:
    """Widening steps from the pool's topmost layer down, runs merged."""
    steps: list[Step] = []
    for layer in reversed(spec.layers[: spec.pools[pool].layers[-1]]):
        # A layer that reads an owner's window widens nothing: the owner lies below
        # and widens from a position that is at least as early.
        here: list[Step] = [] if layer.local is None else [layer.local]
        if layer.recurrent is not None:
            here.append(_Checkpoint())
        for step in here:
            last = steps[-1] if steps else None
            if isinstance(step, Window) and isinstance(last, Window):
                steps[-1] = Window(last.size + step.reach, last.entry)
            elif step != last:
                steps.append(step)
    return tuple(steps)


def _floor_to(checkpoints: Array | None, needed: Array) -> Array:
    """The last checkpoint at or before each position; 0 if there is none."""
    if checkpoints is None or checkpoints.shape[0] == 0:
        return needed * 0
    xp = needed.__array_namespace__()
    rank = xp.searchsorted(checkpoints, needed, side="right")
    return xp.where(rank > 0, xp.take(checkpoints, rank - 1, mode="clip"), 0)
