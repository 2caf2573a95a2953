"""Layers that several models share: norms, projections, embeddings, gated MLPs.

Parameters have the names and ``[out, in]`` shapes of the checkpoints, so that loading
is a copy.  Norms are float32.  A matrix product takes its input in the dtype of its
weight and accumulates in float32; with float32 parameters it is as exact as the
caller's ``jax.default_matmul_precision``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

_INIT_STDDEV = 0.02


class RMSNorm(nnx.Module):
    """RMS norm over the last axis: ``x / rms(x) * (offset + weight)``.

    Args:
      dim: elements of the last axis.
      eps: added to the mean square.
      offset: 1 for zero-centred weights (Gemma 3, Qwen3-Next), else 0.
      param_dtype: dtype of the weight.
    """

    def __init__(self, dim: int, eps: float, *, offset: int = 0, param_dtype):
        self.weight = nnx.Param(jnp.full((dim,), 1 - offset, param_dtype))
        self.eps = eps
        self.offset = offset

    def __call__(self, x: jax.Array) -> jax.Array:
        """Norms ``x [..., dim]``; float32 out."""
        weight = self.weight[...].astype(jnp.float32)
        return unit_rms(x, self.eps) * (self.offset + weight)


class LayerNorm(nnx.Module):
    """Layer norm over the last axis, with weight and bias."""

    def __init__(self, dim: int, eps: float, *, param_dtype):
        self.weight = nnx.Param(jnp.ones((dim,), param_dtype))
        self.bias = nnx.Param(jnp.zeros((dim,), param_dtype))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Norms ``x [..., dim]``; float32 out."""
        x = x.astype(jnp.float32)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = unit_rms(x, self.eps)
        weight, bias = self.weight[...], self.bias[...]
        return x * weight.astype(jnp.float32) + bias.astype(jnp.float32)


class Linear(nnx.Module):
    """``x @ weight.T + bias`` with float32 accumulation.

    Attributes:
      weight: ``[out_dim, in_dim]``.
      bias: ``[out_dim]`` or None.
    """

    def __init__(
        self, in_dim: int, out_dim: int, *, rngs, param_dtype, use_bias: bool = False
    ):
        self.weight = normal_param(rngs, (out_dim, in_dim), param_dtype)
        self.bias = nnx.Param(jnp.zeros((out_dim,), param_dtype)) if use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., in_dim]`` to ``[..., out_dim]`` float32."""
        out = project(x, self.weight[...])
        if self.bias is not None:
            out = out + self.bias[...].astype(jnp.float32)
        return out


class Embedding(nnx.Module):
    """Table of token vectors; also the output head when tied.

    Attributes:
      weight: ``[vocab_size, hidden_size]``.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, rngs, param_dtype):
        self.weight = normal_param(rngs, (vocab_size, hidden_size), param_dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Vectors of ``tokens [B, T]``, float32."""
        return jnp.take(self.weight[...], tokens, axis=0).astype(jnp.float32)


class GatedMLP(nnx.Module):
    """Gated MLP: ``down(activation(gate(x), up(x)))``.

    Args:
      hidden: width of input and output.
      inner: width between.
      activation: of gate and up to their product; see :func:`swiglu`.
    """

    def __init__(
        self,
        hidden: int,
        inner: int,
        *,
        activation: Callable[[jax.Array, jax.Array], jax.Array],
        rngs,
        param_dtype,
    ):
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.gate_proj = Linear(hidden, inner, **options)
        self.up_proj = Linear(hidden, inner, **options)
        self.down_proj = Linear(inner, hidden, **options)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [..., hidden]`` to the same shape; float32."""
        return self.down_proj(self.activation(self.gate_proj(x), self.up_proj(x)))


def swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """``silu(gate) * up``."""
    return jax.nn.silu(gate) * up


def geglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """``gelu(gate) * up`` with the tanh form of GELU."""
    return jax.nn.gelu(gate, approximate=True) * up


def unit_rms(x: jax.Array, eps: float) -> jax.Array:
    """``x / sqrt(mean(x^2) + eps)`` over the last axis, float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


def project(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x [..., in] @ weight [out, in].T`` in the weight's dtype, float32 out."""
    return jnp.einsum(
        "...i,oi->...o",
        x.astype(weight.dtype),
        weight,
        preferred_element_type=jnp.float32,
    )


def soft_cap(logits: jax.Array, cap: float | None) -> jax.Array:
    """``cap * tanh(logits / cap)``, or the logits where there is no cap."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def normal_param(rngs: nnx.Rngs, shape: tuple[int, ...], dtype) -> nnx.Param:
    """A random parameter for models that are trained, not loaded."""
    return nnx.Param(nnx.initializers.normal(_INIT_STDDEV)(rngs.params(), shape, dtype))
