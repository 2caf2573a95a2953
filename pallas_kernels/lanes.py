"""How blocks lie in TPU memory: in rows of 128 lanes, nothing but whole tiles.

Elsewhere a block of a plane is ``[S, width]``, one row per entry.  On a TPU that costs
a copy of the whole pool in each step: before a kernel reads it if the width is no
multiple of 128, and before XLA writes into it if elements of a byte are wider than 128
(``python -m pallas_kernels.compiled``).  So there a block is ``[rows, 128]``:

* Planes of values are padded to whole *pieces* of 128 lanes.  A tile's worth of entries
  is a *strip*: the strip's first pieces, one row each, then its second pieces, and so
  on.  That is how the hardware tiles ``[S, width]``, spelled out.
* Scales are turned: in words of 32 bits, first the first word of every entry, then the
  second of each.  Rows of their own would be padded to 128 lanes.  The index keys of
  DeepSeek-V3.2, 128 bytes and one scale, would take 640 bytes instead of 132, its
  latents 1,280 instead of 784; and turned scales multiply scores as they lie.

What is in the padding is never read.  How a pool lies shows in its arrays.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dtypes import element_bits
from pallas_kernels.stored import Plane, Stored

LANES = 128
WORD_BITS = 32
WORD = np.dtype("uint32")
_TILE_BITS = 8 * WORD_BITS  # of one lane


@dataclasses.dataclass(frozen=True)
class Lanes:
    """How one plane of a block lies in rows of 128 lanes.

    Attributes:
      entries: ``S``, of the block.
      width: elements of an entry, packed.
      bits: of an element.
      turned: whether it is a plane of scales.
    """

    entries: int
    width: int
    bits: int
    turned: bool

    @classmethod
    def of(cls, stored: Stored, plane: Plane) -> "Lanes":
        """Of a plane of a pool."""
        turned = any(plane.name == other.scale for other in stored.entry.planes)
        bits = element_bits(plane.dtype)
        # Elements of less than a byte are packed into bytes.
        width = -(-plane.width * bits // 8) if bits < 8 else plane.width
        return cls(stored.block_entries, width, max(bits, 8), turned)

    @property
    def pieces(self) -> int:
        """Pieces of an entry: 128 elements each, or a word of scales."""
        return -(-self.width // (WORD_BITS // self.bits if self.turned else LANES))

    @property
    def tile(self) -> int:
        """Rows of a whole tile; a power of two of fewer rows is one, too."""
        return _TILE_BITS // (WORD_BITS if self.turned else self.bits)

    @property
    def strip(self) -> int:
        """Entries whose equal pieces lie together: those of a tile."""
        return math.gcd(self.entries, _TILE_BITS // self.bits)

    @property
    def rows(self) -> int:
        """Rows of a block; what is no whole tile is padded to one, as XLA would."""
        count = self.pieces * self.entries
        if self.turned:
            count = -(-count // LANES)
        if count >= self.tile:
            return -(-count // self.tile) * self.tile
        return max(1 << (count - 1).bit_length(), self.tile // 8)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.rows * LANES * (WORD_BITS if self.turned else self.bits) // 8

    def holds(self, array: jax.Array) -> bool:
        """Whether an array ``[..., rows, lanes]`` lies like this, not by entry."""
        if self.turned:
            return array.dtype == WORD
        # One row of 128 elements per entry is both.
        return array.shape[-2:] == (self.rows, LANES)

    def split(self, values: jax.Array) -> jax.Array:
        """``[..., width]`` to ``[..., pieces, 128]``, or to words ``[..., pieces]``."""
        per = WORD_BITS // self.bits if self.turned else LANES
        if self.turned:
            values = jax.lax.bitcast_convert_type(values, np.dtype(f"uint{self.bits}"))
        spare = self.pieces * per - self.width
        values = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, spare)])
        values = values.reshape(*values.shape[:-1], self.pieces, per)
        if not self.turned:
            return values
        if per == 1:
            values = values[..., 0]
        return jax.lax.bitcast_convert_type(values, WORD)

    def joined(self, pieces: jax.Array) -> jax.Array:
        """What :meth:`split` was given; scales as unsigned integers."""
        if self.turned:
            dtype = np.dtype(f"uint{self.bits}")
            pieces = jax.lax.bitcast_convert_type(pieces, dtype)
            if self.bits == WORD_BITS:
                pieces = pieces[..., None]
        return pieces.reshape(*pieces.shape[:-2], -1)[..., : self.width]

    def block(self, values: jax.Array) -> jax.Array:
        """Whole blocks ``[..., S, width]`` to ``[..., rows, 128]``; padding is zero."""
        pieces, lead = self.split(values), values.shape[:-2]
        if self.turned:
            flat = jnp.swapaxes(pieces, -1, -2).reshape(*lead, -1)
        else:
            shape = (-1, self.strip, self.pieces, LANES)
            flat = jnp.swapaxes(pieces.reshape(*lead, *shape), -2, -3)
            flat = flat.reshape(*lead, -1)
        spare = self.rows * LANES - flat.shape[-1]
        flat = jnp.pad(flat, [(0, 0)] * len(lead) + [(0, spare)])
        return flat.reshape(*lead, self.rows, LANES)

    def values(self, block: jax.Array) -> jax.Array:
        """Whole blocks ``[..., rows, 128]`` to ``[..., S, width]``."""
        lead = block.shape[:-2]
        flat = block.reshape(*lead, -1)
        if self.turned:
            flat = flat[..., : self.pieces * self.entries]
            flat = flat.reshape(*lead, self.pieces, self.entries)
            return self.joined(jnp.swapaxes(flat, -1, -2))
        flat = flat[..., : self.pieces * self.entries * LANES]
        shape = (-1, self.pieces, self.strip, LANES)
        pieces = jnp.swapaxes(flat.reshape(*lead, *shape), -2, -3)
        return self.joined(pieces.reshape(*lead, self.entries, self.pieces, LANES))

    def view(self, memory: jax.Array) -> jax.Array:
        """A pool ``[L, P, rows, 128]`` as :meth:`places` counts: the same bytes.

        Single words are written in place only where a row is all there is.
        """
        if self.turned:
            return memory.reshape(len(memory), -1, 1, LANES)
        return memory

    def places(self, layer: int, blocks: jax.Array, slots: jax.Array, count: int):
        """Index of the pieces of entries in a :meth:`view`.

        Args:
          layer: place on the pool's layer axis.
          blocks: ``[...]`` int32; ids outside the pool have no place.
          slots: ``[...]`` int32, of the entries in their blocks.
          count: ``P``.
        """
        blocks, slots = blocks[..., None], slots[..., None]
        piece = jnp.arange(self.pieces, dtype=jnp.int32)
        if not self.turned:
            size = self.strip
            row = slots // size * (size * self.pieces) + piece * size + slots % size
            return layer, blocks, row
        flat = piece * self.entries + slots
        there = (blocks >= 0) & (blocks < count)
        row = jnp.where(there, blocks * self.rows + flat // LANES, count * self.rows)
        return layer, row, 0, flat % LANES
