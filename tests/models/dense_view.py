"""An independent oracle for the cache: whole arrays and a masked softmax."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp

from hybridcache_jax.layers import LayerSpec


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DenseView:
    """Keeps every key and value of every layer, and masks what is out of sight.

    All sequences have the same length and no padding, so key ``s`` has position
    ``s``.

    Attributes:
      positions: ``[B, T]`` int32, tokens of this step.
      keys: one ``[B, S, Hkv, D]`` per layer.
      values: one ``[B, S, Hkv, D]`` per layer.
      windows: keys a query sees per layer, its own included; None for all.
    """

    positions: jax.Array
    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    windows: tuple[int | None, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def empty(cls, layers: tuple[LayerSpec, ...], batch: int) -> Self:
        """A view of a cache that holds nothing, before any step."""
        keys, windows = [], []
        for spec in layers:
            part = spec.local or spec.global_
            plane = part.entry.planes[0]
            keys.append(jnp.zeros((batch, 0, plane.heads, plane.dim)))
            windows.append(spec.local.size if spec.local else None)
        empty = jnp.zeros((batch, 0), jnp.int32)
        return cls(empty, tuple(keys), tuple(keys), tuple(windows))

    def step(self, count: int) -> Self:
        """The view for the next ``count`` tokens."""
        batch, start = self.keys[0].shape[:2]
        positions = jnp.arange(start, start + count, dtype=jnp.int32)
        return dataclasses.replace(
            self, positions=jnp.broadcast_to(positions, (batch, count))
        )

    def append(self, layer: int, *, k: jax.Array, v: jax.Array) -> Self:
        """Joins this step's keys and values to those of ``layer``."""
        return dataclasses.replace(
            self,
            keys=_joined(self.keys, layer, k),
            values=_joined(self.values, layer, v),
        )

    def attend(
        self,
        layer: int,
        q: jax.Array,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Softmax over all keys, those out of sight at minus infinity."""
        keys, values = self.keys[layer], self.values[layer]
        repeats = q.shape[2] // keys.shape[2]
        keys = jnp.repeat(keys, repeats, axis=2)
        values = jnp.repeat(values, repeats, axis=2)
        scores = jnp.einsum("bthd,bshd->bhts", q, keys) * scale
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        t = self.positions[:, None, :, None]
        s = jnp.arange(keys.shape[1])[None, None, None, :]
        visible = s <= t
        if self.windows[layer] is not None:
            visible &= t - s < self.windows[layer]
        scores = jnp.where(visible, scores, -jnp.inf)
        if sinks is not None:
            column = jnp.broadcast_to(
                sinks[None, :, None, None], (*scores.shape[:3], 1)
            )
            scores = jnp.concatenate([scores, column], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., : keys.shape[1]]
        return jnp.einsum("bhts,bshd->bthd", weights, values)


def _joined(arrays, layer, new):
    joined = jnp.concatenate([arrays[layer], new], axis=1)
    return (*arrays[:layer], joined, *arrays[layer + 1 :])
