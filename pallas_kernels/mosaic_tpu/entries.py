"""Scores and weighted sums over blocks that lie in VMEM as they are stored."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.stored import Stored, StoredPlane

Loaded = Mapping[str, jax.Array]
"""By plane, ``[N, heads * dim]`` as stored."""


@dataclasses.dataclass(frozen=True)
class Entries:
    """What a kernel does with entries of one layout."""

    stored: Stored

    def scores(self, query: jax.Array, loaded: Loaded, head: int) -> jax.Array:
        """``[M, D]`` queries to ``[M, N]`` float32 dot products with one head's keys."""
        total, at = None, 0
        for name in self.stored.key:
            plane = self.stored[name]
            keys = self._head(plane, loaded, head)
            part = _dot(query[:, at : at + plane.dim], keys, (1, 1))
            total = part if total is None else total + part
            at += plane.dim
        return total

    def weighed(
        self, weights: jax.Array, loaded: Loaded, head: int, alive: jax.Array
    ) -> jax.Array:
        """``[M, N]`` weights to ``[M, Dv]`` float32 sums of one head's values.

        ``alive`` ``[N, 1]``: what counts; the rest may hold anything.
        """
        parts = []
        for name in self.stored.value:
            values = self._head(self.stored[name], loaded, head)
            # A zero weight does not silence NaN.
            values = jnp.where(alive, values.astype(jnp.float32), 0.0)
            values = values.astype(_product_dtype(self.stored[name]))
            parts.append(_dot(weights, values, (1, 0)))
        return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

    def _head(self, plane: StoredPlane, loaded: Loaded, head: int) -> jax.Array:
        """``[N, dim]`` of one head, scaled, ready for a product."""
        start = head * plane.dim
        values = loaded[plane.name][:, start : start + plane.dim]
        if plane.scale is None:
            return values.astype(_product_dtype(plane))
        scales, runs = self._scales(plane, loaded, head), plane.dim // plane.run
        values = values.astype(jnp.float32)
        parts = [
            values[:, r * plane.run : (r + 1) * plane.run] * scales[:, r : r + 1]
            for r in range(runs)
        ]
        return jnp.concatenate(parts, axis=1) if runs > 1 else parts[0]

    def _scales(self, plane: StoredPlane, loaded: Loaded, head: int) -> jax.Array:
        """``[N, runs]`` float32."""
        scale = self.stored[plane.scale]
        start = head * scale.dim
        return loaded[scale.name][:, start : start + scale.dim].astype(jnp.float32)


def _product_dtype(plane: StoredPlane):
    """What enters the matrix unit; scaled values are multiplied out first."""
    return jnp.bfloat16 if plane.dtype == "bfloat16" else jnp.float32


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    exact = b.dtype == jnp.float32
    return jax.lax.dot_general(
        a.astype(b.dtype),
        b,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )
