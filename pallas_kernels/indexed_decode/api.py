"""Reads of selected entries; XLA's gather is the one implementation."""

import functools

import jax

from pallas_kernels.indexed_decode import reference
from pallas_kernels.merge import Partial
from pallas_kernels.source import Source, scores


def selected_attention(
    query: jax.Array,
    source: Source,
    blocks: jax.Array,
    selected: jax.Array,
    *,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    scale: float,
    soft_cap: float | None,
) -> Partial:
    """Attention of each query over the entries selected for it.

    Args:
      query: ``[B, T, H, Q, D]`` float32: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``; ids outside
        ``[0, P)`` are not read.
      selected: ``[B, T, G, K]`` int32 entry numbers, -1 for none; ``G`` is 1 or ``H``.
      positions: ``[B, T]`` int32; a query sees an entry once its last token lies at or
        before the query's position.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    return reference.selected_attention(
        query,
        functools.partial(source.by_position, blocks),
        selected,
        entry_tokens=source.stored.entry_tokens,
        positions=positions,
        since=since,
        end=end,
        score=functools.partial(scores, scale=scale, soft_cap=soft_cap),
    )
