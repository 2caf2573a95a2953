"""One GPU kernel that scores blocks of index keys.

A thread block takes some tiles of 64 keys of one row and all of the row's queries; its
copies all start at once, since a tile is small and nothing is kept from one to another.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.contracts import MOSAIC_GPU
from pallas_kernels.mosaic_gpu import fragments
from pallas_kernels.mosaic_gpu.cards import check_cards
from pallas_kernels.mosaic_gpu.dots import key_products, product_dtype
from pallas_kernels.mosaic_gpu.parts import FAR, part_at, parts_of_tile
from pallas_kernels.mosaic_gpu.sizes import KEYS, tiles_at_once
from pallas_kernels.mosaic_gpu.tiles import Tiles
from pallas_kernels.source import Source


def score_blocks(
    query: jax.Array,
    weights: jax.Array,
    source: Source,
    blocks: jax.Array,
    *,
    scale: float,
    groups: int,
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
      interpret: as ``plgpu.kernel`` takes it, or False.

    Returns:
      ``[B, T, G, K * S]`` float32, anything for blocks that are not read.

    Raises:
      ValueError: if the kernel does not accept the pool's layout, or the card here.
    """
    if interpret is False:
        check_cards()
    stored = source.stored
    refusal = MOSAIC_GPU.refusal_of(stored)
    if refusal is not None:
        raise ValueError(f"The GPU kernels do not accept this pool: {refusal}.")
    batch, width, heads, dim = query.shape
    size, wanted = stored.block_entries, blocks.shape[1]
    # Whole tiles for every thread block.
    count = tiles_at_once(stored)
    unit = max(1, count * KEYS // size)
    blocks = jnp.pad(blocks, ((0, 0), (0, -wanted % unit)), constant_values=-1)
    tiles, asked = Tiles(stored.entry), heads // groups
    spare = -asked % fragments.COLUMNS
    query = query.reshape(batch, width * groups, asked, dim)
    query = jnp.pad(query, ((0, 0), (0, 0), (0, spare), (0, 0)))
    weights = weights.reshape(batch, width * groups, asked)
    weights = jnp.pad(weights, ((0, 0), (0, 0), (0, spare))).astype(jnp.float32)
    scorer = _Scorer(tiles, source, count, scale, asked + spare, interpret is not False)
    keys = blocks.shape[1] * size
    kernel = plgpu.kernel(
        scorer,
        out_type=jax.ShapeDtypeStruct((batch, width * groups, keys), jnp.float32),
        scratch_types={
            "buffers": tiles.buffers(count),
            "barriers": plgpu.Barrier(
                num_arrivals=parts_of_tile(stored) * len(tiles.planes),
                num_barriers=count,
            ),
        },
        grid=(keys // (count * KEYS), batch),
        grid_names=("part", "row"),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        kernel_name="score_blocks",
        interpret=None if interpret is False else interpret,
    )
    scores = kernel(
        blocks,
        weights,
        jnp.swapaxes(query, -1, -2).astype(product_dtype(stored.entry.key_planes)),
        *tiles.arrays(source),
    )
    return scores.reshape(batch, width, groups, keys)[..., : wanted * size]


@dataclasses.dataclass(frozen=True)
class _Scorer:
    """The kernel: some tiles of one row against all of its queries."""

    tiles: Tiles
    source: Source
    count: int
    scale: float
    columns: int
    interpret: bool
    __name__ = "score_blocks"

    def __call__(self, blocks, weights, query, *refs, buffers, barriers):
        planes = self.tiles.planes
        arrays = {p.name: ref for p, ref in zip(planes, refs, strict=False)}
        (out,) = refs[len(planes) :]
        row, part = jax.lax.axis_index("row"), jax.lax.axis_index("part")
        stored, layer = self.source.stored, self.source.layer
        for slot in range(self.count):
            barrier = barriers.at[slot]
            for n in range(parts_of_tile(stored)):
                where, there = part_at(
                    stored,
                    blocks,
                    row,
                    0,
                    FAR,
                    part * self.count + slot,
                    n,
                    blocks=self.source.num_blocks,
                    ring=False,
                )

                @pl.when(there)
                def _(where=where, slot=slot, at=n * where[2], on=barrier):
                    self.tiles.copy(arrays, layer, where, buffers, slot, at, 0, on)

                @pl.when(jnp.logical_not(there))
                def _(on=barrier):
                    self.tiles.arrive(on)

        @pl.loop(0, self.count * query.shape[1])
        def _(turn):
            slot = jax.lax.div(turn, jnp.int32(query.shape[1]))
            number = jax.lax.rem(turn, jnp.int32(query.shape[1]))

            @pl.when(number == 0)
            def _():
                plgpu.barrier_wait(barriers.at[slot])

            dots = key_products(
                self.tiles,
                {name: ref.at[slot] for name, ref in buffers.items()},
                0,
                query.at[row, number],
                self.columns,
                interpret=self.interpret,
            )
            weight = fragments.load(weights.at[row, number], fragments.QUERIES)
            scores = jnp.maximum(dots * self.scale, 0.0) * fragments.down(weight, KEYS)
            keys = pl.ds((part * self.count + slot) * KEYS, KEYS)
            fragments.store(out.at[row, number, keys], jnp.sum(scores, axis=1))
