"""Plain XLA read over all visible entries of a paged history, tile by tile.

The loop runs over tiles of the block table up to the longest sequence of the
batch, so time follows the real context, not the capacity, and memory stays at one
tile.  Every tile lies at a fixed absolute position, so the order of summation for
a key does not depend on where a chunk starts.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.merge import Partial, combine, empty, partial_softmax

TILE_ENTRIES = 256


def paged_attention(
    query: jax.Array,
    load: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    blocks: jax.Array,
    *,
    entry_tokens: int,
    block_tokens: int,
    num_blocks: int,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    score: Callable[[jax.Array, jax.Array], jax.Array],
) -> Partial:
    """Attention of each query over the entries it sees, from ``since`` on.

    Args:
      query: ``[B, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      load: block ids ``[B, K]`` to keys ``[B, K * S, H, D]`` and values
        ``[B, K * S, H, Dv]``.  Ids outside the pool may give anything.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``.
      entry_tokens: tokens that one entry stands for; a query sees an entry once its
        last token lies at or before the query's position.
      block_tokens: tokens of a block of ``S`` entries.
      num_blocks: ``P``, size of the pool; ids outside ``[0, P)`` are not read.
      positions: ``[B, T]`` int32, position of each query.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      score: queries and keys to float32 scores ``[B, T, H, Q, K]``.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    entries = block_tokens // entry_tokens
    per_tile = max(1, TILE_ENTRIES // entries)
    tile = per_tile * block_tokens
    spare = -blocks.shape[1] % per_tile
    blocks = jnp.pad(blocks, ((0, 0), (0, spare)), constant_values=num_blocks)

    def step(index, total):
        ids = jax.lax.dynamic_slice_in_dim(blocks, index * per_tile, per_tile, axis=1)
        keys, values = load(ids)
        number = jnp.arange(per_tile * entries, dtype=jnp.int32)
        first = index * tile + entry_tokens * number
        last = first + entry_tokens - 1
        there = jnp.repeat((ids >= 0) & (ids < num_blocks), entries, axis=1)
        readable = there & (first >= since[:, None]) & (last < end[:, None])
        mask = readable[:, None, :] & (last <= positions[..., None])
        part = partial_softmax(score(query, keys), mask, values, readable)
        return combine(total, part)

    value_dim = jax.eval_shape(load, blocks[:, :1])[1].shape[-1]
    start = empty(query.shape[:-1], value_dim)
    tiles = (jnp.max(end) + tile - 1) // tile
    return jax.lax.fori_loop(0, tiles, step, start)
