"""One step of the online softmax: a tile of entries against some queries.

What a kernel keeps from step to step stands the other way up, ``[Dv, N]``: see
:mod:`pallas_kernels.mosaic_gpu.fragments`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_gpu import fragments
from pallas_kernels.mosaic_gpu.dots import key_products, product_dtype, right_parts
from pallas_kernels.mosaic_gpu.sizes import COLUMNS, KEYS
from pallas_kernels.mosaic_gpu.tiles import Tiles


class Running(NamedTuple):
    """A partial softmax of ``N`` queries, in registers."""

    acc: list[jax.Array]  # [64, N] float32, for each 64 columns of the value
    m: jax.Array  # [N] float32
    l: jax.Array  # [N] float32  # noqa: E741


@dataclasses.dataclass(frozen=True)
class Attend:
    """Attention of ``N`` queries of one KV head over tiles of entries.

    Attributes:
      tiles: the entries.
      queries: ``N``, a multiple of 8.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      interpret: whether no GPU runs this.
    """

    tiles: Tiles
    queries: int
    scale: float
    soft_cap: float | None
    interpret: bool

    @property
    def product_dtype(self):
        """What a product is given, whole or in parts."""
        entry = self.tiles.entry
        return product_dtype((*entry.key_planes, *entry.value_planes))

    def weights_buffer(self):
        """Shared memory for the weights of a tile, once for each run of the value."""
        shape = (len(self._value_runs()), KEYS, self.queries)
        return plgpu.SMEM(shape, self.product_dtype)

    def start(self) -> Running:
        """Nothing seen."""
        low = jnp.full((self.queries,), -jnp.inf, jnp.float32)
        wide = sum(plane.dim for plane in self.tiles.entry.value_planes)
        return Running(
            [
                fragments.zeros((COLUMNS, self.queries), fragments.ACC)
                for _ in range(wide // COLUMNS)
            ],
            plgpu.layout_cast(low, fragments.QUERIES),
            fragments.zeros((self.queries,), fragments.QUERIES),
        )

    def step(
        self, running: Running, query, tile, head, weights, seen, alive
    ) -> Running:
        """Goes on over one tile.

        Args:
          running: what was seen before.
          query: ``[D, N]`` in global memory.
          tile: by plane, where its entries are.
          head: KV head.
          weights: shared memory of :meth:`weights_buffer`.
          seen: ``[64, N]`` bool in layout ``ACC``, which keys each query sees.
          alive: ``[64, 64]`` bool in layout ``TURNED``, which entries count, along the
            first axis; the rest may hold anything.
        """
        scores = self.scale * key_products(
            self.tiles, tile, head, query, self.queries, interpret=self.interpret
        )
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        scores = jnp.where(seen, scores, -jnp.inf)
        m = jnp.maximum(running.m, jnp.max(scores, axis=0))
        finite = jnp.where(m == -jnp.inf, 0.0, m)
        weight = jnp.exp(scores - fragments.down(finite, KEYS))
        weight = jnp.where(seen, weight, 0.0)
        carry = jnp.exp(running.m - finite)
        for n, (plane, run) in enumerate(self._value_runs()):
            scaled = weight
            if plane is not None:
                scales = self.tiles.scales(plane, tile, head, run)
                # The scales of dead entries may be anything as well.
                scaled = jnp.where(
                    seen, weight * fragments.along(scales, self.queries), 0.0
                )
            fragments.store(weights.at[n], scaled.astype(self.product_dtype))
        acc = self._weighed(
            [x * fragments.down(carry, COLUMNS) for x in running.acc],
            tile,
            weights,
            alive,
        )
        return Running(acc, m, running.l * carry + jnp.sum(weight, axis=0))

    def write(self, running: Running, arrays, out) -> None:
        """Puts a partial into global memory, at ``out`` of each of three arrays."""
        acc, m, l = arrays  # noqa: E741
        for n, x in enumerate(running.acc):
            fragments.store(acc.at[(*out, pl.ds(n * COLUMNS, COLUMNS))], x)
        fragments.store(m.at[out], running.m)
        fragments.store(l.at[out], running.l)

    def _weighed(self, acc, tile, weights, alive):
        """Adds the values of a tile, weighted."""
        out, runs = [], self._value_runs()
        loaded = [
            right_parts(fragments.load(weights.at[n], fragments.SHARED), self.interpret)
            for n in range(len(runs))
        ]
        for plane in self.tiles.entry.value_planes:
            for column in range(0, plane.dim, COLUMNS):
                values = self.tiles.columns(plane, tile, column, fragments.TURNED)
                turned = [
                    # A zero weight does not silence NaN.
                    fragments.transposed(
                        jnp.where(alive, part, 0.0), interpret=self.interpret
                    )
                    for part in fragments.parts(values)
                ]
                key = (None, 0) if plane.scale is None else (plane, column // plane.run)
                out.append(
                    fragments.product(
                        acc[len(out)],
                        turned,
                        loaded[runs.index(key)],
                        interpret=self.interpret,
                    )
                )
        return out

    def _value_runs(self):
        """Planes and runs with scales of their own; ``(None, 0)`` for those without."""
        runs = []
        for plane in self.tiles.entry.value_planes:
            if plane.scale is not None:
                runs += [(plane, n) for n in range(plane.dim // plane.run)]
            elif (None, 0) not in runs:
                runs.append((None, 0))
        return runs


def joined(acc: jax.Array, m: jax.Array, l: jax.Array) -> Partial:  # noqa: E741
    """One partial of those along the first axis: ``acc [splits, ..., Dv, N]``."""
    top = jnp.max(m, axis=0)
    scale = jnp.exp(m - jnp.where(jnp.isneginf(top), 0.0, top))
    acc = jnp.sum(acc * scale[..., None, :], axis=0)
    return Partial(jnp.swapaxes(acc, -1, -2), top, jnp.sum(l * scale, axis=0))
