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

    @classmethod
    def of_window(
        cls,
        first_visible: Callable[[jax.Array], jax.Array],
        reach: int,
        *,
        width: int,
        block_tokens: int,
        columns: int,
    ) -> "Reach":
        """Of a window or chunk whose blocks lie in a ring.

        Args:
          first_visible: query positions to the first key position each sees.
          reach: most keys before its own that a query sees.
          width: queries of a row.
          block_tokens: tokens of a block.
          columns: of the block table.
        """
        span = -(-(reach + width) // block_tokens) + 1
        # A ring shorter than the span holds the whole sequence: no column repeats.
        return cls(first_visible, most=min(span, columns), ring=True)
