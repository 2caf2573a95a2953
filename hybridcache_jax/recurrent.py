"""Recurrent state: one object folded over the whole prefix, exact at one position."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hybridcache_jax.append import Step, write
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.planes import Memory
from hybridcache_jax.spec import Part
from pallas_kernels.gather import at_positions
from pallas_kernels.values import dequantise


def read_state(
    plan: CapacityPlan, pools: Memory, step: Step, layer: int
) -> dict[str, jax.Array]:
    """The state before the step's first token.

    Args:
      plan: sizes and spec.
      pools: memory.
      step: as ``append.begin`` settled it.
      layer: model layer.

    Returns:
      Plane to ``[B, heads, dim]`` float32; zeros at position 0 and for rows that do
      not run.

    Raises:
      ValueError: if the layer has no recurrent state.
    """
    number, place = _find(plan, layer)
    pool = plan.spec.pools[number]
    before = step.positions[:, 0] - 1
    loaded, there = at_positions(
        pool, pools[number], place, step.blocks[number], before, plan.blocks[number]
    )
    there = there & (step.count > 0)
    return {
        plane.name: jnp.where(
            there[:, None, None], dequantise(pool.entry, loaded, plane.name), 0.0
        )
        for plane in pool.entry.planes
        if plane.name not in pool.entry.scale_planes
    }


def write_state(
    plan: CapacityPlan,
    pools: Memory,
    step: Step,
    layer: int,
    planes: Mapping[str, jax.Array],
) -> Memory:
    """Writes the state after the step's last token.

    Args:
      plan: sizes and spec.
      pools: memory.
      step: as ``append.begin`` settled it.
      layer: model layer.
      planes: plane to ``[B, heads, dim]``.

    Raises:
      ValueError: if the layer has no recurrent state, or planes do not fit.
    """
    number, place = _find(plan, layer)
    last = jnp.maximum(step.end - 1, 0)[:, None]
    offset = jnp.maximum(step.count - 1, 0)[:, None]
    memory = list(pools)
    memory[number] = write(
        plan.spec.pools[number],
        memory[number],
        place,
        jnp.take_along_axis(step.slots[number], offset, axis=1),
        last,
        {name: value[:, None] for name, value in planes.items()},
        plan.backend,
    )
    return tuple(memory)


def _find(plan: CapacityPlan, layer: int) -> tuple[int, int]:
    found = plan.spec.find(layer, Part.STATE)
    if found is None:
        raise ValueError(f"Layer {layer} declares no recurrent state.")
    return found
