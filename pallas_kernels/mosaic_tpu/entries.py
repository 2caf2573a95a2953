"""Scores and weighted sums over blocks that lie in VMEM as they are stored."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.dtypes import named_dtype
from pallas_kernels.stored import Entry, Plane

Loaded = Mapping[str, jax.Array]
"""By plane, ``[N, width]`` as stored."""


def head_scores(entry: Entry, query: jax.Array, loaded: Loaded, head: int) -> jax.Array:
    """``[M, D]`` queries to ``[M, N]`` float32 products with one head's keys."""
    total, at = jnp.zeros((), jnp.float32), 0
    for plane in entry.key_planes:
        keys = _of_head(entry, plane, loaded, head)
        total = total + _dot(query[:, at : at + plane.dim], keys, (1, 1))
        at += plane.dim
    return total


def head_sums(
    entry: Entry, weights: jax.Array, loaded: Loaded, head: int, alive: jax.Array
) -> jax.Array:
    """``[M, N]`` weights to ``[M, Dv]`` float32 sums of one head's values.

    ``alive`` ``[N, 1]`` bool: what counts; the rest may hold anything.
    """
    parts = []
    for plane in entry.value_planes:
        values = _of_head(entry, plane, loaded, head).astype(jnp.float32)
        # A zero weight does not silence NaN.
        values = jnp.where(alive, values, 0.0).astype(_product_dtype(plane))
        parts.append(_dot(weights, values, (1, 0)))
    return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def _of_head(entry: Entry, plane: Plane, loaded: Loaded, head: int) -> jax.Array:
    """``[N, dim]`` of one head, scaled, ready for a product."""
    values = _columns(plane, loaded, head)
    if plane.scale is None:
        return values.astype(_product_dtype(plane))
    scales = _columns(entry[plane.scale], loaded, head).astype(jnp.float32)
    values = values.astype(jnp.float32)
    parts = [
        values[:, r * plane.run : (r + 1) * plane.run] * scales[:, r : r + 1]
        for r in range(plane.dim // plane.run)
    ]
    return jnp.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def _columns(plane: Plane, loaded: Loaded, head: int) -> jax.Array:
    """``[N, dim]`` of one head, in the logical dtype."""
    values = loaded[plane.name][:, head * plane.dim : (head + 1) * plane.dim]
    dtype = named_dtype(plane.dtype)
    # The CPU holds narrow floats as integers.
    if values.dtype != dtype:
        values = jax.lax.bitcast_convert_type(values, dtype)
    return values


def _product_dtype(plane: Plane):
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
