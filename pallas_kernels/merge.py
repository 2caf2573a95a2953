"""Partial softmax results and their one merge.

A read over some of the keys gives ``(acc, m, l)`` in float32: the running maximum
``m`` of the scores, the sum ``l`` of ``exp(score - m)``, and ``acc``, the values
weighted by ``exp(score - m)``.  Reads over disjoint keys combine exactly, in any
order (online softmax: Milakov and Gimelshein 2018; split over keys: Dao et al.
2022).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Partial(NamedTuple):
    """Unnormalised attention over some of the keys.

    A query that saw no key has ``m = -inf``, ``l = 0`` and ``acc = 0``.
    """

    acc: jax.Array  # [..., D] float32
    m: jax.Array  # [...] float32
    l: jax.Array  # [...] float32  # noqa: E741


def partial_softmax(
    scores: jax.Array, mask: jax.Array, values: jax.Array, readable: jax.Array
) -> Partial:
    """One partial from scores over a block of keys.

    Args:
      scores: ``[B, T, H, Q, K]`` float32: KV heads ``H``, queries per KV head ``Q``.
      mask: ``[B, T, K]`` bool, which keys each query sees.
      values: ``[B, K, H, D]``.
      readable: ``[B, K]`` bool, keys that were written.  Others may hold anything,
        NaN included, and never reach the result.

    Returns:
      Partial with ``acc [B, T, H, Q, D]`` and ``m``, ``l`` ``[B, T, H, Q]``.
    """
    mask = mask[:, :, None, None, :]
    scores = jnp.where(mask, scores, -jnp.inf)
    m = jnp.max(scores, axis=-1)
    weights = jnp.where(mask, jnp.exp(scores - _finite(m)[..., None]), 0.0)
    # A zero weight does not silence NaN, so dead values are replaced, not weighted.
    values = jnp.where(readable[:, :, None, None], values.astype(jnp.float32), 0.0)
    acc = jnp.einsum("bthqk,bkhd->bthqd", weights, values)
    return Partial(acc, m, jnp.sum(weights, axis=-1))


def merge(parts: list[Partial], sinks: jax.Array | None = None) -> jax.Array:
    """Combines partials over disjoint keys and divides once.

    Args:
      parts: partials of equal shape, ``acc [..., D]``.
      sinks: scores that enter the denominator only, broadcastable to ``m``.

    Returns:
      ``[..., D]`` float32; zeros for a query that saw no key.
    """
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    if sinks is not None:
        sinks = jnp.broadcast_to(sinks.astype(jnp.float32), total.m.shape)
        sink = Partial(jnp.zeros_like(total.acc), sinks, jnp.ones_like(sinks))
        total = combine(total, sink)
    divisor = jnp.where(total.l > 0, total.l, 1.0)
    return total.acc / divisor[..., None]


def combine(a: Partial, b: Partial) -> Partial:
    """One partial over the keys of both."""
    m = jnp.maximum(a.m, b.m)
    scale_a = jnp.exp(a.m - _finite(m))
    scale_b = jnp.exp(b.m - _finite(m))
    return Partial(
        a.acc * scale_a[..., None] + b.acc * scale_b[..., None],
        m,
        a.l * scale_a + b.l * scale_b,
    )


def empty(shape: tuple[int, ...], dim: int) -> Partial:
    """The partial of queries that saw nothing: ``m`` of shape ``shape``."""
    return Partial(
        jnp.zeros((*shape, dim), jnp.float32),
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
    )


def _finite(m: jax.Array) -> jax.Array:
    """Keeps ``exp(-inf - m)`` at 0 where nothing was seen (m is -inf)."""
    return jnp.where(jnp.isneginf(m), 0.0, m)
