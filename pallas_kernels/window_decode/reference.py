"""Plain XLA read over the keys near the query, in one gather.

Only the blocks that the window can reach are touched:
``ceil((reach + T) / block) + 1`` for ``T`` queries, whatever the context length.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.merge import Partial, partial_softmax


def window_attention(
    query: jax.Array,
    load: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    blocks: jax.Array,
    *,
    block_tokens: int,
    num_blocks: int,
    positions: jax.Array,
    first_visible: Callable[[jax.Array], jax.Array],
    reach: int,
    since: jax.Array,
    end: jax.Array,
    score: Callable[[jax.Array, jax.Array], jax.Array],
) -> Partial:
    """Attention of each query over its window.

    Args:
      query: ``[B, T, H, Q, D]``.
      load: block ids ``[B, K]`` to keys and values, as for ``paged_attention``.
      blocks: ``[B, C]`` int32, a ring: block ``j`` in column ``j % C``.
      block_tokens: ``S``, tokens of a block.
      num_blocks: ``P``; ids outside ``[0, P)`` are not read.
      positions: ``[B, T]`` int32, ascending by one along ``T``.
      first_visible: query positions to the first key position each sees.
      reach: most keys before its own that a query sees.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      score: queries and keys to float32 scores ``[B, T, H, Q, K]``.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    span = -(-(reach + positions.shape[1]) // block_tokens) + 1
    # A ring shorter than the span holds the whole sequence: no column repeats.
    span = min(span, blocks.shape[1])
    # What lies behind the first query's window is dead, even in a block still held.
    since = jnp.maximum(since, first_visible(positions[:, 0]))
    number = since[:, None] // block_tokens + jnp.arange(span, dtype=jnp.int32)
    ids = jnp.take_along_axis(blocks, number % blocks.shape[1], axis=1)
    keys, values = load(ids)
    where = number[:, :, None] * block_tokens + jnp.arange(block_tokens)
    where = where.reshape(where.shape[0], -1)
    there = jnp.repeat((ids >= 0) & (ids < num_blocks), block_tokens, axis=1)
    readable = there & (where >= since[:, None]) & (where < end[:, None])
    mask = (
        readable[:, None, :]
        & (where[:, None, :] <= positions[..., None])
        & (where[:, None, :] >= first_visible(positions)[..., None])
    )
    return partial_softmax(score(query, keys), mask, values, readable)
