"""Selected entries on a TPU; interpreted and compiled ahead of time only."""

import jax
import jax.numpy as jnp

from pallas_kernels.located import located
from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_tpu.selected import read_strips
from pallas_kernels.mosaic_tpu.sizes import BlockSizes, fitting, strip_entries
from pallas_kernels.mosaic_tpu.strips import distinct
from pallas_kernels.mosaic_tpu.turns import in_turns
from pallas_kernels.source import Source

# Queries side by side select much the same: what one fetches serves the others.
_TOGETHER = 4


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

    The parts of blocks that hold such entries are fetched, each once for some queries
    side by side.

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
      interpret: as ``pallas_call`` takes it.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    stored = source.stored
    size = strip_entries(stored)
    sizes = fitting(stored, size) if sizes is None else sizes
    batch, width, _, group, _ = query.shape
    groups, count = selected.shape[2:]
    ids, _ = located(
        source, blocks, selected, positions=positions, since=since, end=end
    )
    entry = jnp.where(ids >= 0, selected, -1)
    together = min(width, _TOGETHER, max(1, sizes.queries // group))
    each = stored.block_entries // size
    most = min(together * groups * count, blocks.shape[1] * each)
    most += -most % sizes.blocks
    spare = -width % together

    def shared(x, fill):
        """``[B, T, ...]`` to ``[R, together, ...]``, padded."""
        wide = [(0, 0), (0, spare)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, wide, constant_values=fill)
        return x.reshape(-1, together, *x.shape[2:])

    def read(query, entry, row):
        entry = entry.reshape(len(entry), -1, count)
        number, words = distinct(entry, size=size, most=most)
        block = blocks[row[:, None], jnp.maximum(number, 0) // each]
        return read_strips(
            query,
            source,
            jnp.where(number >= 0, block * each + number % each, -1),
            words,
            scale=scale,
            soft_cap=soft_cap,
            sizes=sizes,
            interpret=interpret,
        )

    row = jnp.repeat(jnp.arange(batch), (width + spare) // together)
    part = in_turns(
        read,
        (shared(query, 0), shared(entry, -1), row),
        ids=most,
        fills=(0, -1, 0),
    )
    return Partial(*(x.reshape(batch, -1, *x.shape[2:])[:, :width] for x in part))
