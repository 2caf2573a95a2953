"""Products of queries with the keys of a tile."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic_gpu import fragments
from pallas_kernels.mosaic_gpu.sizes import COLUMNS, KEYS
from pallas_kernels.mosaic_gpu.tiles import Tiles
from pallas_kernels.stored import Plane


def product_dtype(planes: Iterable[Plane]):
    """What products of these planes are given, whole or in parts."""
    exact = any(plane.dtype == "float32" for plane in planes)
    return jnp.float32 if exact else jnp.bfloat16


def key_products(
    tiles: Tiles, tile, head, query, queries: int, *, interpret: bool
) -> jax.Array:
    """Dot products of one KV head's keys with some queries.

    Args:
      tiles: how entries lie.
      tile: by plane, where the entries of the tile are.
      head: KV head.
      query: ``[D, N]`` in global memory.
      queries: ``N``, a multiple of 8.
      interpret: whether no GPU runs this.

    Returns:
      ``[64, N]`` float32 in layout ``ACC``.
    """
    total, at = fragments.zeros((KEYS, queries), fragments.ACC), 0
    for plane in tiles.entry.key_planes:
        run = plane.run if plane.scale is not None else plane.dim
        for first in range(0, plane.dim, run):
            part = total
            if plane.scale is not None:
                part = fragments.zeros((KEYS, queries), fragments.ACC)
            for column in range(first, first + run, COLUMNS):
                keys = tiles.columns(plane, tile, column, fragments.LEFT)
                asked = query.at[pl.ds(at + column, COLUMNS)]
                part = fragments.product(
                    part,
                    fragments.parts(keys),
                    right_parts(fragments.load(asked, fragments.SHARED), interpret),
                    interpret=interpret,
                )
            if plane.scale is not None:
                scales = tiles.scales(plane, tile, head, first // run)
                part = total + part * fragments.along(scales, queries)
            total = part
        at += plane.dim
    return total


def right_parts(x: jax.Array, interpret: bool) -> list[jax.Array]:
    """``[K, N]`` of layout ``SHARED`` as a right operand, in parts."""
    return [fragments.right(part, interpret=interpret) for part in fragments.parts(x)]
