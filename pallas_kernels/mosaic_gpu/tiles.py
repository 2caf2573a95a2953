"""Tiles of 64 entries in shared memory: how they get there and leave it."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dtypes import named_dtype
from pallas_kernels.mosaic_gpu import fragments
from pallas_kernels.mosaic_gpu.sizes import COLUMNS, KEYS
from pallas_kernels.source import Source
from pallas_kernels.stored import Entry, Plane, read_planes

# ``[64, 4]``, whose sums over the columns are of layout ``fragments.KEYS``.
_FOUR = plgpu.Layout.TILED(
    plgpu.Tiling(((64, 4), (16, 4), (8, 4), (1,))), (-7,), (-3, -2), -1
)


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Tiles of one KV head's part of entries.

    Attributes:
      entry: what is stored.
      single: whether copies bring single entries, without their scales, which are too
        short for a copy.  Copies of 8 entries and more put them so that no two are in
        one bank of shared memory; single ones cannot.
    """

    entry: Entry
    single: bool = False

    @property
    def planes(self) -> tuple[Plane, ...]:
        """What is copied."""
        planes = read_planes(self.entry)
        return tuple(p for p in planes if not (self.single and self._is_scale(p)))

    def arrays(self, source: Source) -> list[jax.Array]:
        """The pool's arrays as the kernels want them: nothing is copied."""
        out = []
        for plane in self.planes:
            array = source.planes[plane.name]
            dtype = named_dtype(plane.dtype)
            # The CPU holds narrow floats as integers.
            if array.dtype != dtype:
                array = jax.lax.bitcast_convert_type(array, dtype)
            if self.single:
                # A copy brings at most 256 elements along one axis.
                array = array.reshape(*array.shape[:3], -1, COLUMNS)
            elif plane.width == 1:
                # A copy brings 16 bytes in a row: entry after entry here.
                array = array[..., 0]
            out.append(array)
        return out

    def buffers(self, stages: int) -> dict:
        """Shared memory for ``stages`` tiles of each plane, by name."""
        return {plane.name: self._buffer(plane, stages) for plane in self.planes}

    def copy(self, arrays, layer, place, buffers, slot, at, head, barrier) -> None:
        """Starts the copy of some entries of one block, one arrival for each plane.

        Args:
          arrays: by plane, of :meth:`arrays`.
          layer: place on the layer axis.
          place: block, first entry and number of entries, 1 of single ones.
          buffers: of :meth:`buffers`.
          slot: the tile.
          at: place of the first entry in the tile.
          head: KV head.
          barrier: what the copies arrive on.
        """
        block, first, count = place
        for plane in self.planes:
            source, target = arrays[plane.name], buffers[plane.name].at[slot]
            if self.single:
                of_head = pl.ds(head * (plane.dim // COLUMNS), plane.dim // COLUMNS)
                rows, target = source.at[layer, block, first, of_head], target.at[at]
            else:
                rows, target = pl.ds(first, count), target.at[pl.ds(at, count)]
                if self._is_scale(plane):
                    rows = source.at[layer, block, rows]
                else:
                    of_head = pl.ds(head * plane.dim, plane.dim)
                    rows = source.at[layer, block, rows, of_head]
            plgpu.copy_gmem_to_smem(rows, target, barrier)

    def arrive(self, barrier) -> None:
        """In place of :meth:`copy`, where there is nothing to copy."""
        for _ in self.planes:
            plgpu.barrier_arrive(barrier)

    def columns(self, plane: Plane, tile, column: int, layout) -> jax.Array:
        """``[64, 64]`` of a key's or value's plane, unscaled, as stored."""
        ref = tile[plane.name]
        if self.single:
            return fragments.load(ref.at[:, column // COLUMNS], layout)
        return fragments.load(ref.at[:, pl.ds(column, COLUMNS)], layout)

    def scales(self, plane: Plane, tile, head, run: int) -> jax.Array:
        """``[64]`` float32 in layout ``fragments.KEYS``: what scales one run."""
        scale = next(p for p in read_planes(self.entry) if p.name == plane.scale)
        if scale.width == 1:
            return fragments.load(tile[scale.name], fragments.KEYS)
        place = head * scale.dim + run
        first = jax.lax.div(place, jnp.int32(4)) * 4
        four = fragments.load(tile[scale.name].at[:, pl.ds(first, 4)], _FOUR)
        column = plgpu.broadcasted_iota(jnp.int32, (KEYS, 4), 1, layout=_FOUR)
        return jnp.sum(jnp.where(column == place - first, four, 0.0), axis=1)

    def _is_scale(self, plane):
        return plane.name in {other.scale for other in self.entry.planes}

    def _buffer(self, plane, stages):
        dtype = jnp.dtype(named_dtype(plane.dtype))
        if self._is_scale(plane):
            wide = () if plane.width == 1 else (plane.width,)
            return plgpu.SMEM((stages, KEYS, *wide), dtype)
        if self.single:
            return plgpu.SMEM((stages, KEYS, plane.dim // COLUMNS, COLUMNS), dtype)
        shape = (stages, KEYS, plane.dim)
        swizzle = min(128, COLUMNS * dtype.itemsize)
        tiling = plgpu.TilingTransform((8, swizzle // dtype.itemsize))
        return plgpu.SMEM(
            shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle))
        )
