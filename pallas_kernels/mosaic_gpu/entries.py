"""One GPU kernel for reads of single entries that were selected.

As :mod:`pallas_kernels.mosaic_gpu.blocks`, but each of the 64 entries of a tile is
copied on its own, and a query's selection is a row of its own.  Nothing else of their
blocks is read.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_gpu import fragments
from pallas_kernels.mosaic_gpu.attend import Attend, joined
from pallas_kernels.mosaic_gpu.cards import check_cards
from pallas_kernels.mosaic_gpu.queries import Asked
from pallas_kernels.mosaic_gpu.sizes import COLUMNS, KEYS, BlockSizes, fitting
from pallas_kernels.mosaic_gpu.tiles import Tiles
from pallas_kernels.source import Source
from pallas_kernels.values import from_storage


def read_entries(
    query: jax.Array,
    source: Source,
    blocks: jax.Array,
    slots: jax.Array,
    *,
    scale: float,
    soft_cap: float | None,
    sizes: BlockSizes | None,
    interpret,
) -> Partial:
    """Attention of each query over entries of its own.

    Args:
      query: ``[R, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      source: the pool's layer.
      blocks: ``[R, G, K]`` int32, the block of each entry; -1 for none, else less than
        ``P``.  ``G`` is 1 or ``H``.
      slots: ``[R, G, K]`` int32, its place in the block.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      sizes: how the work is cut; None for what fits.
      interpret: as ``plgpu.kernel`` takes it, or False.

    Returns:
      Partial, ``acc [R, H, Q, Dv]``.

    Raises:
      ValueError: if the kernel does not accept the pool's layout, or the card here.
    """
    if interpret is False:
        check_cards()
    rows, heads, group, _ = query.shape
    stored = source.stored
    spare = -blocks.shape[2] % KEYS
    blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, spare)), constant_values=-1)
    slots = jnp.pad(slots, ((0, 0), (0, 0), (0, spare)))
    count = blocks.shape[2] // KEYS
    fitted = fitting(
        stored, rows=group, groups=rows * heads, most_tiles=count, single=True
    )
    sizes = fitted if sizes is None else sizes
    asked = Asked(1, group, sizes.queries)
    tiles = Tiles(stored.entry, single=True)
    attend = Attend(tiles, asked.tile, scale, soft_cap, interpret is not False)
    scales = _scales(source, blocks, slots)
    shape = (sizes.splits, rows, heads, asked.tiles)
    wide = sum(plane.dim for plane in stored.entry.value_planes)
    kernel = plgpu.kernel(
        _Reader(attend, source.layer, sizes, count, blocks.shape[1], tuple(scales)),
        out_type=(
            jax.ShapeDtypeStruct((*shape, wide, asked.tile), jnp.float32),
            jax.ShapeDtypeStruct((*shape, asked.tile), jnp.float32),
            jax.ShapeDtypeStruct((*shape, asked.tile), jnp.float32),
        ),
        scratch_types={
            "buffers": tiles.buffers(sizes.stages),
            "weights": attend.weights_buffer(),
            "barriers": plgpu.Barrier(
                num_arrivals=KEYS * len(tiles.planes), num_barriers=sizes.stages
            ),
        },
        grid=(asked.tiles, sizes.splits, heads, rows),
        grid_names=("tile", "split", "head", "row"),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        kernel_name="read_entries",
        interpret=None if interpret is False else interpret,
    )
    part = kernel(
        blocks,
        slots,
        asked.turned(query[:, None]).astype(attend.product_dtype),
        *scales.values(),
        *tiles.arrays(source),
    )
    return Partial(*(asked.back(x)[:, 0] for x in joined(*part)))


def _scales(source: Source, blocks, slots):
    """Scales of all entries, by plane: ``[R, G, K]`` or ``[R, G, K, 4 n]`` float32."""
    entry, scales = source.stored.entry, {}
    for plane in (*entry.key_planes, *entry.value_planes):
        if plane.scale is None or plane.scale in scales:
            continue
        scale = entry[plane.scale]
        held = source.planes[scale.name].at[source.layer, blocks, slots]
        held = from_storage(scale, held.get(mode="clip")).astype(jnp.float32)
        held = held.reshape(*blocks.shape, scale.width)
        spare = [(0, 0)] * 3 + [(0, -scale.width % 4)]
        scales[scale.name] = held[..., 0] if scale.width == 1 else jnp.pad(held, spare)
    return scales


@dataclasses.dataclass(frozen=True)
class _Reader:
    """The kernel: one share of one selection against one tile of its queries."""

    attend: Attend
    layer: int
    sizes: BlockSizes
    tiles: int
    groups: int
    scales: tuple[str, ...]
    __name__ = "read_entries"

    def __call__(self, blocks, slots, query, *refs, buffers, weights, barriers):
        planes, stages = self.attend.tiles.planes, self.sizes.stages
        names = [*self.scales, *(plane.name for plane in planes)]
        arrays = dict(zip(names, refs, strict=False))
        out = refs[len(names) :]
        row, head = jax.lax.axis_index("row"), jax.lax.axis_index("head")
        split, tile = jax.lax.axis_index("split"), jax.lax.axis_index("tile")
        chosen = (row, head if self.groups > 1 else 0)
        each = -(-self.tiles // self.sizes.splits)
        begin = split * each
        count = jnp.clip(self.tiles - begin, 0, each)

        def fetch(j):
            slot = jax.lax.rem(j, jnp.int32(stages))

            def one(n, _):
                where = (*chosen, (begin + j) * KEYS + n)
                block, barrier = blocks[where], barriers.at[slot]

                @pl.when(block >= 0)
                def _():
                    self.attend.tiles.copy(
                        arrays,
                        self.layer,
                        (block, slots[where], 1),
                        buffers,
                        slot,
                        n,
                        head,
                        barrier,
                    )

                @pl.when(block < 0)
                def _():
                    self.attend.tiles.arrive(barrier)

            jax.lax.fori_loop(0, KEYS, one, None)

        for ahead in range(stages - 1):
            pl.when(ahead < count)(functools.partial(fetch, jnp.int32(ahead)))

        def step(j, running):
            later = j + stages - 1

            @pl.when(later < count)
            def _():
                # The copies write over what the last step loaded.
                plgpu.commit_smem()
                fetch(later)

            slot = jax.lax.rem(j, jnp.int32(stages))
            plgpu.barrier_wait(barriers.at[slot])
            keys = pl.ds((begin + j) * KEYS, KEYS)
            there = blocks.at[(*chosen, keys)]
            seen = fragments.load(there, fragments.KEYS)
            seen = fragments.along(seen, self.attend.queries) >= 0
            alive = fragments.load(there, fragments.TURNED.reduce(1))
            alive = jax.lax.broadcast_in_dim(alive, (KEYS, COLUMNS), (0,))
            alive = plgpu.layout_cast(alive, fragments.TURNED) >= 0
            held = {name: ref.at[slot] for name, ref in buffers.items()}
            held |= {name: arrays[name].at[(*chosen, keys)] for name in self.scales}
            return self.attend.step(
                running, query.at[row, head, tile], held, head, weights, seen, alive
            )

        running = jax.lax.fori_loop(0, count, step, self.attend.start())
        self.attend.write(running, out, (split, row, head, tile))
