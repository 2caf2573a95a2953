"""Ready ways to pool the raw rows of a block into one entry.

Compressed attention and pooled index keys store one entry for several tokens
(DeepSeek-AI, "DeepSeek-V4", 2026; Qwen Team, "Qwen4-Exp", 2026).  A model's ``pool``
(see :data:`Pooling`) calls one of these, then norms and rotates the result.

Shapes: ``B`` sequences, ``K`` blocks, ``S`` raw rows of each, oldest first, ``H`` heads
and ``D`` elements of an entry.  A row that is not valid takes no part, whatever its
numbers; a block without any valid row pools to zeros.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hybridcache_jax.planes import Planes

Pooling = Callable[[Planes, jax.Array, jax.Array], Planes]
"""Makes entries of raw rows: ``pool(raw, valid, first)``.

``raw`` maps plane to ``[B, K, S, heads, dim]`` float32, the
``S = (1 + overlap) * ratio`` raw rows of each of ``K`` blocks, oldest first; with
overlap the first ``ratio`` rows are those of the block before.  ``valid`` is
``[B, K, S]`` bool: rows before the start of the sequence are zeros and do not count.
``first`` is ``[B, K]`` int32, position of the block's first token.  The result maps
plane to ``[B, K, heads, dim]``.
"""


def gated_softmax(
    value: jax.Array,
    gate: jax.Array,
    valid: jax.Array,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Mean of the rows, each element weighted by its own softmax over the block.

    DeepSeek-V4 uses it with a bias for its long ratios, DeepSeek-V4.1 without one.

    Args:
      value: ``[B, K, S, H, D]``.
      gate: the same shape: logits of the weights.
      valid: ``[B, K, S]`` bool.
      bias: ``[S, D]`` added to the gate, one row for each place in a block; or None.

    Returns:
      ``[B, K, H, D]`` float32.
    """
    gate = gate.astype(jnp.float32)
    if bias is not None:
        gate = gate + bias.astype(jnp.float32)[:, None, :]
    valid = valid[..., None, None]
    gate = jnp.where(valid, gate, -jnp.inf)
    value = jnp.where(valid, value.astype(jnp.float32), 0)
    top = jax.lax.stop_gradient(jnp.max(gate, axis=-3, keepdims=True))
    weights = jnp.exp(gate - jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.sum(weights, axis=-3)
    return jnp.sum(weights * value, axis=-3) / jnp.where(total > 0, total, 1)


def overlapped_gated_softmax(
    value: jax.Array,
    gate: jax.Array,
    valid: jax.Array,
    bias: jax.Array | None = None,
) -> jax.Array:
    """:func:`gated_softmax` over a block and the block before it.

    Raw rows are twice as wide as the entry: elements ``[0, D)`` of a row go into the
    entry of the *next* block, elements ``[D, 2D)`` into that of its own.

    Args:
      value: ``[B, K, S, H, 2D]``; the first ``S / 2`` rows are the block before.
      gate: the same shape.
      valid: ``[B, K, S]`` bool; false for rows before the start of the sequence, so
        that block 0 pools only its own rows.
      bias: ``[S / 2, 2D]`` added to the gate, one row for each place in a block; or
        None.

    Returns:
      ``[B, K, H, D]`` float32.
    """
    if bias is not None:
        bias = _own_halves(jnp.concatenate([bias, bias]), axis=0)
    value, gate = _own_halves(value, axis=-3), _own_halves(gate, axis=-3)
    return gated_softmax(value, gate, valid, bias)


def mean(value: jax.Array, valid: jax.Array) -> jax.Array:
    """Plain mean of the valid rows.

    Args:
      value: ``[B, K, S, H, D]``.
      valid: ``[B, K, S]`` bool.

    Returns:
      ``[B, K, H, D]`` float32.
    """
    valid = valid[..., None, None]
    total = jnp.sum(jnp.where(valid, value.astype(jnp.float32), 0), axis=-3)
    return total / jnp.maximum(jnp.sum(valid, axis=-3), 1)


def _own_halves(rows: jax.Array, axis: int) -> jax.Array:
    """First half of the elements of the earlier rows, second half of the later."""
    earlier, later = jnp.split(rows, 2, axis)
    dim = rows.shape[-1] // 2
    return jnp.concatenate([earlier[..., :dim], later[..., dim:]], axis)
