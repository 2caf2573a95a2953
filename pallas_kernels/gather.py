"""Reading stored entries back: by block, and by position."""

import jax
import jax.numpy as jnp

from pallas_kernels.lanes import Lanes
from pallas_kernels.stored import Planes, Stored
from pallas_kernels.values import from_storage


def whole_blocks(pool: Stored, memory: Planes, layer: int, ids: jax.Array) -> Planes:
    """Every entry of some blocks.

    Args:
      pool: layout.
      memory: plane to ``[L, P, S, width]``, or to ``[L, P, rows, 128]`` in lanes.
      layer: position on the pool's layer axis.
      ids: ``[B, K]`` int32; ids outside the pool give anything.

    Returns:
      Plane to ``[B, K * S, heads, dim]`` in its logical dtype.
    """
    loaded = {}
    for plane in pool.entry.planes:
        stored = _clipped(memory[plane.name], (layer, ids))
        lanes = Lanes.of(pool, plane)
        if lanes.holds(stored):
            stored = lanes.values(stored)
        value = from_storage(plane, stored)
        loaded[plane.name] = value.reshape(ids.shape[0], -1, plane.heads, plane.dim)
    return loaded


def at_positions(
    pool: Stored,
    memory: Planes,
    layer: int,
    blocks: jax.Array,
    positions: jax.Array,
    num_blocks: int,
) -> tuple[Planes, jax.Array]:
    """Single entries of each row.

    Args:
      pool: layout.
      memory: plane to ``[L, P, S, width]``, or to ``[L, P, rows, 128]`` in lanes.
      layer: position on the pool's layer axis.
      blocks: ``[B, C]`` int32, the rows' columns: block ``j`` in ``j % C``.
      positions: ``[B, ...]`` int32, a position that the entry stands for.
      num_blocks: ``P``.

    Returns:
      Plane to ``[B, ..., heads, dim]`` in its logical dtype, and ``[B, ...]`` bool:
      which positions have a block.  Others, negative ones among them, give anything.
    """
    flat = positions.reshape(positions.shape[0], -1)
    column = flat // pool.block_tokens % blocks.shape[1]
    ids = jnp.take_along_axis(blocks, column, axis=1).reshape(positions.shape)
    there = (ids >= 0) & (ids < num_blocks) & (positions >= 0)
    offset = positions % pool.block_tokens // pool.entry_tokens
    loaded = {}
    for plane in pool.entry.planes:
        array, lanes = memory[plane.name], Lanes.of(pool, plane)
        if lanes.holds(array):
            where = lanes.places(layer, ids, offset, num_blocks)
            stored = lanes.joined(_clipped(lanes.view(array), where))
        else:
            stored = _clipped(array, (layer, ids, offset))
        loaded[plane.name] = from_storage(plane, stored)
    return loaded, there


def _clipped(array: jax.Array, where) -> jax.Array:
    return array.at[where].get(mode="clip", wrap_negative_indices=False)
