"""Reading: one partial per form, one merge.

Each pool that a layer reads answers with a partial ``(acc, m, l)``; which read runs
follows from the form's retention rule and geometry, not from the model.
"""

import functools

import jax
import jax.numpy as jnp

from hybridcache_jax.append import Step
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.layers import named_dtype
from hybridcache_jax.spec import PoolSpec
from pallas_kernels.merge import Partial, merge
from pallas_kernels.paged_decode.reference import paged_attention
from pallas_kernels.window_decode.reference import window_attention


def attend(
    plan: CapacityPlan,
    pools: tuple[dict[str, jax.Array], ...],
    step: Step,
    layer: int,
    query: jax.Array,
    *,
    scale: float,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Attention of the step's queries over everything their layer keeps.

    Args:
      plan: sizes and spec.
      pools: memory; this step's entries have been written.
      step: as ``append.begin`` settled it.
      layer: model layer.
      query: ``[B, T, Hq, D]``, normed and rotated.  Query head ``h`` reads KV head
        ``h // (Hq // Hkv)``.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      sinks: ``[Hq]`` scores that enter the denominator only, or None.

    Returns:
      ``[B, T, Hq, Dv]`` float32.  Rows that do not run get zeros or less: the step
      masks what is made of them.

    Raises:
      ValueError: if the query heads are no multiple of the KV heads.
    """
    batch, width, query_heads, dim = query.shape
    parts = []
    for index, position in plan.spec.place(layer):
        pool = plan.spec.pools[index]
        kv_heads = pool.entry.planes[0].heads
        if query_heads % kv_heads:
            raise ValueError(
                f"Layer {layer}: {query_heads} query heads are no multiple of the "
                f"{kv_heads} KV heads that {pool.name} stores."
            )
        grouped = query.astype(jnp.float32).reshape(
            batch, width, kv_heads, query_heads // kv_heads, dim
        )
        part = _read(
            plan,
            pools[index],
            step,
            index,
            position,
            grouped,
            functools.partial(_scores, scale=scale, soft_cap=soft_cap),
        )
        parts.append(
            Partial(*(x.reshape(batch, width, query_heads, *x.shape[4:]) for x in part))
        )
    return merge(parts, sinks)


def _read(plan, memory, step, index, position, query, score) -> Partial:
    """One pool's partial, ``acc [B, T, H, Q, D]``."""
    pool = plan.spec.pools[index]
    load = functools.partial(_load, pool, memory, position)
    common = {
        "block_tokens": pool.block_tokens,
        "num_blocks": plan.blocks[index],
        "positions": step.positions,
        "since": step.since[:, index],
        "end": step.end,
        "score": score,
    }
    local = pool.geometry.local
    if local is None:
        return paged_attention(query, load, step.blocks[index], **common)
    return window_attention(
        query,
        load,
        step.blocks[index],
        first_visible=local.first_visible,
        reach=local.reach,
        **common,
    )


def _load(
    pool: PoolSpec, memory: dict[str, jax.Array], position: int, ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Keys and values of blocks ``[B, K]``, each ``[B, K * S, heads, dim]``."""
    loaded = []
    for plane in pool.entry.planes:
        stored = (
            memory[plane.name]
            .at[position, ids]
            .get(mode="clip", wrap_negative_indices=False)
        )
        value = jax.lax.bitcast_convert_type(stored, named_dtype(plane.dtype))
        loaded.append(value.reshape(ids.shape[0], -1, plane.heads, plane.dim))
    # An entry with one plane is its own value (shared keys and values).
    return loaded[0], loaded[-1]


def _scores(query, keys, *, scale, soft_cap) -> jax.Array:
    """``[B, T, H, Q, K]`` float32."""
    scores = scale * jnp.einsum(
        "bthqd,bkhd->bthqk",
        query,
        keys.astype(jnp.float32),
        preferred_element_type=jnp.float32,
    )
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
