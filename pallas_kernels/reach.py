"""Which keys a read through a block table is about."""

import dataclasses
from collections.abc import Callable

import jax


@dataclasses.dataclass(frozen=True)
class Reach:
    """Which keys a read is about, beyond what is written.

    Attributes:
      first_visible: positions ``[...]`` to the first position that a query there sees;
        None for all.
      most: most blocks that any row reads; None to let the longest row decide when the
        read runs.
      ring: whether the block table is a ring: block ``j`` in column ``j % C``.
    """

    first_visible: Callable[[jax.Array], jax.Array] | None = None
    most: int | None = None
    ring: bool = False
