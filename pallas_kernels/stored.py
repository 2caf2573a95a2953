"""What a read has to know of a pool: structural types, no classes to inherit.

``hybridcache_jax.PoolSpec``, its ``Entry`` and ``Plane`` are of these types.  All are
static: hashable, and constant in a compiled step.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import jax

Planes = Mapping[str, jax.Array]
"""The arrays of a pool, by plane: ``[L, P, S, width]``, or ``[L, P, rows, 128]``."""


class Plane(Protocol):
    """One array of an entry."""

    @property
    def name(self) -> str:
        """Of the plane, unique in its entry."""
        ...

    @property
    def heads(self) -> int:
        """Heads per entry, folded into the last axis of the stored array."""
        ...

    @property
    def dim(self) -> int:
        """Elements per head."""
        ...

    @property
    def width(self) -> int:
        """``heads * dim``."""
        ...

    @property
    def dtype(self) -> str:
        """Name of the logical dtype."""
        ...

    @property
    def scale(self) -> str | None:
        """Name of the plane whose elements scale this one; None for none."""
        ...

    @property
    def run(self) -> int:
        """Elements that share one scale; 0 without a scale."""
        ...


class Entry(Protocol):
    """What is stored for a token, or for a block of tokens."""

    @property
    def planes(self) -> Sequence[Plane]:
        """All arrays, scales among them."""
        ...

    @property
    def key_planes(self) -> Sequence[Plane]:
        """Planes that, joined, are the key."""
        ...

    @property
    def value_planes(self) -> Sequence[Plane]:
        """Planes that, joined, are the value."""
        ...

    def __getitem__(self, name: str) -> Plane:
        """The plane called ``name``."""
        ...


class Stored(Protocol):
    """The layout of a pool."""

    @property
    def entry(self) -> Entry:
        """Of one entry."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def entry_tokens(self) -> int:
        """Tokens that one entry stands for."""
        ...

    @property
    def block_entries(self) -> int:
        """``S``, entries of a block."""
        ...


def read_planes(entry: Entry) -> tuple[Plane, ...]:
    """The planes that a read of keys and values touches, each once."""
    wanted = {plane.name for plane in (*entry.key_planes, *entry.value_planes)}
    wanted |= {entry[name].scale for name in wanted if entry[name].scale}
    return tuple(plane for plane in entry.planes if plane.name in wanted)
