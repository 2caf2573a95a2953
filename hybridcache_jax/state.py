"""The cache as a value: one frozen pytree.

Dimension letters: ``G`` pools, ``P`` blocks of a pool, ``L`` layers of a pool,
``S`` entries of a block, ``R`` rows (sequences), ``C`` columns of a row's block
table in a pool, ``N`` max_length.

Everything that changes is an array leaf, int32 where it counts; only the plan is
static.  A row refers to a block by a pair (id, epoch).  Ids that refer to nothing
are ``P``, one past the end: gathers fill, scatters drop, nothing wraps.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.planes import Memory, block_in_memory

NEVER = int(np.iinfo(np.int32).max)
"""A deadline that no clock passes: the clock stops there."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StateTable:
    """Facts about the blocks of one pool; changes with the memory it describes.

    Every transition of :mod:`hybridcache_jax.lifecycle` keeps these true: a block
    is on the free stack exactly when its stage is FREE; FREE blocks have no form,
    pins or keep mark, and are EXACT; ``epoch`` grows whenever a block is handed out or
    evicted.
    """

    stage: jax.Array  # [P] int32, codes.Stage
    form: jax.Array  # [P] int32, forms.Form; NONE while free
    version: jax.Array  # [P] int32, id of the identity that wrote it
    provenance: jax.Array  # [P] int32, codes.Provenance; EXACT while free
    epoch: jax.Array  # [P] int32
    pins: jax.Array  # [P] int32, rows that refer to it
    kept: jax.Array  # [P] bool, a stored prefix holds it
    first: jax.Array  # [P] int32, first token position; -1 while free
    used: jax.Array  # [P] int32, clock of the last pin or release
    free: jax.Array  # [P] int32, stack of free ids; the first `num_free` count
    num_free: jax.Array  # [] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowTable:
    """The sequences that are alive, one per row."""

    live: jax.Array  # [R] bool
    ticket: jax.Array  # [R] int32, grows whenever the row is handed out or let go
    version: jax.Array  # [R] int32, id of the identity that writes
    provenance: jax.Array  # [R] int32, codes.Provenance of what it writes
    length: jax.Array  # [R] int32, tokens consumed = next position to run
    since: jax.Array  # [R, G] int32, first position whose entries count
    held: jax.Array  # [R, G] int32, entries below were held at admission
    known: jax.Array  # [R] int32, ids below are in the log from admission on
    deadline: jax.Array  # [R] int32, clock after which the lease is overdue
    tokens: jax.Array  # [R, N] int32, ids of this row, at their positions
    blocks: tuple[jax.Array, ...]  # G times [R, C] int32, block ids
    epochs: tuple[jax.Array, ...]  # G times [R, C] int32, epoch of each reference


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HybridCache:
    """Memory, facts and sequences of one model's cache."""

    plan: CapacityPlan = dataclasses.field(metadata={"static": True})
    pools: Memory  # G times plane -> [L, P, S, width], or [L, P, rows, 128] in lanes
    tables: tuple[StateTable, ...]  # G times
    rows: RowTable
    clock: jax.Array  # [] int32, logical time, one tick per transition
    stamp: jax.Array  # [] int32, which change by a PrefixCache this value comes from


def tick(clock: jax.Array) -> jax.Array:
    """The next logical time.  It stops at the largest int32, and never goes back.

    Args:
      clock: ``[]`` int32.
    """
    return jnp.minimum(clock, NEVER - 1) + 1


# One program that fills all arrays, not one for each of their shapes.
@functools.partial(jax.jit, static_argnums=0)
def init(plan: CapacityPlan) -> HybridCache:
    """An empty cache.

    Args:
      plan: sizes, from :func:`hybridcache_jax.plan_capacity`.

    Returns:
      A cache whose blocks are all free and whose rows are all idle.
    """
    spec = plan.spec
    rows, groups = plan.max_sequences, len(spec.pools)
    pools = tuple(
        {
            plane.name: jnp.zeros((len(pool.layers), count, *block.shape), block.dtype)
            for plane in pool.entry.planes
            for block in [block_in_memory(pool, plane, plan.backend, plan.lanes)]
        }
        for pool, count in zip(spec.pools, plan.blocks, strict=True)
    )
    return HybridCache(
        plan=plan,
        pools=pools,
        tables=tuple(_empty_table(count) for count in plan.blocks),
        rows=RowTable(
            live=jnp.zeros(rows, bool),
            ticket=_zeros(rows),
            version=_zeros(rows),
            provenance=_zeros(rows),
            length=_zeros(rows),
            since=_zeros((rows, groups)),
            held=_zeros((rows, groups)),
            known=_zeros(rows),
            deadline=jnp.full(rows, NEVER, jnp.int32),
            tokens=_zeros((rows, plan.max_length)),
            blocks=tuple(
                jnp.full((rows, plan.columns(pool)), count, jnp.int32)
                for pool, count in enumerate(plan.blocks)
            ),
            epochs=tuple(_zeros((rows, plan.columns(pool))) for pool in range(groups)),
        ),
        clock=jnp.zeros((), jnp.int32),
        stamp=jnp.zeros((), jnp.int32),
    )


def _empty_table(count: int) -> StateTable:
    return StateTable(
        # As an int: of an enum the array would be of weak type, and steps compile anew.
        stage=jnp.full(count, int(Stage.FREE), jnp.int32),
        form=_zeros(count),
        version=_zeros(count),
        provenance=_zeros(count),
        epoch=_zeros(count),
        pins=_zeros(count),
        kept=jnp.zeros(count, bool),
        first=jnp.full(count, -1, jnp.int32),
        used=_zeros(count),
        # Popped from the end, so that a fresh pool hands out 0, 1, 2, ...
        free=jnp.arange(count - 1, -1, -1, dtype=jnp.int32),
        num_free=jnp.full((), count, jnp.int32),
    )


def _zeros(shape) -> jax.Array:
    return jnp.zeros(shape, jnp.int32)
