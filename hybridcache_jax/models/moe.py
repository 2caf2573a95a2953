"""Mixture of experts: tokens sorted by expert, one grouped product per projection.

Routing differs from model to model and stays with it; this file takes the choice and
the weights.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def mix_experts(
    x: jax.Array,
    chosen: jax.Array,
    weights: jax.Array,
    first: jax.Array,
    second: jax.Array,
    activation: Callable[[jax.Array], jax.Array],
    *,
    first_bias: jax.Array | None = None,
    second_bias: jax.Array | None = None,
) -> jax.Array:
    """Sum of the chosen experts' outputs.

    Args:
      x: ``[..., hidden]``.
      chosen: ``[..., k]`` int32, experts of each token.
      weights: ``[..., k]`` float32.
      first: ``[E, hidden, 2 * inner]``, gate and up together.
      second: ``[E, inner, hidden]``.
      activation: ``[n, 2 * inner]`` to ``[n, inner]``; knows how gate and up lie.
      first_bias: ``[E, 2 * inner]`` or None.
      second_bias: ``[E, hidden]`` or None.

    Returns:
      ``[..., hidden]`` float32.
    """
    lead, k = x.shape[:-1], chosen.shape[-1]
    flat = x.reshape(-1, x.shape[-1])
    experts = chosen.reshape(-1)
    order = jnp.argsort(experts)
    sizes = jnp.bincount(experts, length=first.shape[0]).astype(jnp.int32)
    rows = jnp.take(flat, order // k, axis=0)
    owner = jnp.take(experts, order)

    def grouped(rows, weight, bias):
        out = jax.lax.ragged_dot(
            rows.astype(weight.dtype), weight, sizes, preferred_element_type=jnp.float32
        )
        return out if bias is None else out + jnp.take(bias, owner, axis=0)

    inner = activation(grouped(rows, first, first_bias))
    out = grouped(inner, second, second_bias)
    out = out * jnp.take(weights.reshape(-1), order)[:, None]
    mixed = jnp.zeros(flat.shape, jnp.float32).at[order // k].add(out)
    return mixed.reshape(*lead, -1)
