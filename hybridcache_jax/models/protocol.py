"""What a model asks of the cache: one object that appends and attends."""

from typing import Protocol, Self

import jax


class CacheView(Protocol):
    """The cache as the layers of one step see it.

    A view is immutable and a pytree, so a model that takes and returns one is a
    pure function that can be jitted.  What the view keeps, where, and which keys a
    query sees (window, chunk, selection) is not the model's business.

    Shapes: ``B`` sequences, ``T`` tokens in this step, ``Hq`` query heads, ``Hkv``
    key/value heads, ``D`` elements per key head, ``Dv`` per value head.
    """

    @property
    def positions(self) -> jax.Array:
        """Absolute positions of the tokens of this step: ``[B, T]`` int32."""
        ...

    def append(self, layer: int, *, k: jax.Array, v: jax.Array) -> Self:
        """Adds the entries of this step's tokens to ``layer``.

        Args:
          layer: 0-based model layer, a Python int.
          k: ``[B, T, Hkv, D]`` keys, already normed and rotated.
          v: ``[B, T, Hkv, Dv]`` values.

        Returns:
          A new view; the old one is left as it was.
        """
        ...

    def attend(
        self,
        layer: int,
        q: jax.Array,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Attention of this step's queries over the entries they see in ``layer``.

        Query head ``h`` reads key/value head ``h // (Hq // Hkv)``.

        Args:
          layer: 0-based model layer; its entries of this step are appended.
          q: ``[B, T, Hq, D]`` queries, already normed and rotated.
          scale: factor on the dot products.
          soft_cap: ``c`` of ``c * tanh(score / c)`` on the scaled scores, or None.
          sinks: ``[Hq]`` extra logit per head in the softmax, or None.

        Returns:
          ``[B, T, Hq, Dv]`` float32.
        """
        ...
