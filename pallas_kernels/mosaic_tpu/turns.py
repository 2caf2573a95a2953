"""Calls of a TPU kernel for some rows of a batch at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.merge import Partial

IDS = 1 << 16
"""Most ids of blocks in one call: a quarter of a scalar memory of 1 MiB."""


def in_turns(
    read: Callable[..., Partial],
    arrays: tuple[jax.Array, ...],
    *,
    ids: int,
    fills: tuple[int, ...],
) -> Partial:
    """What ``read`` gives, called with no more ids than scalar memory holds.

    Args:
      read: arrays ``[R, ...]`` to partials ``[R, ...]``.
      arrays: ``[B, ...]`` each.
      ids: of one row.
      fills: by array, what rows that are added read nothing with.
    """
    batch = len(arrays[0])
    rows = min(max(1, IDS // ids), batch)
    if rows == batch:
        return read(*arrays)

    def cut(x, fill):
        spare = [(0, -batch % rows)] + [(0, 0)] * (x.ndim - 1)
        x = jnp.pad(x, spare, constant_values=fill)
        return x.reshape(-1, rows, *x.shape[1:])

    parts = jax.lax.map(lambda part: read(*part), tuple(map(cut, arrays, fills)))
    return Partial(*(x.reshape(-1, *x.shape[2:])[:batch] for x in parts))
