"""Fork, reorder, rewind between steps: the checks, the copies and the new receipts."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from hybridcache_jax import sequences
from hybridcache_jax._whole import integer
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Status
from hybridcache_jax.errors import LeaseError, NoRoomError
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.lease import Lease, idle_rows, require_lease
from hybridcache_jax.lineage import facts_of
from hybridcache_jax.state import HybridCache


class Branching:
    """Compiled transitions of sequences for caches of one plan.

    Each is compiled for one row and for as many as the plan has; batches are padded.
    """

    def __init__(self, plan: CapacityPlan):
        """Compiles nothing yet."""
        self.plan = plan
        self.branch_facts = jax.jit(sequences.branch)
        self.rewind_facts = jax.jit(sequences.rewind)
        self.copy = jax.jit(sequences.copy_blocks, donate_argnums=0)

    def fork(self, cache: HybridCache, lease: Lease) -> tuple[HybridCache, Lease]:
        """See :meth:`hybridcache_jax.PrefixCache.fork`."""
        (child,) = idle_rows(cache, 1)
        cache, (new,) = self._branched(cache, [lease], [], [0], [child], size=1)
        return cache, new

    def reorder(
        self, cache: HybridCache, leases: Sequence[Lease], parents: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """See :meth:`hybridcache_jax.PrefixCache.reorder`."""
        self._require_rows(leases)
        parents = [integer("A parent", parent) for parent in parents]
        for parent in parents:
            if not 0 <= parent < len(leases):
                raise ValueError(
                    f"Parent {parent} is none of the {len(leases)} leases; parents are "
                    "places among the leases, from 0."
                )
        first = [place == parents.index(p) for place, p in enumerate(parents)]
        dropped = sorted(set(range(len(leases))) - set(parents))
        more = [p for p, once in zip(parents, first, strict=True) if not once]
        freed = [leases[place].row for place in dropped][: len(more)]
        children = freed + idle_rows(cache, len(more) - len(freed))
        cache, new = self._branched(
            cache, leases, dropped, more, children, size=self.plan.max_sequences
        )
        made = iter(new)
        return cache, tuple(
            leases[parent] if once else next(made)
            for parent, once in zip(parents, first, strict=True)
        )

    def rewind(
        self, cache: HybridCache, lease: Lease, length: int
    ) -> tuple[HybridCache, Lease]:
        """See :meth:`hybridcache_jax.PrefixCache.rewind`."""
        cache, (lease,) = self._rewound(cache, [lease], [length], [True], size=1)
        return cache, lease

    def settle(
        self, cache: HybridCache, leases: Sequence[Lease], lengths: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """See :meth:`hybridcache_jax.PrefixCache.settle`."""
        self._require_rows(leases)
        if len(leases) != len(lengths):
            raise ValueError(
                f"{len(leases)} leases and {len(lengths)} lengths; give one length for "
                "each lease."
            )
        present = np.asarray(cache.rows.length)
        moves = [
            int(present[lease.row]) != length
            for lease, length in zip(leases, lengths, strict=True)
        ]
        size = self.plan.max_sequences
        return self._rewound(cache, leases, lengths, moves, size=size)

    def can_rewind(self, cache: HybridCache, lease: Lease, length: int) -> bool:
        """See :meth:`hybridcache_jax.PrefixCache.can_rewind`."""
        if not 0 <= integer("length", length) <= self.plan.max_length:
            return False
        moved = self._rewind_facts(cache, [lease], [length], [True], size=1)
        return int(moved.status[0]) in (Status.OK, Status.NO_ROOM)

    def can_rewind_after(self, cache: HybridCache, lease: Lease, tokens: int) -> bool:
        """See :meth:`hybridcache_jax.PrefixCache.can_rewind_after`."""
        tokens = integer("tokens", tokens)
        length = int(cache.rows.length[lease.row])
        if not self.can_rewind(cache, lease, length):
            return False
        return tokens <= 0 or all(
            _stays(self.plan, number, length, tokens)
            for number, pool in enumerate(self.plan.spec.pools)
            if not RULES[pool.form].grows
        )

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """Compiles everything by moving no row at all."""
        for size in (1, self.plan.max_sequences):
            self._branch_facts(cache, [], [], [], [], size)
            self._rewind_facts(cache, [], [], [], size)
        nothing = np.array(self.plan.blocks, np.int32)
        pools = self.copy(cache.pools, nothing, nothing)
        return dataclasses.replace(cache, pools=pools)

    def _branch_facts(
        self,
        cache: HybridCache,
        leases: Sequence[Lease],
        dropped: Sequence[int],
        parents: Sequence[int],
        children: Sequence[int],
        size: int,
    ) -> sequences.Moved:
        away = np.zeros(size, bool)
        away[list(dropped)] = True
        return self.branch_facts(
            facts_of(cache),
            *self._receipts(leases, size),
            away,
            _padded(parents, size, size),
            _padded(children, size, self.plan.max_sequences),
        )

    def _branched(
        self,
        cache: HybridCache,
        leases: Sequence[Lease],
        dropped: Sequence[int],
        parents: Sequence[int],
        children: Sequence[int],
        *,
        size: int,
    ) -> tuple[HybridCache, list[Lease]]:
        """The cache, and receipts of the new rows."""
        moved = self._branch_facts(cache, leases, dropped, parents, children, size)
        _require(moved, leases, ["forked"] * len(leases))
        tickets = np.asarray(moved.tickets).tolist()
        plans = [lease.plan for lease in leases]
        new = [
            # The prompt's rest counts once, in the first row.
            Lease(child, ticket, plans[parent].counted_to(plans[parent].num_tokens))
            for child, ticket, parent in zip(children, tickets, parents, strict=False)
        ]
        # Last: it donates the memory.
        return self._after(cache, moved), new

    def _rewind_facts(
        self,
        cache: HybridCache,
        leases: Sequence[Lease],
        lengths: Sequence[int],
        moves: Sequence[bool],
        size: int,
    ) -> sequences.Moved:
        return self.rewind_facts(
            facts_of(cache),
            *self._receipts(leases, size),
            _padded(lengths, size, 0),
            _padded(moves, size, 0).astype(bool),
        )

    def _rewound(
        self,
        cache: HybridCache,
        leases: Sequence[Lease],
        lengths: Sequence[int],
        moves: Sequence[bool],
        *,
        size: int,
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """The cache, and the receipts of the same rows."""
        for lease, length in zip(leases, lengths, strict=True):
            if not 0 <= integer("length", length) <= self.plan.max_length:
                raise ValueError(_outside(cache, lease, length))
        moved = self._rewind_facts(cache, leases, lengths, moves, size)
        status = np.asarray(moved.status).tolist()
        for lease, length, code in zip(leases, lengths, status, strict=False):
            if code == Status.TOO_LONG:
                raise ValueError(_outside(cache, lease, length))
        _require(moved, leases, [f"rewound to {length}" for length in lengths])
        tickets = np.asarray(moved.tickets).tolist()
        before = np.asarray(cache.rows.length)
        new = tuple(
            self._cut(lease, int(before[lease.row]), length, ticket)
            for lease, length, ticket in zip(leases, lengths, tickets, strict=False)
        )
        return self._after(cache, moved), new

    def _cut(self, lease: Lease, before: int, length: int, ticket: int) -> Lease:
        """The receipt of a row that was rewound, or the same one where it was not."""
        if ticket == lease.ticket:
            return lease
        # What is published from here on is the row's own from the cut on.
        kept = min(lease.plan.length, length - length % self.plan.spec.grid)
        plan = dataclasses.replace(
            lease.plan,
            length=kept,
            start=min(lease.plan.start, kept),
            kept=lease.plan.kept if lease.plan.start < kept else (),
            contents=lease.plan.contents.before(length),
        ).counted_to(before)
        return Lease(lease.row, ticket, plan)

    def _receipts(
        self, leases: Sequence[Lease], size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows and tickets, ``[size]`` int32, with padding behind."""
        for lease in leases:
            require_lease(lease)
        rows = [lease.row for lease in leases]
        tickets = [lease.ticket for lease in leases]
        return _padded(rows, size, self.plan.max_sequences), _padded(tickets, size, 0)

    def _require_rows(self, leases: Sequence[Lease]) -> None:
        rows = [lease.row for lease in leases]
        if len(set(rows)) < len(rows):
            raise ValueError(f"Rows {rows}: give the lease of each row once.")
        if any(not 0 <= row < self.plan.max_sequences for row in rows):
            raise LeaseError(
                f"Rows {rows}: the plan has {self.plan.max_sequences}; match and "
                "acquire again."
            )

    def _after(self, cache: HybridCache, moved: sequences.Moved) -> HybridCache:
        """The cache with its memory, and in it the copies."""
        pools = cache.pools
        sources, targets = np.asarray(moved.sources), np.asarray(moved.targets)
        for source, target in zip(sources, targets, strict=True):
            if (target < np.array(self.plan.blocks)).any():
                pools = self.copy(pools, source, target)
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


def _require(
    moved: sequences.Moved, leases: Sequence[Lease], what: Sequence[str]
) -> None:
    """Refuses the first row that cannot, and with it all of them."""
    codes = np.asarray(moved.status).tolist()
    for lease, aim, code in zip(leases, what, codes, strict=False):
        status = Status(code)
        kind = NoRoomError if status is Status.NO_ROOM else LeaseError
        if status is not Status.OK:
            raise kind(f"Row {lease.row} cannot be {aim}: {status.explanation}.")


def _padded(values: Sequence[int], size: int, fill: int) -> np.ndarray:
    array = np.full(size, fill, np.int32)
    array[: len(values)] = values
    return array
