"""The leases of a ``PrefixCache``: acquire, publish, release, and those in doubt."""

import jax
import numpy as np
from jax.typing import ArrayLike

from hybridcache_jax import deadlines
from hybridcache_jax import lease as leaselib
from hybridcache_jax.codes import Reason, Status, Verdict
from hybridcache_jax.deadlines import Overdue
from hybridcache_jax.errors import LeaseError
from hybridcache_jax.host_facts import snapshot
from hybridcache_jax.lease import Lease, Receipt
from hybridcache_jax.lineage import facts_of
from hybridcache_jax.observe.declarations import Where
from hybridcache_jax.points import Point
from hybridcache_jax.prefix_parts import PrefixParts
from hybridcache_jax.publication import collect
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.logits import checked_logits
from hybridcache_jax.upkeep import ANYWHERE


class LeaseMethods(PrefixParts):
    """From a plan to a row, and from what a row ran to a stored prefix."""

    def acquire(
        self, cache: HybridCache, plan: ResumePlan, *, deadline: int | None = None
    ) -> tuple[HybridCache, Lease]:
        """Hands out a row under a plan: pins its blocks and checks them again.

        Args:
          cache: the cache of this moment; may be newer than the one matched.
          plan: from :meth:`match`.
          deadline: ticks of ``cache.clock``, one per step or other transition, after
            which :meth:`overdue` names the lease; None for never.

        Returns:
          The cache and a lease whose row stands at ``plan.start``.

        Raises:
          ValueError: for a deadline below 1 or beyond the clock's end.
          LeaseError: if a block of the plan changed hands since or the producer's
            scope changed (match again), if the plan waits for I/O, or if another
            ``PrefixCache`` made it.
          NoRoomError: if every row is taken.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        self._line.require_own(plan)
        if plan.verdict == Verdict.NEEDS_IO:
            raise LeaseError(
                f"The plan resumes at {plan.length} only once its blocks are loaded; "
                "load them and match again."
            )
        if plan.length > 0:
            self._require_scope(plan)
        due = deadlines.deadline_at(cache, deadline)
        (row,) = leaselib.idle_rows(cache, 1)
        version = self._version(cache, plan.identity)
        self._at(Point.ACQUIRE_MATCHED)
        cache, status, ticket = self._admit(
            cache, leaselib.admission(self.plan, plan, row, version, due)
        )
        if int(status) != Status.OK:
            self._watch.stale(Where.ACQUIRE)
            raise LeaseError(
                "A block of this plan changed hands since it was matched; match again."
            )
        outer = 0 if self._outer is None else self._outer.settle(plan)
        if self._link is not None and plan.length:
            tokens = plan.claims.tokens[: plan.length]
            self._link.used(plan.key, tokens, plan.contents)
        lease = Lease(row, int(ticket), plan)
        self._watch.acquired(cache, lease, outer)
        return self._line.stamped(cache), lease

    def publish(
        self, cache: HybridCache, lease: Lease, *, logits: ArrayLike | None = None
    ) -> HybridCache:
        """Stores what a row has run so far as a prefix that others may resume.

        Only whole blocks of whole grid units, only what was really run (the row's own
        token log says what), and nothing that a replay rebuilt below its resume point.
        Of bounded forms what the plan's retention policies keep: publish when the
        prompt has been run, and on release.
        Found by those whom the reuse scope of the row's plan names; nothing is stored
        if it has changed since, or names nobody.

        Args:
          cache: the cache after the step that ran the tokens.
          lease: the row.
          logits: ``[vocab]`` float32, bfloat16 or float16, those of the last position
            that was run.  The record in the store keeps them for ``stored_logits`` if
            the row stands at the end of a grid unit, and all of it is stored; nothing
            keeps them otherwise.

        Raises:
          ValueError: for a receipt that is no lease; for logits without a store, of
            another shape or dtype, or with NaN.
          LeaseError: if the lease no longer holds; nothing is published.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        leaselib.require_lease(lease)
        if logits is not None:
            if self._link is None:
                raise ValueError(
                    "Logits are kept in a store alone; make the PrefixCache with one, "
                    "or publish without them."
                )
            logits = checked_logits(logits)
        with self._index.provisional():
            published = self._publish(cache, lease, finished=False, logits=logits)
        if published is None:
            raise LeaseError(
                f"The lease on row {lease.row} no longer holds; nothing was published. "
                "Release it, then match and acquire again."
            )
        return self._line.stamped(published)

    def release(
        self, cache: HybridCache, lease: Receipt, *, publish: bool = True
    ) -> HybridCache:
        """Gives a row back; its blocks are freed unless a stored prefix holds them.

        A row that has gone stale is given back, too; it publishes nothing.

        Args:
          cache: the cache.
          lease: the receipt: a lease, or what :meth:`overdue` gave.
          publish: store what was run first, as a sequence that is finished; takes a
            lease.

        Raises:
          ValueError: for a receipt that is no lease, if it is to publish.
          LeaseError: if the receipt is not the row's own; nothing changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        own = leaselib.require_lease(lease) if publish else None
        with self._index.provisional():
            if own is not None:
                published = self._publish(cache, own, finished=True)
                cache = cache if published is None else published
                self._at(Point.RELEASE_PUBLISHED)
            after, status = self._release(cache, lease.row, lease.ticket)
        if int(status) != Status.OK:
            raise LeaseError(
                f"Row {lease.row} is not held by ticket {lease.ticket}; a lease is "
                "released once, by its own receipt."
            )
        self._watch.released(cache, after, lease)
        return self._line.stamped(after)

    def overdue(self, cache: HybridCache) -> tuple[Overdue, ...]:
        """Leases that outlived their deadline, with the memory that they keep.

        An alarm: nothing is let go, for a step may still read those blocks.  It ends
        when the lease is renewed or released.  Whoever knows that the holder is gone
        releases the row by the record itself, ``publish=False``.

        Args:
          cache: the cache of this moment.

        Raises:
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        return deadlines.overdue(cache)

    def renew(
        self, cache: HybridCache, lease: Receipt, deadline: int | None
    ) -> HybridCache:
        """Sets another deadline for a lease, which counts from now on.

        Args:
          cache: the cache.
          lease: the receipt.
          deadline: ticks as in :meth:`acquire`; None for never.

        Raises:
          ValueError: for a deadline below 1 or beyond the clock's end.
          LeaseError: if the lease no longer holds; nothing changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        due = np.int32(deadlines.deadline_at(cache, deadline))
        cache, status = self._renew(
            cache, np.int32(lease.row), np.int32(lease.ticket), due
        )
        if int(status) != Status.OK:
            raise LeaseError(
                f"Row {lease.row} cannot be renewed: {Status.STALE.explanation}."
            )
        return self._line.stamped(cache)

    def _publish(
        self,
        cache: HybridCache,
        lease: Lease,
        *,
        finished: bool,
        logits: np.ndarray | None = None,
    ) -> HybridCache | None:
        """The cache with what the row offers; None if its lease no longer holds."""
        self._line.require_own(lease.plan)
        row, ticket = np.array([lease.row]), np.array([lease.ticket])
        status, view, log = jax.device_get(self._read(facts_of(cache), row, ticket))
        if status[0] != Status.OK:
            self._watch.stale(Where.PUBLISH)
            return None
        key, contents = lease.plan.key, lease.plan.contents
        if int(view.provenance[0]) > key.provenance:
            raise LeaseError(
                f"Row {lease.row} is approximate and its lease says exact; nothing was "
                "published. Publish it by the lease it was admitted with."
            )
        ids = log[0, : int(view.length[0])]
        ids = ids[: self._index.storable(ids, contents)]
        tables = snapshot(cache.tables)
        now = self._upkeep.facts(cache)
        here = self._upkeep.holds(now, key, (Reason.OK,))
        anywhere = self._upkeep.holds(now, key, ANYWHERE)
        offer = collect(
            self.plan, view, ids, lease.plan, tables, holds=anywhere, finished=finished
        )
        if offer is None or not self._rollout.holds(key):
            return cache
        self._index.insert(
            key, offer.tokens, offer.blocks, offer.epochs, here, contents
        )
        self._at(Point.PUBLISH_CLAIMED)
        accepted = self._index.lookup(key, offer.tokens, contents)
        after = self._keep(cache, *offer.marks(self.plan, accepted))
        if self._link is not None:
            whole = len(accepted.tokens) == int(view.length[0])
            logits = logits if whole else None
            self._link.published(key, accepted, contents, anywhere, logits)
        self._watch.stored(cache, after)
        return self._upkeep.within_index(after)
