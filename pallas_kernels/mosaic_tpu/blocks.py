"""One TPU kernel for reads that go through a block table in order.

The grid runs over rows of the batch, tiles of queries, and steps of a few blocks.
Pallas fetches the blocks of the next step, be it of the next row, while one is worked
on; a block whose id does not change from one step to the next is not fetched again,
which is how steps beyond a row's last block cost no traffic.  The softmax is the online
one of :mod:`pallas_kernels.merge`.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_tpu.entries import head_scores, head_sums
from pallas_kernels.mosaic_tpu.schedule import id_at, number_at, row_range
from pallas_kernels.mosaic_tpu.sizes import LANES, SUBLANES, BlockSizes, fitting
from pallas_kernels.reach import Reach
from pallas_kernels.source import Source
from pallas_kernels.stored import Stored, read_planes


def read_blocks(
    query: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    position: jax.Array,
    since: jax.Array,
    end: jax.Array,
    scale: float,
    soft_cap: float | None,
    reach: Reach,
    sizes: BlockSizes | None,
    interpret,
) -> Partial:
    """Attention of each query over the blocks of its row.

    Args:
      query: ``[B, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      blocks: ``[B, C]`` int32 block ids; outside ``[0, P)`` nothing is there.
      position: ``[B]`` int32, position of the first query; the others follow it.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      reach: which keys a query sees.
      sizes: how the work is cut; None for what fits.
      interpret: as ``pallas_call`` takes it.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    batch, width, heads, group, _ = query.shape
    stored, layer, num_blocks = source.stored, source.layer, source.num_blocks
    sizes = fitting(stored) if sizes is None else sizes
    count = sizes.blocks if reach.most is None else min(sizes.blocks, reach.most)
    first, stop = row_range(stored, width, position, since, end, reach)
    rows, tile = _rows(width * group, sizes.queries)
    flat = jnp.moveaxis(query, 1, 2).reshape(batch, heads, width * group, -1)
    flat = jnp.pad(flat, ((0, 0), (0, 0), (0, rows - width * group), (0, 0)))
    if reach.most is None:
        steps = jnp.maximum(jnp.max(stop - first + count - 1) // count, 1)
    else:
        steps = -(-reach.most // count)

    def block_at(place):
        """Where the ``place``-th block of each step lies."""

        def index(b, _, j, first, stop, *scalars):
            number = number_at(first[b], stop[b], j, place, count)
            block = id_at(scalars[-1], b, number, reach)
            return layer, jnp.clip(block, 0, num_blocks - 1), 0, 0

        return index

    def queries_at(b, m, j, *_):
        return b, 0, m, 0

    read = read_planes(stored.entry)
    size = stored.block_entries
    in_specs = [pl.BlockSpec((1, heads, tile, flat.shape[-1]), queries_at)]
    operands = [flat]
    for place in range(count):
        for plane in read:
            array = source.planes[plane.name]
            in_specs.append(
                pl.BlockSpec((1, 1, size, array.shape[-1]), block_at(place))
            )
            operands.append(array)
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    value_dim = sum(plane.dim for plane in stored.entry.value_planes)
    kernel = functools.partial(
        _kernel,
        stored=stored,
        count=count,
        group=group,
        tile=tile,
        num_blocks=num_blocks,
        reach=reach,
        scale=scale,
        soft_cap=soft_cap,
    )
    acc, m, l = pl.pallas_call(  # noqa: E741
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6,
            grid=(batch, rows // tile, steps),
            in_specs=in_specs,
            out_specs=[
                pl.BlockSpec((1, heads, tile, value_dim), queries_at),
                pl.BlockSpec((1, heads, tile, LANES), queries_at),
                pl.BlockSpec((1, heads, tile, LANES), queries_at),
            ],
        ),
        out_shape=[
            shape((batch, heads, rows, value_dim)),
            shape((batch, heads, rows, LANES)),
            shape((batch, heads, rows, LANES)),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
    )(first, stop, since, end, position, blocks, *operands)

    def back(x):
        x = x[:, :, : width * group]
        x = x.reshape(batch, heads, width, group, *x.shape[3:])
        return jnp.moveaxis(x, 1, 2)

    return Partial(back(acc), back(m[..., 0]), back(l[..., 0]))


def _kernel(
    first,
    stop,
    since,
    end,
    position,
    table,
    query,
    *refs,
    stored: Stored,
    count: int,
    group: int,
    tile: int,
    num_blocks: int,
    reach: Reach,
    scale: float,
    soft_cap: float | None,
):
    """A step: some blocks of one row against one tile of its queries."""
    acc, m, l = refs[-3:]  # noqa: E741
    entry = stored.entry
    names = [plane.name for plane in read_planes(entry)]
    b, part, j = (pl.program_id(axis) for axis in range(3))

    @pl.when(j == 0)
    def _():
        acc[...] = jnp.zeros_like(acc)
        m[...] = jnp.full_like(m, -jnp.inf)
        l[...] = jnp.zeros_like(l)

    number = first[b] + j * count

    @pl.when(number < stop[b])
    def _():
        size = stored.block_entries
        place = jax.lax.broadcasted_iota(jnp.int32, (tile, 1), 0) + part * tile
        at = position[b] + place // group

        def readable(axis):
            """Which entries of the step were written, along one axis of a matrix."""
            shape = (1, size) if axis else (size, 1)
            parts = []
            for n in range(count):
                block = id_at(table, b, number + n, reach)
                there = (block >= 0) & (block < num_blocks) & (number + n < stop[b])
                begin = (number + n) * stored.block_tokens
                begin += stored.entry_tokens * jax.lax.broadcasted_iota(
                    jnp.int32, shape, axis
                )
                last = begin + stored.entry_tokens - 1
                low = jnp.where(there, since[b], jnp.iinfo(jnp.int32).max)
                good = (begin >= low) & (last < end[b])
                parts.append((good, begin, last))
            good, begin, last = zip(*parts, strict=True)
            return (
                jnp.concatenate([x.astype(jnp.int32) for x in good], axis) != 0,
                jnp.concatenate(begin, axis),
                jnp.concatenate(last, axis),
            )

        good, begin, last = readable(1)
        seen = good & (last <= at)
        if reach.first_visible is not None:
            seen = seen & (begin >= reach.first_visible(at))
        alive = readable(0)[0]
        loaded = {
            name: jnp.concatenate(
                [refs[n * len(names) + i][0, 0] for n in range(count)], axis=0
            )
            for i, name in enumerate(names)
        }
        for head in range(entry.key_planes[0].heads):
            scores = scale * head_scores(entry, query[0, head], loaded, head)
            if soft_cap is not None:
                scores = soft_cap * jnp.tanh(scores / soft_cap)
            scores = jnp.where(seen, scores, -jnp.inf)
            old = m[0, head][:, :1]
            new = jnp.maximum(old, jnp.max(scores, axis=1, keepdims=True))
            finite = jnp.where(new == -jnp.inf, 0.0, new)
            weights = jnp.where(seen, jnp.exp(scores - finite), 0.0)
            carry = jnp.exp(old - finite)
            fresh = jnp.sum(weights, axis=1, keepdims=True)
            l[0, head] = l[0, head] * carry + fresh
            m[0, head] = jnp.broadcast_to(new, m.shape[2:])
            acc[0, head] = acc[0, head] * carry + head_sums(
                entry, weights, loaded, head, alive
            )


def _rows(count: int, most: int) -> tuple[int, int]:
    """Rows of queries, padded, and those of one tile."""
    tile = min(-(-count // SUBLANES) * SUBLANES, most)
    return -(-count // tile) * tile, tile
