"""Selection: which entries of the history each query reads.

The sparse indexer of DeepSeek-V3.2 and V4 (multi-head ReLU scores against one key per
entry), with the units, groups and always-visible parts of its relatives.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hybridcache_jax.append import Step
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.spec import Part
from pallas_kernels.indexer_scores.api import top_units
from pallas_kernels.source import Source


def select(
    plan: CapacityPlan,
    pools: tuple[dict[str, jax.Array], ...],
    step: Step,
    layer: int,
    query: jax.Array,
    weights: jax.Array,
    scale: float,
) -> jax.Array:
    """Ranks a layer's index keys for each query of the step.

    The score of a key is ``sum over h of weights[h] * relu(scale * query[h] . key)``,
    over the index heads of the group; a key that a query does not see yet has none.

    Args:
      plan: sizes and spec.
      pools: memory; this step's index keys have been written.
      step: as ``append.begin`` settled it.
      layer: model layer; it declares ``select``.
      query: ``[B, T, Hi, Di]``.
      weights: ``[B, T, Hi]``.
      scale: factor on the dot products.

    Returns:
      ``[B, T, G, k]`` int32 units, best first, -1 for unused places; ``G`` is 1, or
      the KV heads where each selects for itself.

    Raises:
      ValueError: if the layer selects nothing, or the heads do not fit its groups.
    """
    choice = plan.spec.layers[layer].select
    found = plan.spec.find(layer, Part.INDEX)
    if choice is None or found is None:
        raise ValueError(f"Layer {layer} declares no selection of its own.")
    number, place = found
    pool, groups = plan.spec.pools[number], _groups(plan, layer)
    if query.shape[2] % groups:
        raise ValueError(
            f"Layer {layer}: {query.shape[2]} index heads are no multiple of the "
            f"{groups} KV heads that select for themselves."
        )
    return top_units(
        query,
        weights,
        Source(pools[number], place, pool),
        step.blocks[number],
        scale=scale,
        groups=groups,
        k=choice.k,
        unit=choice.unit,
        local_units=choice.local_units,
        skip_open=choice.open_tail,
        positions=step.positions,
        since=step.since[:, number],
        end=step.end,
        kernel=plan.kernel(number, "indexer_scores"),
    )


def selection_of(
    plan: CapacityPlan, selections: Mapping[int, jax.Array], step: Step, layer: int
) -> jax.Array | None:
    """Entries that a layer's queries read; None where they read all they see.

    Args:
      plan: sizes and spec.
      selections: by layer, units chosen in this step.
      step: as ``append.begin`` settled it.
      layer: model layer.

    Returns:
      ``[B, T, G, N]`` int32 entry numbers, -1 for unused places.

    Raises:
      ValueError: if the layer reads a selection that was not made.
    """
    spec = plan.spec.layers[layer]
    owner = layer if spec.select_owner is None else spec.select_owner
    choice = plan.spec.layers[owner].select
    if choice is None:
        return None
    if owner not in selections:
        raise ValueError(
            f"Layer {layer} reads the selection of layer {owner}, which was not made "
            f"in this step; call `select` for layer {owner} before it attends."
        )
    units = selections[owner]
    if choice.open_tail:
        units = jnp.concatenate([units, _open_unit(step, units, choice.unit)], axis=-1)
    found = plan.spec.find(layer, Part.ENTRIES)
    if found is None:
        return None
    per_unit = choice.unit // plan.spec.pools[found[0]].entry_tokens
    entries = units[..., None] * per_unit + jnp.arange(per_unit, dtype=jnp.int32)
    entries = jnp.where(units[..., None] >= 0, entries, -1)
    return entries.reshape(*units.shape[:3], -1)


def _open_unit(step: Step, units: jax.Array, unit: int) -> jax.Array:
    """``[B, T, G, 1]``: the unit that holds the query, if it is not complete."""
    own = jnp.where((step.positions + 1) % unit != 0, step.positions // unit, -1)
    return jnp.broadcast_to(own[..., None, None], (*units.shape[:3], 1))


def _groups(plan: CapacityPlan, layer: int) -> int:
    choice = plan.spec.layers[layer].select
    found = plan.spec.find(layer, Part.ENTRIES)
    if choice is None or found is None or choice.per == "query":
        return 1
    return plan.spec.pools[found[0]].entry.key_planes[0].heads
