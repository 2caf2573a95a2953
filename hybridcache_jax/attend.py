"""Reading: one partial per form, one merge.

A layer's local keys and its entries (all visible ones, or those selected) each answer
with a partial ``(acc, m, l)``; sinks join in the merge, which divides once.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hybridcache_jax.append import Step
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.gather import at_positions, whole_blocks
from hybridcache_jax.planes import keys_and_values
from hybridcache_jax.select import selection_of
from hybridcache_jax.spec import Part
from pallas_kernels.indexed_decode.reference import selected_attention
from pallas_kernels.merge import Partial, merge
from pallas_kernels.paged_decode.reference import paged_attention
from pallas_kernels.window_decode.reference import window_attention


def attend(
    plan: CapacityPlan,
    pools: tuple[dict[str, jax.Array], ...],
    step: Step,
    selections: Mapping[int, jax.Array],
    layer: int,
    query: jax.Array,
    *,
    scale: float,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Attention of the step's queries over everything their layer sees.

    Args:
      plan: sizes and spec.
      pools: memory; this step's entries have been written.
      step: as ``append.begin`` settled it.
      selections: by layer, what ``select.select`` chose in this step.
      layer: model layer.
      query: ``[B, T, Hq, D]``, normed and rotated.  Query head ``h`` reads KV head
        ``h // (Hq // Hkv)``.
      scale: factor on the scores.
      soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for none.
      sinks: ``[Hq]`` scores that enter the denominator only, or None.

    Returns:
      ``[B, T, Hq, Dv]`` float32.  Rows that do not run get zeros or less:
      ``StepView.only_ok`` masks what is made of them.

    Raises:
      ValueError: if the query heads are no multiple of the KV heads, if the layer has
        nothing to attend to, or selects and nothing was selected.
    """
    batch, width, query_heads, dim = query.shape
    score = functools.partial(_scores, scale=scale, soft_cap=soft_cap)
    parts = []
    for part in (Part.LOCAL, Part.ENTRIES):
        found = plan.spec.find(layer, part)
        if found is None:
            continue
        pool = plan.spec.pools[found[0]]
        kv_heads = pool.entry.key_planes[0].heads
        if query_heads % kv_heads:
            raise ValueError(
                f"Layer {layer}: {query_heads} query heads are no multiple of the "
                f"{kv_heads} KV heads that {pool.name} stores."
            )
        grouped = query.astype(jnp.float32).reshape(
            batch, width, kv_heads, query_heads // kv_heads, dim
        )
        selected = None
        if part is Part.ENTRIES:
            selected = selection_of(plan, selections, step, layer)
        read = _read(plan, pools[found[0]], step, *found, grouped, selected, score)
        parts.append(
            Partial(*(x.reshape(batch, width, query_heads, *x.shape[4:]) for x in read))
        )
    if not parts:
        raise ValueError(f"Layer {layer} keeps nothing that attention could read.")
    return merge(parts, sinks)


def _read(
    plan: CapacityPlan,
    memory: dict[str, jax.Array],
    step: Step,
    index: int,
    place: int,
    query: jax.Array,
    selected: jax.Array | None,
    score,
) -> Partial:
    """One pool's partial, ``acc [B, T, H, Q, D]``."""
    pool, blocks = plan.spec.pools[index], step.blocks[index]
    common = {
        "positions": step.positions,
        "since": step.since[:, index],
        "end": step.end,
        "score": score,
    }

    def by_position(first):
        loaded, there = at_positions(
            pool, memory, place, blocks, first, plan.blocks[index]
        )
        return *keys_and_values(pool.entry, loaded), there

    def by_block(ids):
        return keys_and_values(pool.entry, whole_blocks(pool, memory, place, ids))

    if selected is not None:
        return selected_attention(
            query, by_position, selected, entry_tokens=pool.entry_tokens, **common
        )
    paged = {
        **common,
        "block_tokens": pool.block_tokens,
        "num_blocks": plan.blocks[index],
    }
    local = pool.geometry.local
    if local is None:
        return paged_attention(
            query, by_block, blocks, entry_tokens=pool.entry_tokens, **paged
        )
    return window_attention(
        query,
        by_block,
        blocks,
        first_visible=local.first_visible,
        reach=local.reach,
        **paged,
    )


def _scores(query, keys, *, scale, soft_cap) -> jax.Array:
    """``[B, T, H, Q, K]`` float32."""
    scores = scale * jnp.einsum(
        "bthqd,bkhd->bthqk",
        query,
        keys.astype(jnp.float32),
        preferred_element_type=jnp.float32,
    )
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
