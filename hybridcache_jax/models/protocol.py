"""What a model asks of the cache: one object that appends and attends."""

from collections.abc import Callable
from typing import Protocol, Self

import jax

from hybridcache_jax.planes import Planes
from hybridcache_jax.pooling import Pooling


class CacheView(Protocol):
    """The cache as the layers of one step see it.

    A view is immutable and a pytree, so a model that takes and returns one is a
    pure function that can be jitted.  What the view keeps, where, and which keys a
    query sees (window, chunk, selection) is not the model's business.

    Shapes: ``B`` sequences, ``T`` tokens in this step, ``Hq`` query heads, ``Hkv``
    key/value heads, ``D`` elements per key head, ``Dv`` per value head.  ``layer`` is
    the 0-based model layer, a Python int.
    """

    @property
    def positions(self) -> jax.Array:
        """Absolute positions of the tokens of this step: ``[B, T]`` int32."""
        ...

    @property
    def valid(self) -> jax.Array:
        """Which tokens of this step are real: ``[B, T]`` bool, a prefix of each row."""
        ...

    def append(self, layer: int, *, to: str | None = None, **planes: jax.Array) -> Self:
        """Adds one entry per token of this step.

        Args:
          layer: it must own what is appended.
          to: ``"local"``, ``"entries"`` (of ratio 1) or ``"index"`` (keys per token);
            may be left out where the layer has either a local part or entries of
            ratio 1, not both.
          **planes: ``[B, T, heads, dim]`` each, normed and rotated, as the layer's
            Entry declares.  Planes of scales are left out: the view makes them.

        Returns:
          A new view; the old one is left as it was.
        """
        ...

    def compress(
        self,
        layer: int,
        pool: Pooling,
        *,
        to: str = "entries",
        index: Callable[[Planes], Planes] | None = None,
        **raw: jax.Array,
    ) -> Self:
        """Adds raw rows, and an entry for every block that they complete.

        Args:
          layer: it must own entries (or index keys) of ratio > 1 with raw rows.
          pool: makes entries of raw rows, see ``pooling.Pooling``.
          to: ``"entries"`` or ``"index"``.
          index: for index keys that are projected from the entry: new entries to
            their keys.
          **raw: ``[B, T, heads, dim]`` each, as the layer's raw Entry declares.
        """
        ...

    def select(
        self, layer: int, query: jax.Array, weights: jax.Array, *, scale: float = 1.0
    ) -> Self:
        """Ranks the layer's index keys; ``attend`` reads what was selected.

        The score of a key is the sum of ``weights[h] * relu(scale * query[h] . key)``
        over the index heads ``h`` (of the KV group, where selection is per group).
        Layers that name this one as ``select_owner`` read the same selection.

        Args:
          layer: it must declare ``select``, and own index keys or name their owner.
          query: ``[B, T, Hi, Di]``.
          weights: ``[B, T, Hi]``.
          scale: factor on the dot products, before the ReLU.
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
        """Attention of this step's queries over all they see in ``layer``.

        One softmax over local keys, entries (those selected, where the layer
        selects) and sinks.  Query head ``h`` reads key/value head ``h // (Hq // Hkv)``.

        Args:
          layer: its entries of this step are appended, its selection made.
          q: ``[B, T, Hq, D]`` queries, already normed and rotated.
          scale: factor on the dot products.
          soft_cap: ``c`` of ``c * tanh(score / c)`` on the scaled scores, or None.
          sinks: ``[Hq]`` extra logit per head in the softmax, or None.

        Returns:
          ``[B, T, Hq, Dv]`` float32.
        """
        ...

    def read_state(self, layer: int) -> dict[str, jax.Array]:
        """Recurrent state before this step's first token; zeros at position 0.

        Returns:
          Plane to ``[B, heads, dim]`` float32.
        """
        ...

    def write_state(self, layer: int, **planes: jax.Array) -> Self:
        """Recurrent state after this step's last *valid* token.

        Args:
          layer: it must own recurrent state.
          **planes: ``[B, heads, dim]`` each, as the layer's RecurrentState declares.
        """
        ...


class Decoder(Protocol):
    """A model of this package: a Flax NNX module that decodes over a view."""

    def __call__(
        self, tokens: jax.Array, view: CacheView
    ) -> tuple[jax.Array, CacheView]:
        """Runs one step.

        Args:
          tokens: ``[B, T]`` int32 ids at ``view.positions``.
          view: the cache.

        Returns:
          Hidden states after the final norm, ``[B, T, hidden]`` float32, and the view
          with what these tokens leave in every layer.
        """
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states ``[..., hidden]`` to logits ``[..., vocab]`` float32."""
        ...
