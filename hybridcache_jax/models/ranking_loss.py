"""The loss that trains a sparse indexer: rank as attention would look.

DeepSeek-AI, "DeepSeek-V3.2" (2025): the divergence of the index scores from what
attention over all entries looks at, heads taken together.
"""

import jax
import jax.numpy as jnp

_TINY, _HUGE = 1e-9, 1e9


def ranking_loss(
    q: jax.Array, keys: jax.Array, scores: jax.Array, seen: jax.Array
) -> jax.Array:
    """Mean divergence of index scores from attention.

    Args:
      q: ``[B, T, Hq, D]``, scaled.
      keys: ``[B, N, H, D]``, all entries; query head ``h`` reads ``h // (Hq // H)``.
      scores: ``[B, T, G, N]`` float32, index scores; ``G`` divides ``Hq``.
      seen: ``[B, T, 1, N]`` bool, entries that each query may see.

    Returns:
      ``[]`` float32; its gradient reaches the scores only.
    """
    keys = jnp.repeat(keys, q.shape[2] // keys.shape[2], axis=2)
    wanted = _distribution(jnp.einsum("bthd,bnhd->bthn", q, keys), seen)
    wanted = wanted.reshape(*wanted.shape[:2], scores.shape[2], -1, wanted.shape[-1])
    wanted = jax.lax.stop_gradient(jnp.mean(wanted, axis=3))
    ratio = jnp.log(wanted + _TINY) - jnp.log(_distribution(scores, seen) + _TINY)
    return jnp.mean(jnp.sum(wanted * ratio, axis=-1))


@jax.custom_vjp
def with_loss(x: jax.Array, loss: jax.Array) -> jax.Array:
    """``x``; its gradient is joined by that of ``loss``, whatever is made of ``x``.

    Args:
      x: any array.
      loss: ``[]`` float32.
    """
    del loss
    return x


with_loss.defvjp(
    lambda x, loss: (x, None), lambda _, gradient: (gradient, jnp.ones(()))
)


def _distribution(scores: jax.Array, seen: jax.Array) -> jax.Array:
    """Softmax over what is seen; zeros where nothing is."""
    scores = jnp.where(seen, scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(seen, jnp.exp(scores - jnp.maximum(top, -_HUGE)), 0.0)
    return weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), _TINY)
