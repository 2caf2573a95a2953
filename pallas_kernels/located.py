"""Where selected entries lie."""

import jax
import jax.numpy as jnp

from pallas_kernels.source import Source


def located(
    source: Source,
    blocks: jax.Array,
    selected: jax.Array,
    *,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Block and slot of each entry that its query sees.

    Args:
      source: the pool's layer.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``; ids outside
        ``[0, P)`` are not read.
      selected: ``[B, T, G, K]`` int32 entry numbers, -1 for none.
      positions: ``[B, T]`` int32; a query sees an entry once its last token lies at or
        before the query's position.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.

    Returns:
      Two of ``[B, T, G, K]`` int32: ids of blocks, -1 where nothing is read, and the
      entries' places in them.
    """
    stored = source.stored
    first = selected * stored.entry_tokens
    last = first + (stored.entry_tokens - 1)
    column = first // stored.block_tokens
    flat = (column % blocks.shape[1]).reshape(len(blocks), -1)
    ids = jnp.take_along_axis(blocks, flat, axis=1).reshape(selected.shape)

    def of_row(x):
        return x[:, None, None, None]

    seen = (selected >= 0) & (ids >= 0) & (ids < source.num_blocks)
    seen = seen & (first >= of_row(since)) & (last < of_row(end))
    seen = seen & (last <= positions[:, :, None, None])
    slots = selected % stored.block_entries
    return jnp.where(seen, ids, -1), jnp.where(seen, slots, 0)
