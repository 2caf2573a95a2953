"""How the queries of one KV head are cut into tiles, and how they lie for a kernel."""

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels.mosaic_gpu.fragments import COLUMNS


@dataclasses.dataclass(frozen=True)
class Asked:
    """Queries at ``width`` positions of ``group`` heads, in tiles of up to ``most``."""

    width: int
    group: int
    most: int

    @property
    def rows(self) -> int:
        """All of them."""
        return self.width * self.group

    @property
    def tile(self) -> int:
        """``N``, queries of one tile."""
        return min(-(-self.rows // COLUMNS) * COLUMNS, self.most)

    @property
    def tiles(self) -> int:
        """Tiles, the last one padded."""
        return -(-self.rows // self.tile)

    @property
    def spare(self) -> int:
        """Queries that pad the last tile."""
        return self.tiles * self.tile - self.rows

    def by_row(self, x: jax.Array, beyond: int) -> jax.Array:
        """``[B, T]`` to ``[B, tiles, N]``."""
        x = jnp.repeat(x, self.group, axis=1)
        x = jnp.pad(x, ((0, 0), (0, self.spare)), constant_values=beyond)
        return x.reshape(x.shape[0], self.tiles, self.tile)

    def turned(self, query: jax.Array) -> jax.Array:
        """``[B, T, H, Q, D]`` to ``[B, H, tiles, D, N]``."""
        batch, _, heads, _, dim = query.shape
        x = jnp.moveaxis(query, 1, 2).reshape(batch, heads, self.rows, dim)
        x = jnp.pad(x, ((0, 0), (0, 0), (0, self.spare), (0, 0)))
        x = x.reshape(batch, heads, self.tiles, self.tile, dim)
        return jnp.swapaxes(x, -1, -2)

    def back(self, x: jax.Array) -> jax.Array:
        """``[B, H, tiles, N, ...]`` to ``[B, T, H, Q, ...]``."""
        x = x.reshape(*x.shape[:2], self.tiles * self.tile, *x.shape[4:])
        x = x[:, :, : self.rows]
        x = x.reshape(*x.shape[:2], self.width, self.group, *x.shape[3:])
        return jnp.moveaxis(x, 1, 2)
