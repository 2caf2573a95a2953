"""Gathers that fill and scatters that drop: an index outside changes nothing.

JAX wraps negative indices even in these modes unless it is told not to.
"""

import jax
import jax.numpy as jnp


def get(array: jax.Array, where, fill) -> jax.Array:
    """``array[where]``, ``fill`` where the index lies outside."""
    return array.at[where].get(
        mode="fill", fill_value=fill, wrap_negative_indices=False
    )


def put(array: jax.Array, where, values) -> jax.Array:
    """``array`` with ``values`` written; indices outside are dropped."""
    values = jnp.asarray(values, array.dtype)
    return array.at[where].set(values, mode="drop", wrap_negative_indices=False)


def add(array: jax.Array, where, values) -> jax.Array:
    """``array`` with ``values`` added; indices outside are dropped."""
    return array.at[where].add(values, mode="drop", wrap_negative_indices=False)
