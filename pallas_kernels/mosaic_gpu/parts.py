"""Where the 64 entries of a tile lie: whole blocks, or a part of one.

Plain arithmetic, for any arrays.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.contracts import MOSAIC_GPU
from pallas_kernels.mosaic_gpu.sizes import KEYS
from pallas_kernels.stored import Stored

FAR = MOSAIC_GPU.positions
"""Beyond every position, and still an int32 when added to one."""


def parts_of_tile(stored: Stored) -> int:
    """Copies that bring a tile of one plane."""
    return max(1, KEYS // stored.block_entries)


def tile_range(stored: Stored, since: jax.Array, end: jax.Array):
    """The first tile that each row reads, and one past the last.

    Args:
      stored: layout.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last.

    Returns:
      Two of ``[B]`` int32, equal where a row reads nothing.
    """
    tokens = KEYS * stored.entry_tokens
    first = since // tokens
    return first, jnp.where(end > since, -(-end // tokens), first)


def part_at(
    stored: Stored, table, row, since, end, number, n: int, *, blocks: int, ring: bool
):
    """One part of a tile, and whether it is read.

    Args:
      stored: layout.
      table: ``[B, C]`` int32.
      row: ``[]`` int32.
      since: ``[]`` int32, first position that counts.
      end: ``[]`` int32, one past the last.
      number: ``[]`` int32, of the tile.
      n: of the part.
      blocks: ``P``; ids outside ``[0, P)`` are not read.
      ring: whether the table is a ring: block ``j`` in column ``j % C``.

    Returns:
      ``(block, first entry, entries)``, and bool.
    """
    size = stored.block_entries
    count = min(size, KEYS)
    entry = (number * parts_of_tile(stored) + n) * count
    start = entry * stored.entry_tokens
    needed = (start < end) & (start + count * stored.entry_tokens > since)
    column, columns = jax.lax.div(entry, jnp.int32(size)), table.shape[1]
    if ring:
        column = jax.lax.rem(column, jnp.int32(columns))
    block = table[row, jnp.clip(column, 0, columns - 1)]
    first = jax.lax.rem(entry, jnp.int32(size))
    return (block, first, count), needed & (block >= 0) & (block < blocks)
