"""One TPU kernel for reads of strips, of which each query reads some entries.

The grid, the fetches and the softmax are those of
:mod:`pallas_kernels.mosaic_tpu.blocks`; which entries count is not known by their
position, but by a word for each strip and selection.
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
from pallas_kernels.mosaic_tpu.schedule import held, lying
from pallas_kernels.mosaic_tpu.sizes import BlockSizes, strip_entries
from pallas_kernels.source import Source


def read_strips(
    query: jax.Array,
    source: Source,
    strips: jax.Array,
    words: jax.Array,
    *,
    scale: float,
    soft_cap: float | None,
    sizes: BlockSizes,
    interpret,
) -> Partial:
    """Attention of each query over entries of its own.

    Args:
      query: ``[R, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      strips: ``[R, N]`` int32: strip ``n`` of block ``p`` is ``p`` times the strips of
        a block, plus ``n``; -1 for none, after all others.  ``N`` is a multiple of
        ``sizes.blocks``.
      words: ``[R, T * G, N]`` int32, bit ``i`` for entry ``i`` of the strip; ``G`` is 1
        or ``H``.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      sizes: how the work is cut.
      interpret: as ``pallas_call`` takes it.

    Returns:
      Partial, ``acc [R, T, H, Q, Dv]``.
    """
    rows, width, heads, group, dim = query.shape
    entry, count = source.stored.entry, sizes.blocks
    each = words.shape[1]
    words = jnp.moveaxis(words.reshape(rows, each, -1, count), 1, 2)
    needed = jnp.max(jnp.sum(strips >= 0, axis=1))
    asked = Asked(rows, width, heads, group, sizes.queries)
    places = Places(source, strip_entries(source.stored), count)
    value_dim = sum(plane.dim for plane in entry.value_planes)

    def strip_at(place):
        return lambda b, _, j, strips: lying(strips[b, j * count + place])

    kernel = functools.partial(
        _kernel,
        places=places,
        attend=Attend(entry, scale, soft_cap),
        group=group,
        groups=each // width,
    )
    written = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows, asked.tiles, jnp.maximum(-(-needed // count), 1)),
            in_specs=[
                asked.spec(dim),
                pl.BlockSpec((1, 1, each, count), lambda b, _, j, *__: (b, j, 0, 0)),
                *places.specs(strip_at),
            ],
            out_specs=asked.out_specs(value_dim),
        ),
        out_shape=asked.out_shapes(value_dim),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
    )(
        *(held(strips, count), asked.turned(query), words),
        *places.operands(),
    )
    return asked.back(*written)


def _kernel(
    strips,
    query,
    words,
    *refs,
    places: Places,
    attend: Attend,
    group: int,
    groups: int,
):
    """A step: some strips of one row against one tile of its queries."""
    running, count, size = refs[-3:], places.count, places.entries
    b, part, j = (pl.program_id(axis) for axis in range(3))

    @pl.when(j == 0)
    def _():
        attend.start(running)

    @pl.when(strips[b, j * count] >= 0)
    def _():
        held_words = words[0, 0]
        each, tile = held_words.shape[0], query.shape[2]

        def chosen(of_place, shape, axis):
            """1 for entries that count, of words ``of_place(n)`` that broadcast."""
            number = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
            found = jnp.zeros(shape, jnp.int32)
            for n in range(count):
                found = jnp.where(number // size == n, of_place(n), found)
            return jax.lax.shift_right_logical(found, number % size) & 1

        own = chosen(lambda n: held_words[:, n : n + 1], (each, count * size), 1)
        any_word = held_words[:1]
        for n in range(1, each):
            any_word = any_word | held_words[n : n + 1]
        alive = chosen(lambda n: any_word[:, n : n + 1], (count * size, 1), 0)
        shape = (tile, count * size)
        at = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + part * tile
        seen = []
        for g in range(groups):
            found = jnp.zeros(shape, jnp.int32)
            for n in range(g, each, groups):
                found = jnp.where(at // group == n // groups, own[n : n + 1], found)
            seen.append(found != 0)
        lie = [lying(strips[b, j * count + n]) for n in range(count)]
        attend.step(running, query, places.loaded(refs, lie), seen, alive != 0)
