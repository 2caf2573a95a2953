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
from pallas_kernels.mosaic_tpu.attend import Attend
from pallas_kernels.mosaic_tpu.places import Places
from pallas_kernels.mosaic_tpu.queries import Asked
from pallas_kernels.mosaic_tpu.schedule import id_at, number_at, row_range
from pallas_kernels.mosaic_tpu.sizes import BlockSizes, fitting
from pallas_kernels.mosaic_tpu.turns import in_turns
from pallas_kernels.reach import Reach
from pallas_kernels.source import Source


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
    read = functools.partial(
        _read_rows,
        source=source,
        scale=scale,
        soft_cap=soft_cap,
        reach=reach,
        sizes=fitting(source.stored) if sizes is None else sizes,
        interpret=interpret,
    )
    rows = (query, blocks, position, since, end)
    return in_turns(read, rows, ids=blocks.shape[1], fills=(0, 0, 0, 0, 0))


def _read_rows(
    query: jax.Array,
    blocks: jax.Array,
    position: jax.Array,
    since: jax.Array,
    end: jax.Array,
    *,
    source: Source,
    scale: float,
    soft_cap: float | None,
    reach: Reach,
    sizes: BlockSizes,
    interpret,
) -> Partial:
    """As :func:`read_blocks`, of rows whose block tables fit scalar memory."""
    batch, width, heads, group, _ = query.shape
    stored, num_blocks = source.stored, source.num_blocks
    count = sizes.blocks if reach.most is None else min(sizes.blocks, reach.most)
    first, stop = row_range(stored, width, position, since, end, reach)
    if reach.most is None:
        steps = jnp.maximum(jnp.max(stop - first + count - 1) // count, 1)
    else:
        steps = -(-reach.most // count)
    asked = Asked(batch, width, heads, group, sizes.queries)
    places = Places(source, stored.block_entries, count)

    def block_at(place):
        def of(b, _, j, first, stop, *scalars):
            number = number_at(first[b], stop[b], j, place, count)
            block = id_at(scalars[-1], b, number, reach)
            return jnp.clip(block, 0, num_blocks - 1)

        return of

    kernel = functools.partial(
        _kernel,
        places=places,
        attend=Attend(stored.entry, scale, soft_cap),
        group=group,
        tile=asked.tile,
        reach=reach,
    )
    value_dim = sum(plane.dim for plane in stored.entry.value_planes)
    written = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6,
            grid=(batch, asked.tiles, steps),
            in_specs=[asked.spec(query.shape[-1]), *places.specs(block_at)],
            out_specs=asked.out_specs(value_dim),
        ),
        out_shape=asked.out_shapes(value_dim),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
    )(
        *(first, stop, since, end, position, blocks),
        *(asked.turned(query), *places.operands()),
    )
    return asked.back(*written)


def _kernel(
    first,
    stop,
    since,
    end,
    position,
    table,
    query,
    *refs,
    places: Places,
    attend: Attend,
    group: int,
    tile: int,
    reach: Reach,
):
    """A step: some blocks of one row against one tile of its queries."""
    running, count = refs[-3:], places.count
    stored, num_blocks = places.source.stored, places.source.num_blocks
    b, part, j = (pl.program_id(axis) for axis in range(3))

    @pl.when(j == 0)
    def _():
        attend.start(running)

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
        attend.step(running, query, places.loaded(refs), [seen], alive)
