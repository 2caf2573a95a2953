"""Reads over the whole history of a sequence, by whichever implementation."""

import functools
from typing import Any

import jax

from pallas_kernels.choice import Kernel
from pallas_kernels.merge import Partial
from pallas_kernels.paged_decode import reference
from pallas_kernels.source import Source, scores


def paged_attention(
    query: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    scale: float,
    soft_cap: float | None,
    kernel: Kernel,
) -> Partial:
    """Attention of each query over the entries it sees, from ``since`` on.

    Args:
      query: ``[B, T, H, Q, D]`` float32: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``; ids outside
        ``[0, P)`` are not read.
      positions: ``[B, T]`` int32, ascending by one along ``T``; a query sees an entry
        once its last token lies at or before the query's position.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      kernel: the implementation, from ``choice.choose("paged_decode", ...)``.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    rows: dict[str, Any] = {"positions": positions, "since": since, "end": end}
    if kernel.implementation == "mosaic_tpu":
        # Pallas takes long to import, and most processes need none of it.
        from pallas_kernels.paged_decode import mosaic_tpu

        return mosaic_tpu.paged_attention(
            query,
            source,
            blocks,
            **rows,
            scale=scale,
            soft_cap=soft_cap,
            interpret=kernel.interpret,
        )
    if kernel.implementation == "mosaic_gpu":
        from pallas_kernels.mosaic_gpu.interpreter import interpreter
        from pallas_kernels.paged_decode import mosaic_gpu

        return mosaic_gpu.paged_attention(
            query,
            source,
            blocks,
            **rows,
            scale=scale,
            soft_cap=soft_cap,
            interpret=interpreter(kernel.interpret),
        )
    return reference.paged_attention(
        query,
        source.by_block,
        blocks,
        entry_tokens=source.stored.entry_tokens,
        block_tokens=source.stored.block_tokens,
        num_blocks=source.num_blocks,
        **rows,
        score=functools.partial(scores, scale=scale, soft_cap=soft_cap),
    )
