"""Ranking by the scores of a kernel, which reads the blocks; XLA keeps the best.

A running top-k inside of a kernel would save little and be a second sort beside XLA's:
a query has a score of 4 bytes for a key of 256.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.indexer_scores import reference
from pallas_kernels.source import Source


def top_units(
    score: Callable[[jax.Array], jax.Array],
    source: Source,
    blocks: jax.Array,
    *,
    since: jax.Array,
    end: jax.Array,
    tile_keys: int,
    **rules: Any,
) -> jax.Array:
    """The ``k`` best units of each query, as ``indexer_scores.api.top_units``.

    Args:
      score: block ids ``[B, K]``, those outside ``[0, P)`` not to be read, to float32
        scores ``[B, T, G, K * S]``, anything for blocks that are not read.
      source: the index pool's layer.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      tile_keys: keys of each row that one turn of the loop scores, about.
      **rules: of the ranking, and ``positions``, as for ``reference.top_units``.

    Returns:
      ``[B, T, G, k]`` int32 unit numbers, best first; -1 for unused places.
    """
    stored, capacity = source.stored, blocks.shape[1]
    first = stored.block_tokens * jnp.arange(capacity, dtype=jnp.int32)
    needed = first < end[:, None]
    needed = needed & (first + stored.block_tokens > since[:, None])
    return reference.top_units(
        lambda ids: ids,
        # What is beyond a row's end is not read, whatever the table says.
        jnp.where(needed, blocks, source.num_blocks),
        score,
        key_tokens=stored.entry_tokens,
        block_tokens=stored.block_tokens,
        num_blocks=source.num_blocks,
        since=since,
        end=end,
        tile_keys=min(tile_keys, capacity * stored.block_entries),
        **rules,
    )
