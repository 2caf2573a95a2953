"""An independent oracle for latent attention: whole arrays and masks, one step."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp

from hybridcache_jax.layers import LayerSpec


@dataclasses.dataclass(frozen=True)
class DenseLatentView:
    """All tokens of all sequences in one step from position 0, none padded.

    Attributes:
      layers: what each layer declares; only ``select`` and its owner are looked at.
      positions: ``[B, T]`` int32.
      entries: by layer, ``latent`` and ``rope``, ``[B, T, 1, dim]`` each.
      keys: by layer, index keys ``[B, T, 1, dim]``.
      masks: by layer, ``[B, T, T]`` bool: tokens that a query selected.
    """

    layers: tuple[LayerSpec, ...]
    positions: jax.Array
    entries: dict[int, dict[str, jax.Array]] = dataclasses.field(default_factory=dict)
    keys: dict[int, jax.Array] = dataclasses.field(default_factory=dict)
    masks: dict[int, jax.Array] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, layers: tuple[LayerSpec, ...], batch: int, tokens: int) -> Self:
        """The view before the step."""
        positions = jnp.arange(tokens, dtype=jnp.int32)
        return cls(layers, jnp.broadcast_to(positions, (batch, tokens)))

    def append(self, layer: int, *, to: str | None = None, **planes) -> Self:
        """Keeps the step's entries or index keys."""
        if to == "index":
            return dataclasses.replace(self, keys={**self.keys, layer: planes["k"]})
        return dataclasses.replace(self, entries={**self.entries, layer: planes})

    def select(self, layer: int, query, weights, *, scale: float = 1.0) -> Self:
        """Masks all but the best tokens up to each query."""
        choice, keys = self.layers[layer].select, self.keys[layer][:, :, 0]
        assert choice is not None
        dots = jnp.einsum("bthd,bsd->bths", query, keys)
        scores = jnp.einsum("bths,bth->bts", jax.nn.relu(scale * dots), weights)
        causal = self.positions[:, :, None] >= self.positions[:, None, :]
        ranked = jnp.argsort(-jnp.where(causal, scores, -jnp.inf), axis=-1)
        rank = jnp.argsort(ranked, axis=-1)
        mask = causal & (rank < choice.k)
        return dataclasses.replace(self, masks={**self.masks, layer: mask})

    def attend(self, layer: int, q, *, scale: float) -> jax.Array:
        """Softmax over the selected tokens, or over all up to the query."""
        spec, planes = self.layers[layer], self.entries[layer]
        owner = layer if spec.select_owner is None else spec.select_owner
        causal = self.positions[:, :, None] >= self.positions[:, None, :]
        mask = self.masks[owner] if self.layers[owner].select else causal
        key = jnp.concatenate([planes["latent"], planes["rope"]], axis=-1)[:, :, 0]
        scores = scale * jnp.einsum("bthd,bsd->bths", q, key)
        weights = jax.nn.softmax(jnp.where(mask[:, :, None], scores, -jnp.inf))
        return jnp.einsum("bths,bsd->bthd", weights, planes["latent"][:, :, 0])
