"""Gated delta rule: a fixed-size memory that corrects what it recalls.

Each head keeps a matrix ``S [key_dim, value_dim]``.  A token first lets it fade, then
replaces what its key recalls by its value, as far as ``beta`` says::

    S = exp(decay)[:, None] * S
    S = S + outer(k, beta * (v - k @ S))
    out = q @ S

Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers" (2021): the
delta rule.  Yang et al., "Gated Delta Networks" (2024): one decay per head.  Kimi Team,
"Kimi Linear" (2025): one decay per key channel.  Yang et al., "Parallelizing Linear
Transformers with the Delta Rule over Sequence Length" (2024): many tokens at once, by
one triangular system per chunk.

Everything is float32, products included: a state lives as long as its sequence.
"""

import jax
import jax.numpy as jnp

from hybridcache_jax.models.protocol import CacheView
from hybridcache_jax.models.short_conv import ShortConvolution

INITIAL_STEP = -4.0
"""Bias before the softplus of a decay of rate 1: half is kept over some 40 tokens."""

# Tokens per triangular system: gates per channel take C * C * key_dim products.
_CHUNK = 16
_NORM_EPS = 1e-6
_EXACT = jax.lax.Precision.HIGHEST


def delta_attention(
    view: CacheView,
    layer: int,
    mixed: jax.Array,
    conv: ShortConvolution,
    *,
    decay: jax.Array,
    beta: jax.Array,
    key_heads: int,
    key_dim: int,
    value_dim: int,
) -> tuple[jax.Array, CacheView]:
    """One step of a layer whose memory is a state and the inputs of a convolution.

    Args:
      view: the cache; ``layer`` owns planes ``state`` and ``conv`` as
        :func:`configs.recurrent.delta_state` declares them.
      layer: model layer.
      mixed: ``[B, T, channels]`` float32: projected queries, keys and values of all
        heads, one after another, before the convolution.
      conv: filters ``mixed``.
      decay: ``[B, T, heads, 1 or key_dim]`` float32, see :func:`gated_delta_rule`.
      beta: ``[B, T, heads]`` float32.
      key_heads: heads of queries and keys; each serves ``heads // key_heads`` value
        heads in a row.
      key_dim: elements per query and key.
      value_dim: elements per value.

    Returns:
      ``[B, T, heads, value_dim]`` float32, and the view with the new state.
    """
    batch, steps, channels = mixed.shape
    heads = beta.shape[2]
    memory = view.read_state(layer)
    mixed, carried = conv(
        mixed, memory["conv"].reshape(batch, -1, channels), view.valid
    )
    keys = key_heads * key_dim
    q, k, v = jnp.split(mixed, [keys, 2 * keys], axis=-1)
    q, k = (
        jnp.repeat(
            x.reshape(batch, steps, key_heads, key_dim), heads // key_heads, axis=2
        )
        for x in (q, k)
    )
    out, state = gated_delta_rule(
        q,
        k,
        v.reshape(batch, steps, heads, value_dim),
        decay,
        beta,
        memory["state"].reshape(batch, heads, key_dim, value_dim),
        view.valid,
    )
    view = view.write_state(
        layer,
        state=state.reshape(batch, heads, -1),
        conv=carried.reshape(batch, 1, -1),
    )
    return out, view


