"""How queries lie in a TPU kernel, and its partial results."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_tpu.sizes import LANES, SUBLANES


@dataclasses.dataclass(frozen=True)
class Asked:
    """Queries of a batch in tiles of rows: row ``r`` is of position ``r // group``.

    Attributes:
      batch: rows of the batch, ``B``.
      width: positions of each, ``T``.
      heads: KV heads, ``H``.
      group: queries per KV head, ``Q``.
      most: most rows of a tile.
    """

    batch: int
    width: int
    heads: int
    group: int
    most: int

    @property
    def tile(self) -> int:
        """Rows of one tile."""
        rows = self.width * self.group
        return min(-(-rows // SUBLANES) * SUBLANES, self.most)

    @property
    def tiles(self) -> int:
        """Tiles of a row of the batch."""
        return -(-self.width * self.group // self.tile)

    def turned(self, query: jax.Array) -> jax.Array:
        """``[B, T, H, Q, D]`` to ``[B, H, tiles * tile, D]``."""
        rows = self.width * self.group
        query = jnp.moveaxis(query, 1, 2).reshape(self.batch, self.heads, rows, -1)
        spare = self.tiles * self.tile - rows
        return jnp.pad(query, ((0, 0), (0, 0), (0, spare), (0, 0)))

    def back(self, acc: jax.Array, m: jax.Array, total: jax.Array) -> Partial:
        """What a kernel wrote to ``acc [B, T, H, Q, Dv]`` and its like."""

        def one(x):
            x = x[:, :, : self.width * self.group]
            x = x.reshape(self.batch, self.heads, self.width, self.group, *x.shape[3:])
            return jnp.moveaxis(x, 1, 2)

        return Partial(one(acc), one(m[..., 0]), one(total[..., 0]))

    def spec(self, dim: int) -> pl.BlockSpec:
        """Of ``[B, H, tiles * tile, dim]``; the grid is rows, tiles and steps."""
        return pl.BlockSpec(
            (1, self.heads, self.tile, dim), lambda b, part, *_: (b, 0, part, 0)
        )

    def out_specs(self, value_dim: int) -> list[pl.BlockSpec]:
        """Of the sums, maxima and totals of the online softmax."""
        return [self.spec(dim) for dim in (value_dim, LANES, LANES)]

    def out_shapes(self, value_dim: int) -> list[jax.ShapeDtypeStruct]:
        """Of the same."""
        rows = self.tiles * self.tile
        return [
            jax.ShapeDtypeStruct((self.batch, self.heads, rows, dim), jnp.float32)
            for dim in (value_dim, LANES, LANES)
        ]
