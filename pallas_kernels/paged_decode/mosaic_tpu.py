"""The history of each row on a TPU; interpreted and compiled ahead of time only."""

import jax

from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_tpu.blocks import read_blocks
from pallas_kernels.mosaic_tpu.sizes import BlockSizes
from pallas_kernels.reach import Reach
from pallas_kernels.source import Source


def paged_attention(
    query: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    scale: float,
    soft_cap: float | None = None,
    sizes: BlockSizes | None = None,
    interpret=False,
) -> Partial:
    """Attention of each query over the entries it sees, from ``since`` on.

    Args:
      query: ``[B, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      blocks: ``[B, C]`` int32, id of block ``c`` in column ``c``.
      positions: ``[B, T]`` int32, ascending by one along ``T``.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      sizes: how the work is cut; None for what fits the layout.
      interpret: as ``pallas_call`` takes it.

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
        reach=Reach(),
        sizes=sizes,
        interpret=interpret,
    )
