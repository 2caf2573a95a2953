"""Reads over the keys near the query, by whichever implementation."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from pallas_kernels.choice import Kernel
from pallas_kernels.merge import Partial
from pallas_kernels.source import Source, scores
from pallas_kernels.window_decode import reference


def window_attention(
    query: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    positions: jax.Array,
    first_visible: Callable[[jax.Array], jax.Array],
    reach: int,
    since: jax.Array,
    end: jax.Array,
    scale: float,
    soft_cap: float | None,
    kernel: Kernel,
) -> Partial:
    """Attention of each query over its window.

    Args:
      query: ``[B, T, H, Q, D]`` float32.
      source: the pool's layer.
      blocks: ``[B, C]`` int32, a ring: block ``j`` in column ``j % C``; ids outside
        ``[0, P)`` are not read.
      positions: ``[B, T]`` int32, ascending by one along ``T``.
      first_visible: query positions to the first key position each sees.
      reach: most keys before its own that a query sees.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      kernel: the implementation, from ``choice.choose("window_decode", ...)``.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    rows: dict[str, Any] = {"positions": positions, "since": since, "end": end}
    rows |= {"first_visible": first_visible, "reach": reach}
    if kernel.implementation == "mosaic_tpu":
        # Pallas takes long to import, and most processes need none of it.
        from pallas_kernels.window_decode import mosaic_tpu

        return mosaic_tpu.window_attention(
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
        from pallas_kernels.window_decode import mosaic_gpu

        return mosaic_gpu.window_attention(
            query,
            source,
            blocks,
            **rows,
            scale=scale,
            soft_cap=soft_cap,
            interpret=interpreter(kernel.interpret),
        )
    return reference.window_attention(
        query,
        source.by_block,
        blocks,
        block_tokens=source.stored.block_tokens,
        num_blocks=source.num_blocks,
        **rows,
        score=functools.partial(scores, scale=scale, soft_cap=soft_cap),
    )
