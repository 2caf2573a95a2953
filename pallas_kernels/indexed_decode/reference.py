"""Plain XLA read of selected entries: one gather per query.

Time and memory follow the number of selected entries, whatever the context length.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.merge import Partial

# Gathered elements of the keys of one group of queries.
_ELEMENTS = 1 << 24


def selected_attention(
    query: jax.Array,
    load: Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    selected: jax.Array,
    *,
    entry_tokens: int,
    positions: jax.Array,
    since: jax.Array,
    end: jax.Array,
    score: Callable[[jax.Array, jax.Array], jax.Array],
) -> Partial:
    """Attention of each query over the entries selected for it.

    Args:
      query: ``[B, T, H, Q, D]``: KV heads ``H``, queries per KV head ``Q``.
      load: first positions ``[B, N]`` of entries to keys ``[B, N, H, D]``, values
        ``[B, N, H, Dv]``, and which entries have a block, ``[B, N]`` bool.
      selected: ``[B, T, G, K]`` int32 entry numbers, -1 for none; ``G`` is 1 or ``H``.
      entry_tokens: tokens that one entry stands for.
      positions: ``[B, T]`` int32, position of each query; it sees the entries whose
        last token lies at or before it.
      since: ``[B]`` int32, first position that counts.
      end: ``[B]`` int32, one past the last position written; 0 reads nothing.
      score: queries ``[N, 1, H, Q, D]`` and keys ``[N, K, H, D]`` to float32 scores
        ``[N, 1, H, Q, K]``.

    Returns:
      Partial, ``acc [B, T, H, Q, Dv]``.
    """
    batch, width, groups, count = selected.shape
    heads = query.shape[2]

    def one_query(query, selected, position):
        """``query [B, H, Q, D]``, ``selected [B, G, K]``, ``position [B]``."""
        first = selected * entry_tokens
        keys, values, there = load(first.reshape(batch, -1))
        last = first + entry_tokens - 1
        seen = there.reshape(first.shape) & (selected >= 0)
        seen = seen & (first >= since[:, None, None]) & (last < end[:, None, None])
        seen = seen & (last <= position[:, None, None])

        def per_head(rows):
            """``[B, G * K, H, D]`` to ``[B, H, K, D]``: its own group for each head."""
            rows = rows.reshape(batch, groups, count, heads, -1)
            if groups == 1:
                return jnp.moveaxis(rows[:, 0], 2, 1)
            return jnp.moveaxis(jnp.diagonal(rows, axis1=1, axis2=3), -1, 1)

        keys, values = per_head(keys), per_head(values)
        seen = jnp.broadcast_to(seen, (batch, heads, count)) if groups == 1 else seen
        # A zero weight does not silence NaN, so dead rows are replaced.
        keys = jnp.where(seen[..., None], keys, 0.0)
        values = jnp.where(seen[..., None], values.astype(jnp.float32), 0.0)
        flat = batch * heads
        scores = score(
            query.reshape(flat, 1, 1, *query.shape[2:]),
            keys.reshape(flat, count, 1, -1),
        ).reshape(batch, heads, -1, count)
        scores = jnp.where(seen[:, :, None], scores, -jnp.inf)
        m = jnp.max(scores, axis=-1)
        finite = jnp.where(jnp.isneginf(m), 0.0, m)
        weights = jnp.where(seen[:, :, None], jnp.exp(scores - finite[..., None]), 0.0)
        acc = jnp.einsum("bhqk,bhkd->bhqd", weights, values)
        return Partial(acc, m, jnp.sum(weights, axis=-1))

    per_query = batch * groups * count * heads * query.shape[-1]
    parts = jax.lax.map(
        lambda part: one_query(*part),
        jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (query, selected, positions)),
        batch_size=max(1, min(width, _ELEMENTS // max(1, per_query))),
    )
    return Partial(*(jnp.moveaxis(x, 0, 1) for x in parts))
