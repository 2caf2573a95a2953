"""Parts of blocks that a step of a TPU kernel has in VMEM."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic_tpu.entries import Loaded
from pallas_kernels.source import Source
from pallas_kernels.stored import Plane, read_planes


@dataclasses.dataclass(frozen=True)
class Places:
    """Places that Pallas fills before each step, whatever was in them already left.

    Attributes:
      source: the pool's layer.
      entries: of one place; a block, or a part that is whole tiles of every plane.
      count: places.
    """

    source: Source
    entries: int
    count: int

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Those that are read."""
        return read_planes(self.source.stored.entry)

    def operands(self) -> list[jax.Array]:
        """The pool's arrays, in the order of :meth:`specs`."""
        planes = self.source.planes
        return [planes[plane.name] for _ in range(self.count) for plane in self.planes]

    def specs(self, part_at: Callable[[int], Callable]) -> list[pl.BlockSpec]:
        """What goes where.

        Args:
          part_at: number of a place to a function of grid and scalars, which gives the
            part that lies there: part ``n`` of block ``p`` is ``p * parts + n``.
        """
        parts = self.source.stored.block_entries // self.entries

        def index(place):
            def of(*args):
                part = part_at(place)(*args)
                block = jax.lax.div(part, jnp.int32(parts))
                return self.source.layer, block, part - block * parts, 0

            return of

        return [
            pl.BlockSpec(
                (1, 1, self.entries, self.source.planes[plane.name].shape[-1]),
                index(place),
            )
            for place in range(self.count)
            for plane in self.planes
        ]

    def loaded(self, refs: Sequence[Any]) -> Loaded:
        """The entries of all places, one after the other, by plane.

        Args:
          refs: references to what :meth:`specs` brought.
        """
        names = [plane.name for plane in self.planes]
        return {
            name: jnp.concatenate(
                [refs[n * len(names) + i][0, 0] for n in range(self.count)], axis=0
            )
            for i, name in enumerate(names)
        }
