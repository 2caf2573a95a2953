"""Shadow runs: a sampled hit is computed again, and the two states are compared.

A verdict proves that nothing is missing and nothing changed hands.  That what is held
is what a cold run makes, only a cold run can show.  While a scope is being widened, a
share of the hits is therefore run again from the first token, and everything that
resuming requires is compared, entry by entry.

Equal means equal bits.  A model in floating point gives equal bits only for steps of
equal shape; where stored prefixes come of other shapes (larger batches, decode steps),
``ReusePolicy.shadow_tolerance`` says how far apart numbers may lie.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax import eviction
from hybridcache_jax import rows as rowlib
from hybridcache_jax._typing import AnyArray
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Status
from hybridcache_jax.errors import LeaseError
from hybridcache_jax.forms import required
from hybridcache_jax.lease import Lease
from hybridcache_jax.lineage import OnFacts
from hybridcache_jax.planes import Planes
from hybridcache_jax.spec import PoolSpec
from hybridcache_jax.state import HybridCache
from pallas_kernels.lanes import Lanes
from pallas_kernels.values import dequantise, from_storage


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two rows side by side, per pool; ``G`` pools."""

    equal: jax.Array  # [G] bool
    differing: jax.Array  # [G] int32, entries that differ, over all layers


@dataclasses.dataclass(frozen=True)
class ShadowReport:
    """A hit and its cold run side by side.

    Attributes:
      point: the resume point that both were compared at.
      differing: by name of the pool, how many entries of one layer each differ; pools
        that are equal are left out.
      lease: the row to go on from: the hit's, or the cold one if they differ, which is
        then a row like others.
    """

    point: int
    differing: Mapping[str, int]
    lease: Lease

    @property
    def equal(self) -> bool:
        """Whether the hit holds what the cold run made."""
        return not self.differing


def compare(
    cache: HybridCache,
    row: AnyArray,
    other: AnyArray,
    point: AnyArray,
    *,
    tolerance: float = 0.0,
) -> Comparison:
    """Everything that resuming two rows at one point requires, side by side.

    Counted are the entries of the positions that the forms require there
    (:func:`forms.required`), and no others.  One that a row does not have differs.

    Args:
      cache: the cache; both rows stand at ``point`` in it.
      row: ``[]`` int32, a live row.
      other: ``[]`` int32, another.
      point: ``[]`` int32, a resume point.
      tolerance: 0 compares bits, so that a NaN equals itself.  Above 0 the numbers that
        a model would read, in float32 with their scales applied, may lie so far apart.
    """
    at, counts = jnp.asarray(point), []
    for number, pool in enumerate(cache.plan.spec.pools):
        table = cache.rows.blocks[number]
        ids, others = table[row], table[other]
        block = rowlib.block_numbers(at[None], pool.block_tokens, ids.shape[0])[0]
        inside = jnp.arange(pool.block_entries, dtype=jnp.int32) * pool.entry_tokens
        first = block[:, None] * pool.block_tokens + inside
        lo, hi = required(pool.form, pool.geometry, at)
        needed = (first >= 0) & (first < hi) & (first + pool.entry_tokens > lo)
        count = cache.plan.blocks[number]
        there = (ids < count) & (others < count)
        memory = cache.pools[number]
        apart = _apart(
            pool, _entries(pool, memory, ids), _entries(pool, memory, others), tolerance
        )
        wrong = needed & (~there[:, None] | apart)
        counts.append(jnp.sum(wrong, dtype=jnp.int32))
    differing = jnp.stack(counts)
    return Comparison(equal=differing == 0, differing=differing)


def _entries(pool: PoolSpec, memory: Planes, ids: jax.Array) -> dict[str, jax.Array]:
    """Plane to ``[L, C, S, width]`` as stored; ids outside the pool give anything."""
    found = {}
    for plane in pool.entry.planes:
        blocks = memory[plane.name].at[:, ids]
        blocks = blocks.get(mode="clip", wrap_negative_indices=False)
        laid = Lanes.of(pool, plane)
        found[plane.name] = laid.values(blocks) if laid.holds(blocks) else blocks
    return found


