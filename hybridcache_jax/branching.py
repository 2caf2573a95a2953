"""Fork and rewind between steps: the checks, the copies and the new receipts."""

import dataclasses

import jax
import numpy as np

from hybridcache_jax import sequences
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Status
from hybridcache_jax.errors import LeaseError, NoRoomError
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.lease import Lease, idle_row
from hybridcache_jax.lineage import facts_of
from hybridcache_jax.state import HybridCache


class Branching:
    """Compiled transitions of sequences for caches of one plan."""

    def __init__(self, plan: CapacityPlan):
        """Compiles nothing yet."""
        self.plan = plan
        self.fork_facts = jax.jit(sequences.fork)
        self.rewind_facts = jax.jit(sequences.rewind)
        self.copy = jax.jit(sequences.copy_blocks, donate_argnums=0)

    def fork(self, cache: HybridCache, lease: Lease) -> tuple[HybridCache, Lease]:
        """See :meth:`hybridcache_jax.PrefixCache.fork`."""
        child = idle_row(cache)
        moved = self.fork_facts(facts_of(cache), *_receipt(lease), np.int32(child))
        _require(moved, lease, "forked")
        new = Lease(child, int(moved.ticket), lease.plan)
        return self._after(cache, moved), new

    def rewind(
        self, cache: HybridCache, lease: Lease, length: int
    ) -> tuple[HybridCache, Lease]:
        """See :meth:`hybridcache_jax.PrefixCache.rewind`."""
        if not 0 <= length <= self.plan.max_length:
            raise ValueError(_outside(cache, lease, length))
        moved = self.rewind_facts(facts_of(cache), *_receipt(lease), np.int32(length))
        if int(moved.status) == Status.TOO_LONG:
            raise ValueError(_outside(cache, lease, length))
        _require(moved, lease, f"rewound to {length}")
        # What is published from here on is the row's own from the cut on.
        kept = min(lease.plan.length, length - length % self.plan.spec.grid)
        plan = dataclasses.replace(
            lease.plan,
            length=kept,
            start=min(lease.plan.start, kept),
            contents=lease.plan.contents.before(length),
        )
        new = Lease(lease.row, int(moved.ticket), plan)
        return self._after(cache, moved), new

    def can_rewind(self, cache: HybridCache, lease: Lease, length: int) -> bool:
        """See :meth:`hybridcache_jax.PrefixCache.can_rewind`."""
        if not 0 <= length <= self.plan.max_length:
            return False
        moved = self.rewind_facts(facts_of(cache), *_receipt(lease), np.int32(length))
        return int(moved.status) in (Status.OK, Status.NO_ROOM)

    def can_rewind_after(self, cache: HybridCache, lease: Lease, tokens: int) -> bool:
        """See :meth:`hybridcache_jax.PrefixCache.can_rewind_after`."""
        length = int(cache.rows.length[lease.row])
        if not self.can_rewind(cache, lease, length):
            return False
        return tokens <= 0 or all(
            _stays(self.plan, number, length, tokens)
            for number, pool in enumerate(self.plan.spec.pools)
            if not RULES[pool.form].grows
        )

    def _after(self, cache: HybridCache, moved: sequences.Moved) -> HybridCache:
        """The cache with its memory, and in it the copies."""
        if (np.asarray(moved.targets) >= np.array(self.plan.blocks)).all():
            return dataclasses.replace(moved.cache, pools=cache.pools)
        pools = self.copy(cache.pools, moved.sources, moved.targets)
        return dataclasses.replace(moved.cache, pools=pools)


def _stays(plan: CapacityPlan, number: int, length: int, tokens: int) -> bool:
    """Whether steps of one token each, the last one refused, let go of nothing."""
    pool = plan.spec.pools[number]
    if RULES[pool.form].exact and length % pool.block_tokens:
        return length == 0
    lo, hi = required(pool.form, pool.geometry, length)
    if lo >= hi:
        return True
    last = plan.held_from(pool.form, length + tokens)
    behind, _ = required(pool.form, pool.geometry, last)
    return (lo // pool.block_tokens + 1) * pool.block_tokens > behind


def _outside(cache: HybridCache, lease: Lease, length: int) -> str:
    return (
        f"Row {lease.row} stands at {int(cache.rows.length[lease.row])} and cannot be "
        f"rewound to {length}."
    )


def _require(moved: sequences.Moved, lease: Lease, what: str) -> None:
    status = Status(int(moved.status))
    if status is Status.NO_ROOM:
        raise NoRoomError(f"Row {lease.row} cannot be {what}: {status.explanation}.")
    if status is not Status.OK:
        raise LeaseError(f"Row {lease.row} cannot be {what}: {status.explanation}.")


def _receipt(lease: Lease) -> tuple[np.int32, np.int32]:
    return np.int32(lease.row), np.int32(lease.ticket)
