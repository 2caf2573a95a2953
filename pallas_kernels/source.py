"""What a read reads: one layer of one pool."""

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels import gather
from pallas_kernels.stored import Planes, Stored
from pallas_kernels.values import keys_and_values


@dataclasses.dataclass(frozen=True)
class Source:
    """One layer of a pool.

    Attributes:
      planes: the pool's arrays, ``[L, P, S, width]`` each, or in lanes
        (:mod:`pallas_kernels.lanes`).
      layer: place on the pool's layer axis.
      stored: the pool's layout.
    """

    planes: Planes
    layer: int
    stored: Stored

    @property
    def num_blocks(self) -> int:
        """``P``."""
        return next(iter(self.planes.values())).shape[1]

    def by_block(self, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values of whole blocks.

        Args:
          ids: ``[B, K]`` int32; ids outside the pool give anything.

        Returns:
          ``[B, K * S, heads, D]`` and ``[B, K * S, heads, Dv]`` float32.
        """
        loaded = gather.whole_blocks(self.stored, self.planes, self.layer, ids)
        return keys_and_values(self.stored.entry, loaded)

    def by_position(
        self, blocks: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys and values of single entries.

        Args:
          blocks: ``[B, C]`` int32, the rows' columns: block ``j`` in ``j % C``.
          first: ``[B, N]`` int32, a position that each entry stands for.

        Returns:
          ``[B, N, heads, D]`` and ``[B, N, heads, Dv]`` float32, and which have a
          block, ``[B, N]`` bool; the others are anything.
        """
        loaded, there = gather.at_positions(
            self.stored, self.planes, self.layer, blocks, first, self.num_blocks
        )
        return *keys_and_values(self.stored.entry, loaded), there


def scores(
    query: jax.Array, keys: jax.Array, *, scale: float, soft_cap: float | None
) -> jax.Array:
    """Scaled and capped scores of grouped queries.

    Args:
      query: ``[B, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      keys: ``[B, K, H, D]``.
      scale: factor.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.

    Returns:
      ``[B, T, H, Q, K]`` float32.
    """
    products = scale * jnp.einsum(
        "bthqd,bkhd->bthqk",
        query,
        keys.astype(jnp.float32),
        preferred_element_type=jnp.float32,
    )
    if soft_cap is None:
        return products
    return soft_cap * jnp.tanh(products / soft_cap)
