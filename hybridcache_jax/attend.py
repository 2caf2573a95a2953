"""Reading: one partial per form, one merge.

A layer's local keys and its entries (all visible ones, or those selected) each answer
with a partial ``(acc, m, l)``; sinks join in the merge, which divides once.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hybridcache_jax.append import Step
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.select import selection_of
from hybridcache_jax.spec import Part
from pallas_kernels.indexed_decode.api import selected_attention
from pallas_kernels.merge import Partial, merge
from pallas_kernels.paged_decode.api import paged_attention
from pallas_kernels.source import Source
from pallas_kernels.window_decode.api import window_attention


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
    options = {"scale": scale, "soft_cap": soft_cap}
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
        read = _read(plan, pools[found[0]], step, *found, grouped, selected, options)
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
    options: dict[str, float | None],
) -> Partial:
    """One pool's partial, ``acc [B, T, H, Q, D]``."""
    pool, blocks = plan.spec.pools[index], step.blocks[index]
    source = Source(memory, place, pool)
    common = {
        "positions": step.positions,
        "since": step.since[:, index],
        "end": step.end,
        **options,
    }
    if selected is not None:
        kernel = plan.kernel(index, "indexed_decode")
        return selected_attention(
            query, source, blocks, selected, **common, kernel=kernel
        )
    local = pool.geometry.local
    if local is None:
        kernel = plan.kernel(index, "paged_decode")
        return paged_attention(query, source, blocks, **common, kernel=kernel)
    return window_attention(
        query,
        source,
        blocks,
        first_visible=local.first_visible,
        reach=local.reach,
        **common,
        kernel=plan.kernel(index, "window_decode"),
    )
