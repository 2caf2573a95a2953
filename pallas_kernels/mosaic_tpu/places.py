"""Parts of blocks that a step of a TPU kernel has in VMEM."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.lanes import LANES, Lanes
from pallas_kernels.mosaic_tpu.entries import Loaded
from pallas_kernels.source import Source
from pallas_kernels.stored import Plane, read_planes


@dataclasses.dataclass(frozen=True)
class Places:
    """Places that Pallas fills before each step, whatever was in them already left.

    Attributes:
      source: the pool's layer; its blocks lie in rows of 128 lanes.
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

        def spec(place, plane):
            lanes = Lanes.of(self.source.stored, plane)
            # Of scales the whole block comes: those of a part are no whole row.
            rows = lanes.rows
            if parts > 1 and not lanes.turned:
                rows = lanes.pieces * self.entries

            def index(*args):
                part = part_at(place)(*args)
                block = jax.lax.div(part, jnp.int32(parts))
                part = 0 if lanes.turned else part - block * parts
                return self.source.layer, block, part, 0

            return pl.BlockSpec((1, 1, rows, LANES), index)

        return [spec(n, plane) for n in range(self.count) for plane in self.planes]

    def loaded(self, refs: Sequence[Any], parts: Sequence[Any] | None = None) -> Loaded:
        """The entries of all places, one after the other, by plane.

        Args:
          refs: references to what :meth:`specs` brought.
          parts: the part that lies in each place; None for whole blocks.
        """
        planes, found = self.planes, {}
        for i, plane in enumerate(planes):
            lanes = Lanes.of(self.source.stored, plane)
            places = [refs[n * len(planes) + i][0, 0] for n in range(self.count)]
            if not lanes.turned:
                each = [_entries(lanes, rows, self.entries) for rows in places]
                found[plane.name] = jnp.concatenate(each, axis=0)
                continue
            each = [_words(lanes, rows) for rows in places]
            if parts is not None:
                each = [
                    self._words_of(words, part)
                    for words, part in zip(each, parts, strict=True)
                ]
            found[plane.name] = jnp.concatenate(each, axis=1)
        return found

    def _words_of(self, words: jax.Array, part: Any) -> jax.Array:
        """``[words, S]`` of a block to ``[words, entries]`` of one part of it."""
        parts = words.shape[1] // self.entries
        mine = words[:, : self.entries]
        for n in range(1, parts):
            other = words[:, n * self.entries : (n + 1) * self.entries]
            mine = jnp.where(jax.lax.rem(part, jnp.int32(parts)) == n, other, mine)
        return mine


def _entries(lanes: Lanes, rows: jax.Array, entries: int) -> jax.Array:
    """Rows of a part to ``[entries, pieces * 128]``: whole tiles change places."""
    size, strips = lanes.strip, []
    if lanes.pieces == 1:
        return rows[:entries]
    for start in range(0, entries * lanes.pieces, size * lanes.pieces):
        pieces = [
            rows[start + n * size : start + (n + 1) * size] for n in range(lanes.pieces)
        ]
        strips.append(jnp.concatenate(pieces, axis=1))
    return jnp.concatenate(strips, axis=0)


def _words(lanes: Lanes, rows: jax.Array) -> jax.Array:
    """Rows of scales to ``[pieces, S]`` words."""
    found = []
    for piece in range(lanes.pieces):
        at, stop = piece * lanes.entries, (piece + 1) * lanes.entries
        segments = []
        while at < stop:
            end = min(stop, at // LANES * LANES + LANES)
            row = at // LANES
            first = at - row * LANES
            segments.append(rows[row : row + 1, first : first + end - at])
            at = end
        found.append(jnp.concatenate(segments, axis=1))
    return jnp.concatenate(found, axis=0)
