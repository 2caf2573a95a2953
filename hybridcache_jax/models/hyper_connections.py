"""Manifold-constrained hyper-connections: several residual streams in place of one.

Zhu et al., "Hyper-Connections" (2024); Xie et al., "mHC: Manifold-Constrained
Hyper-Connections" (2026).  A block reads a weighted sum of the streams; its output is
added to each of them with a weight, after the streams were mixed by a matrix whose rows
and columns sum to one, so that depth cannot blow them up.  All weights depend on the
token.  Parameters are float32, as checkpoints keep them.

Shapes: ``B`` sequences, ``T`` tokens, ``N`` streams of ``D`` elements.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.models.modules import normal_param, project, unit_rms


class HyperConnection(nnx.Module):
    """Weights with which one block reads from and writes to the streams.

    Args:
      streams: ``N``.
      hidden: ``D``.
      iterations: normalisations of the mixing matrix, see :func:`sinkhorn`.
      norm_eps: epsilon of the norm over all streams of a token.
      eps: added to the reading weights and within :func:`sinkhorn`.

    Attributes:
      fn: ``[2N + N*N, N*D]``, from the streams to all weights.
      base: ``[2N + N*N]``, what they are around.
      scale: ``[3]``, how much reading, writing and mixing depend on the token.
    """

    def __init__(
        self,
        streams: int,
        hidden: int,
        *,
        iterations: int,
        norm_eps: float,
        eps: float,
        rngs: nnx.Rngs,
    ):
        self.streams = streams
        self.iterations = iterations
        self.norm_eps = norm_eps
        self.eps = eps
        count = (2 + streams) * streams
        self.fn = normal_param(rngs, (count, streams * hidden), jnp.float32)
        self.base = nnx.Param(jnp.zeros((count,), jnp.float32))
        self.scale = nnx.Param(jnp.ones((3,), jnp.float32))

    def read(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What the block sees, and how its output is written.

        Args:
          x: ``[B, T, N, D]`` float32.

        Returns:
          The block's input ``[B, T, D]``, and for :func:`write` the weights
          ``[B, T, N]`` of its output and the matrix ``[B, T, N, N]`` that mixes the
          streams.  All float32.
        """
        n = self.streams
        raw = project(
            unit_rms(x.reshape(*x.shape[:2], -1), self.norm_eps), self.fn[...]
        )
        reading, writing, mixing = jnp.split(raw, [n, 2 * n], axis=-1)
        base = jnp.split(self.base[...], [n, 2 * n])
        scale = self.scale[...]
        reading = jax.nn.sigmoid(reading * scale[0] + base[0]) + self.eps
        writing = 2 * jax.nn.sigmoid(writing * scale[1] + base[1])
        mixing = (mixing * scale[2] + base[2]).reshape(*mixing.shape[:2], n, n)
        return (
            jnp.einsum("btn,btnd->btd", reading, x),
            writing,
            sinkhorn(mixing, self.iterations, self.eps),
        )


class StreamReadout(nnx.Module):
    """The weighted sum of the streams that the final norm sees.

    Attributes:
      hc_fn: ``[N, N*D]``.
      hc_base: ``[N]``.
      hc_scale: ``[1]``.
    """

    def __init__(
        self, streams: int, hidden: int, *, norm_eps: float, eps: float, rngs: nnx.Rngs
    ):
        self.norm_eps = norm_eps
        self.eps = eps
        self.hc_fn = normal_param(rngs, (streams, streams * hidden), jnp.float32)
        self.hc_base = nnx.Param(jnp.zeros((streams,), jnp.float32))
        self.hc_scale = nnx.Param(jnp.ones((1,), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``x [B, T, N, D]`` float32 to ``[B, T, D]``."""
        flat = unit_rms(x.reshape(*x.shape[:2], -1), self.norm_eps)
        raw = project(flat, self.hc_fn[...])
        weights = jax.nn.sigmoid(raw * self.hc_scale[...] + self.hc_base[...])
        return jnp.einsum("btn,btnd->btd", weights + self.eps, x)


def write(
    x: jax.Array, out: jax.Array, weights: jax.Array, mixing: jax.Array
) -> jax.Array:
    """The streams after a block.

    Args:
      x: ``[B, T, N, D]`` before it.
      out: ``[B, T, D]``, its output.
      weights: ``[B, T, N]``.
      mixing: ``[B, T, N, N]``; entry ``[i, j]`` is what stream ``j`` gets of ``i``.

    Returns:
      ``[B, T, N, D]`` float32.
    """
    mixed = jnp.einsum("btij,btid->btjd", mixing, x)
    return mixed + weights[..., None] * out[..., None, :]


def sinkhorn(logits: jax.Array, iterations: int, eps: float) -> jax.Array:
    """A matrix whose rows and columns nearly sum to one.

    Sinkhorn and Knopp (1967), from a softmax over each row: columns, then rows and
    columns in turn.

    Args:
      logits: ``[..., N, N]`` float32.
      iterations: normalisations of the columns, at least 1.
      eps: added to the softmax and to every sum.

    Returns:
      ``[..., N, N]`` float32, columns normalised last.
    """

    def over(axis: int, matrix: jax.Array) -> jax.Array:
        return matrix / (jnp.sum(matrix, axis=axis, keepdims=True) + eps)

    matrix = over(-2, jax.nn.softmax(logits, axis=-1) + eps)
    return jax.lax.fori_loop(
        1, iterations, lambda _, matrix: over(-2, over(-1, matrix)), matrix
    )
