"""Selected entries on a GPU; interpreted and compiled ahead of time only."""

import jax

from pallas_kernels.located import located
from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_gpu.entries import read_entries
from pallas_kernels.mosaic_gpu.sizes import BlockSizes
from pallas_kernels.source import Source


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
    soft_cap: float | None = None,
    sizes: BlockSizes | None = None,
    interpret=False,
) -> Partial:
    """Attention of each query over the entries selected for it.

    Args:
      query: ``[B, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
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
      sizes: how the work is cut; None for what fits the layout.
      interpret: as ``plgpu.kernel`` takes it, or False.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.

    Raises:
      ValueError: if the kernel does not accept the pool's layout.
    """
    batch, width, groups, count = selected.shape
    ids, slots = located(
        source, blocks, selected, positions=positions, since=since, end=end
    )
    rows = (batch * width, groups, count)
    part = read_entries(
        query.reshape(batch * width, *query.shape[2:]),
        source,
        ids.reshape(rows),
        slots.reshape(rows),
        scale=scale,
        soft_cap=soft_cap,
        sizes=sizes,
        interpret=interpret,
    )
    return Partial(*(x.reshape(batch, width, *x.shape[1:]) for x in part))
