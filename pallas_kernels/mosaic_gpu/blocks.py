"""One GPU kernel for reads that go through a block table in order.

A thread block takes some queries of one KV head of one row, and a share of the row's
entries: tile after tile of 64 entries, copied asynchronously some tiles ahead.  A block
that no query of the row sees, or that is not there, is not copied.  The softmax is the
online one of :mod:`pallas_kernels.merge`; XLA merges the shares (split over keys: Dao
et al. 2023).
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
from pallas_kernels.mosaic_gpu.parts import FAR, part_at, parts_of_tile, tile_range
from pallas_kernels.mosaic_gpu.queries import Asked
from pallas_kernels.mosaic_gpu.sizes import COLUMNS, KEYS, BlockSizes, fitting
from pallas_kernels.mosaic_gpu.tiles import Tiles
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
        Positions are less than ``2**30``.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      reach: which keys a query sees.
      sizes: how the work is cut; None for what fits.
      interpret: as ``plgpu.kernel`` takes it, or False.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.

    Raises:
      ValueError: if the kernel does not accept the pool's layout, or the card here.
    """
    if interpret is False:
        check_cards()
    batch, width, heads, group, _ = query.shape
    stored = source.stored
    most = blocks.shape[1] if reach.most is None else reach.most
    fitted = fitting(
        stored,
        rows=width * group,
        groups=batch * heads,
        most_tiles=-(-most * stored.block_entries // KEYS),
    )
    sizes = fitted if sizes is None else sizes
    asked = Asked(width, group, sizes.queries)
    at = position[:, None] + jnp.arange(width, dtype=jnp.int32)
    low = jnp.broadcast_to(since[:, None], at.shape)
    if reach.first_visible is not None:
        low = jnp.maximum(low, reach.first_visible(at))
    high = jnp.minimum(at, end[:, None] - 1)
    # What lies behind the first query's window is dead, even in a block still held.
    since, end = low[:, 0], high[:, -1] + 1
    first, stop = tile_range(stored, since, end)
    tiles = Tiles(stored.entry)
    attend = Attend(tiles, asked.tile, scale, soft_cap, interpret is not False)
    shape = (sizes.splits, batch, heads, asked.tiles)
    wide = sum(plane.dim for plane in stored.entry.value_planes)
    reader = _Reader(attend, source, reach.ring, sizes)
    kernel = plgpu.kernel(
        reader,
        out_type=(
            jax.ShapeDtypeStruct((*shape, wide, asked.tile), jnp.float32),
            jax.ShapeDtypeStruct((*shape, asked.tile), jnp.float32),
            jax.ShapeDtypeStruct((*shape, asked.tile), jnp.float32),
        ),
        scratch_types={
            "buffers": tiles.buffers(sizes.stages),
            "weights": attend.weights_buffer(),
            "barriers": plgpu.Barrier(
                num_arrivals=parts_of_tile(stored) * len(tiles.planes),
                num_barriers=sizes.stages,
            ),
        },
        # Thread blocks that read the same entries run side by side.
        grid=(asked.tiles, sizes.splits, heads, batch),
        grid_names=("tile", "split", "head", "row"),
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        kernel_name="read_blocks",
        interpret=None if interpret is False else interpret,
    )
    acc, m, l = kernel(  # noqa: E741
        first,
        stop,
        since,
        end,
        asked.by_row(low, FAR),
        asked.by_row(high, -1),
        blocks,
        asked.turned(query).astype(attend.product_dtype),
        *tiles.arrays(source),
    )
    return Partial(*(asked.back(x) for x in joined(acc, m, l)))


@dataclasses.dataclass(frozen=True)
class _Reader:
    """The kernel: one share of one row against one tile of its queries."""

    attend: Attend
    source: Source
    ring: bool
    sizes: BlockSizes
    __name__ = "read_blocks"

    def __call__(
        self,
        first,
        stop,
        since,
        end,
        low,
        high,
        table,
        query,
        *refs,
        buffers,
        weights,
        barriers,
    ):
        tiles, stages = self.attend.tiles, self.sizes.stages
        arrays = {p.name: ref for p, ref in zip(tiles.planes, refs, strict=False)}
        out = refs[len(arrays) :]
        row, head = jax.lax.axis_index("row"), jax.lax.axis_index("head")
        split, tile = jax.lax.axis_index("split"), jax.lax.axis_index("tile")
        since, end = since[row], end[row]
        span = stop[row] - first[row]
        each = jax.lax.div(span + (self.sizes.splits - 1), jnp.int32(self.sizes.splits))
        begin = first[row] + split * each
        count = jnp.clip(span - split * each, 0, each)
        stored, parts = self.source.stored, parts_of_tile(self.source.stored)

        def find(number, n):
            return part_at(
                stored,
                table,
                row,
                since,
                end,
                number,
                n,
                blocks=self.source.num_blocks,
                ring=self.ring,
            )

        def fetch(j):
            slot = jax.lax.rem(j, jnp.int32(stages))
            barrier = barriers.at[slot]
            for n in range(parts):
                where, there = find(begin + j, n)

                @pl.when(there)
                def _(where=where, at=n * where[2]):
                    layer = self.source.layer
                    tiles.copy(arrays, layer, where, buffers, slot, at, head, barrier)

                @pl.when(jnp.logical_not(there))
                def _():
                    tiles.arrive(barrier)

        for ahead in range(stages - 1):
            pl.when(ahead < count)(functools.partial(fetch, jnp.int32(ahead)))
        load = functools.partial(fragments.load, layout=fragments.QUERIES)
        low = fragments.down(load(low.at[row, tile]), KEYS)
        high = fragments.down(load(high.at[row, tile]), KEYS)

        def step(j, running):
            later = j + stages - 1

            @pl.when(later < count)
            def _():
                # The copies write over what the last step loaded.
                plgpu.commit_smem()
                fetch(later)

            slot = jax.lax.rem(j, jnp.int32(stages))
            plgpu.barrier_wait(barriers.at[slot])
            number = begin + j
            there = [find(number, n)[1] for n in range(parts)]
            begins, ends = self._positions(
                number, there, self.attend.queries, fragments.ACC
            )
            seen = (begins >= low) & (ends <= high)
            begins, ends = self._positions(number, there, COLUMNS, fragments.TURNED)
            alive = (begins >= since) & (ends < end)
            return self.attend.step(
                running,
                query.at[row, head, tile],
                {name: ref.at[slot] for name, ref in buffers.items()},
                head,
                weights,
                seen,
                alive,
            )

        running = jax.lax.fori_loop(0, count, step, self.attend.start())
        self.attend.write(running, out, (split, row, head, tile))

    def _positions(self, number, there, columns, layout):
        """First and last position of each entry of a tile, along the first axis."""
        tokens = self.source.stored.entry_tokens
        place = plgpu.broadcasted_iota(jnp.int32, (KEYS, columns), 0, layout=layout)
        begin = (number * KEYS + place) * tokens
        count = KEYS // len(there)
        for n, is_there in enumerate(there):
            inside = (place >= n * count) & (place < (n + 1) * count)
            # An entry of no block lies beyond what anything sees.
            begin = jnp.where(inside, begin + jnp.where(is_there, 0, FAR), begin)
        return begin, begin + (tokens - 1)