def gated_delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    valid: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Folds the tokens of one step into the state, and reads it at each of them.

    Queries and keys are brought to unit length here, and queries scaled by
    ``key_dim ** -0.5``.

    Args:
      q: ``[B, T, H, key_dim]`` float32.
      k: the same shape.
      v: ``[B, T, H, value_dim]`` float32.
      decay: ``[B, T, H, G]`` float32 logarithm of what is kept of the state, at most
        0; ``G`` is 1 (one gate per head) or ``key_dim`` (one per channel).
      beta: ``[B, T, H]`` float32, how far a value replaces what was recalled.
      state: ``[B, H, key_dim, value_dim]`` float32, before the step.
      valid: ``[B, T]`` bool; tokens that are not change nothing and read zeros.

    Returns:
      ``[B, T, H, value_dim]`` float32, and the state after the last valid token.
    """
    q = _unit(q) * q.shape[-1] ** -0.5
    parts = (q, _unit(k), v, decay, beta[..., None])
    # Selected, not multiplied: a padded token may hold anything, NaN included.
    parts = tuple(jnp.where(valid[:, :, None, None], part, 0.0) for part in parts)
    if v.shape[1] == 1:
        out, state = _token(state, *(part[:, 0] for part in parts))
        return out[:, None], state
    return _chunks(state, parts)


def _token(state, q, k, v, decay, beta):
    """The rule for one token; ``[B, H, dim]`` each.  Sums, so that it is one pass."""
    state = state * jnp.exp(decay)[..., None]
    recalled = jnp.sum(state * k[..., None], axis=-2)
    state = state + k[..., None] * (beta * (v - recalled))[..., None, :]
    return jnp.sum(state * q[..., None], axis=-2), state


def _chunks(state, parts):
    """The rule for ``[B, T, H, dim]`` each, a chunk of tokens at a time."""
    steps = parts[0].shape[1]
    size = min(steps, _CHUNK)
    count = -(-steps // size)

    def chunked(part):
        """``[B, T, H, dim]`` to ``[count, B, H, size, dim]``, zeros behind."""
        padding = ((0, 0), (0, count * size - steps), (0, 0), (0, 0))
        part = jnp.pad(part, padding)
        part = part.reshape(part.shape[0], count, size, *part.shape[2:])
        return jnp.transpose(part, (1, 0, 3, 2, 4))

    state, out = jax.lax.scan(
        lambda state, chunk: _chunk(state, *chunk),
        state,
        tuple(chunked(part) for part in parts),
    )
    out = jnp.transpose(out, (1, 0, 3, 2, 4))
    return out.reshape(out.shape[0], count * size, *out.shape[3:])[:, :steps], state


def _chunk(state, q, k, v, decay, beta):
    """The rule for ``[B, H, C, dim]`` each.

    With ``since[i, j]`` the decay summed over the tokens after ``j`` up to ``i``, the
    corrections ``u`` solve ``u_i = beta_i (v_i - k_i exp(since[i, start]) S - sum over
    j < i of a_ij u_j)`` where ``a_ij = k_i exp(since[i, j]) k_j``.
    """
    size = q.shape[2]
    later = jnp.tril(jnp.ones((size, size), bool), -1)[..., None]
    causal = jnp.tril(jnp.ones((size, size), bool))[..., None]
    # Summed for each pair: a difference of two long sums would cancel, and a product of
    # two exponentials overflow.
    since = jnp.cumsum(jnp.where(later, decay[:, :, :, None], 0.0), axis=2)
    fade = jnp.where(causal, jnp.exp(since), 0.0)
    kept = jnp.exp(jnp.cumsum(decay, axis=2))

    targets = beta * (v - _dot(k * kept, state))
    corrections = _dot(_unit_lower_inverse(beta * _overlap(k, k, fade)), targets)
    out = _dot(q * kept, state) + _dot(_overlap(q, k, fade), corrections)
    remaining = jnp.swapaxes(k * fade[:, :, -1], 2, 3)
    state = state * kept[:, :, -1][..., None] + _dot(remaining, corrections)
    return state, out


def _unit_lower_inverse(matrix):
    """Inverse of ``[..., C, C]`` read as lower triangular with ones on its diagonal.

    Blocks on the diagonal are inverted, then pairs of them joined, and so on: a few
    products in place of C dependent steps, as exact as substitution.
    """
    size = matrix.shape[-1]
    rows, columns = jnp.arange(size)[:, None], jnp.arange(size)
    inverse = jnp.eye(size, dtype=matrix.dtype)
    block = 1
    while block < size:
        left = columns // block
        below = (rows // block == left + 1) & (left % 2 == 0)
        between = jnp.where(below, matrix, 0.0)
        inverse = inverse - _dot(inverse, _dot(between, inverse))
        block *= 2
    return inverse


def _overlap(rows, columns, fade):
    """Dot products ``[B, H, C, C]`` of faded rows with columns."""
    if fade.shape[-1] == 1:
        return _dot(rows, jnp.swapaxes(columns, 2, 3)) * fade[..., 0]
    return jnp.sum(rows[:, :, :, None] * fade * columns[:, :, None], axis=-1)


def _dot(a, b):
    return jnp.matmul(a, b, precision=_EXACT)


def _unit(x):
    """``x`` with length one over its last axis."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _NORM_EPS)
