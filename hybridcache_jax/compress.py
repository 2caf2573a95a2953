"""Compression: raw rows wait in the tail until their block is complete.

An entry of ratio ``m`` pools the raw rows of tokens ``m*j .. m*j + m - 1``, with
overlap also those of the block before.  It is made in the step that runs the block's
last token, before that token attends, and is readable from that token on.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hybridcache_jax.append import Step, write
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.planes import Memory, Planes
from hybridcache_jax.pooling import Pooling
from hybridcache_jax.spec import Part
from pallas_kernels.gather import at_positions
from pallas_kernels.values import dequantise

RAW_OF = {Part.ENTRIES: Part.ENTRIES_RAW, Part.INDEX: Part.INDEX_RAW}


def compress(
    plan: CapacityPlan,
    pools: Memory,
    step: Step,
    layer: int,
    part: Part,
    pool: Pooling,
    raw: Planes,
    index: Callable[[Planes], Planes] | None = None,
) -> Memory:
    """Writes raw rows, and an entry for every block that they complete.

    Args:
      plan: sizes and spec.
      pools: memory.
      step: as ``append.begin`` settled it.
      layer: model layer; it owns the part.
      part: ``Part.ENTRIES`` or ``Part.INDEX``.
      pool: makes entries of raw rows, see :data:`pooling.Pooling`.
      raw: plane to ``[B, T, heads, dim]``.
      index: for index keys projected from the entry: entries to keys.

    Raises:
      ValueError: if the layer has no such part with raw rows, or planes do not fit.
    """
    spec = plan.spec
    entries, tail = spec.find(layer, part), spec.find(layer, RAW_OF[part])
    if entries is None or tail is None:
        raise ValueError(
            f"Layer {layer} keeps no raw rows of its {part.value}; append them with "
            "`append` (ratio 1), or declare a ratio above 1 with the layout of its raw "
            "rows."
        )
    number, place = tail
    memory = list(pools)
    memory[number] = write(
        spec.pools[number],
        memory[number],
        place,
        step.slots[number],
        step.positions,
        raw,
        plan.backend,
    )
    rows, valid, first, closes = _completed(plan, memory[number], step, number, place)
    made = pool(rows, valid, first)
    targets = [(entries, made)]
    if index is not None:
        keys = spec.find(layer, Part.INDEX)
        ratios = [
            spec.pools[found[0]].entry_tokens for found in (entries, keys) if found
        ]
        if keys is None or len(set(ratios)) > 1:
            raise ValueError(
                f"Layer {layer} cannot project index keys from its entries: it needs "
                f"both, of one ratio, got ratios {ratios}."
            )
        targets.append((keys, index(made)))
    for (number, place), planes in targets:
        blocks = _blocks_of(plan, step, number, first, closes)
        memory[number] = write(
            spec.pools[number],
            memory[number],
            place,
            blocks,
            first,
            planes,
            plan.backend,
        )
    return tuple(memory)


def _completed(plan: CapacityPlan, memory, step: Step, number: int, place: int):
    """Raw rows of the blocks that may complete in this step, and which do."""
    pool = plan.spec.pools[number]
    ratio, halo = pool.geometry.ratio, pool.geometry.halo
    count = -(-step.tokens.shape[1] // ratio)
    first = step.positions[:, :1] // ratio * ratio
    first = first + ratio * jnp.arange(count, dtype=jnp.int32)
    closes = first + ratio <= step.end[:, None]
    where = first[..., None] - halo + jnp.arange(halo + ratio, dtype=jnp.int32)
    loaded, there = at_positions(
        pool, memory, place, step.blocks[number], where, plan.blocks[number]
    )
    valid = there & closes[..., None] & (where >= step.since[:, number, None, None])
    rows = {}
    for plane in pool.entry.planes:
        if plane.name in pool.entry.scale_planes:
            continue
        value = dequantise(pool.entry, loaded, plane.name)
        # A zero weight does not silence NaN, so dead rows are replaced.
        rows[plane.name] = jnp.where(valid[..., None, None], value, 0.0)
    return rows, valid, first, closes


def _blocks_of(plan: CapacityPlan, step: Step, number: int, first, closes) -> jax.Array:
    """``[B, K]`` block that each new entry is written to; past the end for none."""
    pool, blocks = plan.spec.pools[number], step.blocks[number]
    column = first // pool.block_tokens % blocks.shape[1]
    ids = jnp.take_along_axis(blocks, column, axis=1)
    fresh = closes & (first >= step.held[:, number, None])
    return jnp.where(fresh, ids, plan.blocks[number])
