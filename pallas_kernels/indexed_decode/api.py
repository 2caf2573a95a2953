"""Reads of selected entries, by whichever implementation."""

import functools
from typing import Any

import jax

from pallas_kernels.choice import Kernel
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
    kernel: Kernel,
) -> Partial:
    """Attention of each query over the entries selected for it.

    Args:
      query: ``[B, T, H, Q, D]`` float32: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``; ids outside
        ``[0, P)`` are not read.
      selected: ``[B, T, G, K]`` int32 entry numbers, none twice for a query, -1 for
        none; ``G`` is 1 or ``H``.
      positions: ``[B, T]`` int32; a query sees an entry once its last token lies at or
        before the query's position.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      kernel: the implementation, from ``choice.choose("indexed_decode", ...)``.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    rows: dict[str, Any] = {"positions": positions, "since": since, "end": end}
    if kernel.implementation == "mosaic_gpu":
        # Pallas takes long to import, and most processes need none of it.
        from pallas_kernels.indexed_decode import mosaic_gpu
        from pallas_kernels.mosaic_gpu.interpreter import interpreter

        return mosaic_gpu.selected_attention(
            query,
            source,
            blocks,
            selected,
            **rows,
            scale=scale,
            soft_cap=soft_cap,
            interpret=interpreter(kernel.interpret),
        )
    if kernel.implementation == "mosaic_tpu":
        from pallas_kernels.indexed_decode import mosaic_tpu

        return mosaic_tpu.selected_attention(
            query,
            source,
            blocks,
            selected,
            **rows,
            scale=scale,
            soft_cap=soft_cap,
            interpret=kernel.interpret,
        )
    return reference.selected_attention(
        query,
        functools.partial(source.by_position, blocks),
        selected,
        entry_tokens=source.stored.entry_tokens,
        **rows,
        score=functools.partial(scores, scale=scale, soft_cap=soft_cap),
    )