def _apart(
    pool: PoolSpec,
    one: dict[str, jax.Array],
    other: dict[str, jax.Array],
    tolerance: float,
) -> jax.Array:
    """``[L, C, S]`` bool: which entries differ."""
    planes = pool.entry.planes
    if tolerance == 0:
        pairs = [(_bits(one[name]), _bits(other[name])) for name in one]
        return functools.reduce(
            jnp.logical_or, (jnp.any(a != b, axis=-1) for a, b in pairs)
        )
    sides = [
        {plane.name: from_storage(plane, side[plane.name]) for plane in planes}
        for side in (one, other)
    ]
    found = []
    for plane in planes:
        if plane.name in pool.entry.scale_planes:
            continue
        a, b = (dequantise(pool.entry, side, plane.name) for side in sides)
        near = (jnp.abs(a - b) <= tolerance) | (a == b) | (jnp.isnan(a) & jnp.isnan(b))
        found.append(jnp.any(~near, axis=(-2, -1)))
    return functools.reduce(jnp.logical_or, found)


def _bits(stored: jax.Array) -> jax.Array:
    width = 8 * stored.dtype.itemsize
    return jax.lax.bitcast_convert_type(stored, np.dtype(f"uint{width}"))


def set_aside(cache: HybridCache, row: AnyArray) -> HybridCache:
    """Quarantines every block that a row refers to.

    Other rows that refer to one become stale with their next step.  A block is free
    again once the last row has let go of it.

    Args:
      cache: the cache.
      row: ``[]`` int32, a row whose references hold.
    """
    tables = tuple(
        eviction.quarantine(table, blocks[row])
        for table, blocks in zip(cache.tables, cache.rows.blocks, strict=True)
    )
    return dataclasses.replace(cache, tables=tables)


class Shadow:
    """Compiled comparisons for caches of one plan."""

    def __init__(self, plan: CapacityPlan, tolerance: float):
        """Compiles nothing yet.

        Args:
          plan: the plan of the caches.
          tolerance: as :func:`compare` takes it.
        """
        self._plan, self._tolerance = plan, tolerance
        self._jitted = jax.jit(_examine, static_argnames="tolerance")
        self.set_aside = OnFacts(set_aside)

    def compared(self, cache: HybridCache, hit: Lease, cold: Lease) -> ShadowReport:
        """See :meth:`hybridcache_jax.PrefixCache.shadow_compare`."""
        point = hit.plan.length
        if point < 1 or cold.plan.length or hit.plan.identity != cold.plan.identity:
            raise ValueError(
                "A shadow run compares a hit with a cold run by the same producer; "
                "give the hit's lease, then one from cold_plan of the same prompt."
            )
        rows = np.array([hit.row, cold.row], np.int32)
        tickets = np.array([hit.ticket, cold.ticket], np.int32)
        status, lengths, same, found = jax.device_get(
            self._examine(cache, rows, tickets, point)
        )
        if (status != Status.OK).any():
            raise LeaseError(
                f"The leases on rows {rows.tolist()} do not both hold; nothing was "
                "compared. Release both, match and acquire again."
            )
        contents = [lease.plan.contents.before(point) for lease in (hit, cold)]
        if (lengths != point).any() or not same or contents[0] != contents[1]:
            raise ValueError(
                f"Rows {rows.tolist()} stand at {lengths.tolist()}; run the same "
                f"{point} tokens of the prompt on both, and nothing more."
            )
        counts = zip(self._plan.spec.pools, found.differing.tolist(), strict=True)
        found = {pool.name: n for pool, n in counts if n}
        return ShadowReport(point, found, _serving(cold, point) if found else hit)

    def warm_up(self, cache: HybridCache) -> None:
        """Compiles everything; what it gives is thrown away."""
        rows = np.zeros(2, np.int32)
        self._examine(cache, rows, rows, 0)
        self.set_aside(cache, np.int32(0))

    def _examine(self, cache: HybridCache, rows, tickets, point: int):
        # The function is the same for every plan, so that equal ones compile once.
        return self._jitted(
            cache, rows, tickets, np.int32(point), tolerance=self._tolerance
        )


def _serving(cold: Lease, point: int) -> Lease:
    """A cold run's lease, to go on from; what it ran so far was for the comparison."""
    if not cold.plan.shadow:
        return cold
    plan = dataclasses.replace(cold.plan, shadow=False, counted=point)
    return dataclasses.replace(cold, plan=plan)


def _examine(cache: HybridCache, rows, tickets, point, *, tolerance: float):
    """Statuses and lengths ``[2]``, whether the tokens are the same, the comparison."""
    log = cache.rows.tokens[rows]
    behind = jnp.arange(log.shape[1]) >= point
    return (
        rowlib.check(cache, rows, tickets),
        cache.rows.length[rows],
        jnp.all((log[0] == log[1]) | behind),
        compare(cache, rows[0], rows[1], point, tolerance=tolerance),
    )
