"""Plain XLA ranking over paged index keys, tile by tile, with a running top-k.

The loop runs over tiles of the block table up to the longest sequence of the batch.
Ties go to the earlier unit: the running list stands before the new tile, and
``lax.top_k`` prefers the lower place.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

TILE_KEYS = 1024


def top_units(
    load: Callable[[jax.Array], jax.Array],
    blocks: jax.Array,
    score: Callable[[jax.Array], jax.Array],
    *,
    groups: int,
    k: int,
    key_tokens: int,
    unit: int,
    local_units: int,
    skip_open: bool,
    block_tokens: int,
    num_blocks: int,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    tile_keys: int | None = None,
) -> jax.Array:
    """The ``k`` best units of each query.

    Args:
      load: block ids ``[B, K]`` to keys ``[B, K * S, D]``.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``.
      score: keys ``[B, N, D]`` to float32 scores ``[B, T, G, N]``.
      groups: ``G``, selections per query.
      k: units selected.
      key_tokens: tokens that one key stands for.
      unit: tokens per unit, a multiple of ``key_tokens``.
      local_units: units nearest the query that are taken whatever their score.
      skip_open: leave out the query's own unit while it is not complete.
      block_tokens: tokens of a block.
      num_blocks: ``P``; ids outside ``[0, P)`` are not read.
      positions: ``[B, T]`` int32, position of each query; it sees the keys whose last
        token lies at or before it.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      tile_keys: keys of one turn of the loop, about; None for ``TILE_KEYS``.

    Returns:
      ``[B, T, G, k]`` int32 unit numbers, best first; -1 for unused places.
    """
    block_keys = block_tokens // key_tokens
    per_tile = max(1, (tile_keys or TILE_KEYS) // block_keys)
    while per_tile * block_tokens % unit:
        per_tile += 1
    tile = per_tile * block_tokens
    spare = -blocks.shape[1] % per_tile
    blocks = jnp.pad(blocks, ((0, 0), (0, spare)), constant_values=num_blocks)
    own = positions[..., None] // unit

    def step(index, best):
        ids = jax.lax.dynamic_slice_in_dim(blocks, index * per_tile, per_tile, axis=1)
        scores = score(load(ids))
        # top_k would rank 0.0 above -0.0, and they tie.
        scores = jnp.where(scores == 0, 0.0, scores)
        first = index * tile + key_tokens * jnp.arange(tile // key_tokens)
        last = first + key_tokens - 1
        there = jnp.repeat((ids >= 0) & (ids < num_blocks), block_keys, axis=1)
        readable = there & (first >= since[:, None]) & (last < end[:, None])
        seen = readable[:, None] & (last <= positions[..., None])
        scores = jnp.where(seen[:, :, None], scores, -jnp.inf)
        scores = scores.reshape(*scores.shape[:3], -1, unit // key_tokens).max(axis=-1)
        number = index * (tile // unit) + jnp.arange(tile // unit, dtype=jnp.int32)
        near = (number <= own) & (number > own - local_units)
        scores = jnp.where(near[:, :, None], jnp.inf, scores)
        if skip_open:
            is_open = (number == own) & ((positions[..., None] + 1) % unit != 0)
            scores = jnp.where(is_open[:, :, None], -jnp.inf, scores)
        number = jnp.broadcast_to(number, scores.shape)
        scores = jnp.concatenate([best[0], scores], axis=-1)
        number = jnp.concatenate([best[1], number], axis=-1)
        top, place = jax.lax.top_k(scores, k)
        chosen = jnp.take_along_axis(number, place, axis=-1)
        return top, jnp.where(jnp.isneginf(top), -1, chosen)

    shape = (*positions.shape, groups, k)
    start = (jnp.full(shape, -jnp.inf), jnp.full(shape, -1, jnp.int32))
    tiles = (jnp.max(end) + tile - 1) // tile
    return jax.lax.fori_loop(0, tiles, step, start)[1]
