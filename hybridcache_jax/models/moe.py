"""Mixture of experts: tokens sorted by expert, one grouped product per projection.

Routing differs from model to model and stays with it; this file takes the choice and
the weights.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridcache_jax.models.modules import normal_param, swiglu
from hybridcache_jax.models.recipes import Recipe, stacked


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


class Experts(nnx.Module):
    """Gated MLPs, stacked.

    Args:
      count: number of experts, ``E``.
      hidden: width of input and output.
      inner: width between.
      activation: of gate and up to their product.

    Attributes:
      gate_up_proj: ``[E, 2 * inner, hidden]``, rows of the gate first.
      down_proj: ``[E, hidden, inner]``.
    """

    def __init__(
        self,
        count: int,
        hidden: int,
        inner: int,
        *,
        activation: Callable[[jax.Array, jax.Array], jax.Array] = swiglu,
        rngs: nnx.Rngs,
        param_dtype,
    ):
        self.activation = activation
        self.gate_up_proj = normal_param(rngs, (count, 2 * inner, hidden), param_dtype)
        self.down_proj = normal_param(rngs, (count, hidden, inner), param_dtype)

    def __call__(
        self, x: jax.Array, chosen: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """Weighted sum of the chosen experts of ``x [..., hidden]``; float32."""
        return mix_experts(
            x,
            chosen,
            weights,
            jnp.swapaxes(self.gate_up_proj[...], 1, 2),
            jnp.swapaxes(self.down_proj[...], 1, 2),
            lambda rows: self.activation(*jnp.split(rows, 2, axis=-1)),
        )


def expert_recipes(
    prefix: str,
    stored: str,
    count: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> dict[str, Recipe]:
    """How :class:`Experts` are made of one tensor per expert and projection.

    Args:
      prefix: of the parameters, for example ``"layers.1.mlp.experts"``.
      stored: prefix of the stored tensors; the number of the expert follows.
      count: number of experts.
      names: stored names of the gate, up and down projections.
    """
    gate, up, down = (
        [f"{stored}.{expert}.{name}.weight" for expert in range(count)]
        for name in names
    )
    return {
        f"{prefix}.gate_up_proj": Recipe((*gate, *up), _gates_over_ups),
        f"{prefix}.down_proj": stacked(down),
    }


def _gates_over_ups(tensors: list[np.ndarray]) -> np.ndarray:
    """``[E, 2 * inner, hidden]`` of the gates of all experts, then their ups."""
    half = len(tensors) // 2
    return np.concatenate([np.stack(tensors[:half]), np.stack(tensors[half:])], axis=1)
