"""The keys near the query on a GPU; interpreted and compiled ahead of time only."""

from collections.abc import Callable

import jax

from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_gpu.blocks import read_blocks
from pallas_kernels.mosaic_gpu.sizes import BlockSizes
from pallas_kernels.reach import Reach
from pallas_kernels.source import Source


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
    soft_cap: float | None = None,
    sizes: BlockSizes | None = None,
    interpret=False,
) -> Partial:
    """Attention of each query over its window.

    At most ``ceil((reach + T) / block) + 1`` blocks of each row are fetched.

    Args:
      query: ``[B, T, H, Q, D]``.
      source: the pool's layer.
      blocks: ``[B, C]`` int32, a ring: block ``j`` in column ``j % C``.
      positions: ``[B, T]`` int32, ascending by one along ``T``.
      first_visible: query positions to the first key position each sees.
      reach: most keys before its own that a query sees.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      sizes: how the work is cut; None for what fits the layout.
      interpret: as ``plgpu.kernel`` takes it, or False.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    return read_blocks(
        query,
        source,
        blocks,
        position=positions[:, 0],
        since=since,
        end=end,
        scale=scale,
        soft_cap=soft_cap,
        reach=Reach.of_window(
            first_visible,
            reach,
            width=positions.shape[1],
            block_tokens=source.stored.block_tokens,
            columns=blocks.shape[1],
        ),
        sizes=sizes,
        interpret=interpret,
    )
