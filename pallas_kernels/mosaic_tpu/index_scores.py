"""One TPU kernel that scores blocks of index keys.

The grid runs over tiles of queries, rows of the batch, and steps of a few blocks, which
Pallas fetches as for :mod:`pallas_kernels.mosaic_tpu.blocks`.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.mosaic_tpu.entries import head_scores
from pallas_kernels.mosaic_tpu.places import Places
from pallas_kernels.mosaic_tpu.schedule import held, lying
from pallas_kernels.mosaic_tpu.sizes import SUBLANES, BlockSizes, fitting
from pallas_kernels.source import Source


def score_blocks(
    query: jax.Array,
    weights: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    scale: float,
    groups: int,
    sizes: BlockSizes | None = None,
    interpret,
) -> jax.Array:
    """Scores ``sum over h of weights[h] * relu(scale * query[h] . key)``.

    Args:
      query: ``[B, T, Hi, D]``.
      weights: ``[B, T, Hi]``.
      source: the index pool's layer; one head.
      blocks: ``[B, K]`` int32; ids outside ``[0, P)`` are not read.
      scale: factor on the dot products.
      groups: ``G``, selections per query; divides ``Hi``.
      sizes: how the work is cut; None for what fits.
      interpret: as ``pallas_call`` takes it.

    Returns:
      ``[B, T, G, K * S]`` float32, anything for blocks that are not read.
    """
    batch, width, heads, dim = query.shape
    stored, wanted = source.stored, blocks.shape[1]
    sizes = fitting(stored) if sizes is None else sizes
    count = min(sizes.blocks, wanted)
    there = (blocks >= 0) & (blocks < source.num_blocks)
    spare = -wanted % count
    parts = jnp.pad(
        jnp.where(there, blocks, -1), ((0, 0), (0, spare)), constant_values=-1
    )
    # Each of these gets scores of its own, summed over its heads.
    asked, each = width * groups, heads // groups
    rows = -(-each // SUBLANES) * SUBLANES
    tile = min(max(sizes.queries // rows // SUBLANES, 1) * SUBLANES, asked)
    padding = ((0, 0), (0, -asked % tile), (0, rows - each), (0, 0))

    def turned(x):
        x = jnp.pad(x.reshape(batch, asked, each, -1), padding)
        return x.reshape(batch, -1, x.shape[-1])

    query, weights = turned(query), turned(weights.astype(jnp.float32))
    tiles, steps = query.shape[1] // (tile * rows), parts.shape[1] // count
    keys = count * stored.block_entries
    places = Places(source, stored.block_entries, count)

    def block_at(place):
        return lambda m, b, j, parts: lying(parts[b, j * count + place])

    def rows_of(dim):
        return pl.BlockSpec((1, tile * rows, dim), lambda m, b, *_: (b, m, 0))

    scores = pl.pallas_call(
        functools.partial(_kernel, places=places, scale=scale, rows=rows),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(tiles, batch, steps),
            in_specs=[rows_of(dim), rows_of(1), *places.specs(block_at)],
            out_specs=pl.BlockSpec((1, 1, tile, keys), lambda m, b, j, _: (b, j, m, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((batch, steps, tiles * tile, keys), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
    )(held(parts, count), query, weights, *places.operands())
    scores = jnp.moveaxis(scores, 1, 2).reshape(batch, tiles * tile, -1)
    scores = scores[:, :asked, : wanted * stored.block_entries]
    return scores.reshape(batch, width, groups, -1)


def _kernel(parts, query, weights, *refs, places: Places, scale: float, rows: int):
    """A step: some blocks of one row against one tile of its queries."""
    out, count = refs[-1], places.count
    b, j = pl.program_id(1), pl.program_id(2)
    needed = parts[b, j * count] >= 0
    for place in range(1, count):
        needed = needed | (parts[b, j * count + place] >= 0)

    @pl.when(needed)
    def _():
        entry = places.source.stored.entry
        dots = head_scores(entry, query[0], places.loaded(refs), 0)
        weighed = weights[0] * jnp.maximum(scale * dots, 0.0)
        weighed = weighed.reshape(-1, rows, weighed.shape[-1])
        out[0, 0] = jnp.sum(weighed, axis=1)
