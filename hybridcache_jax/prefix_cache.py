"""PrefixCache: match, acquire, publish, release.

The façade over claims (host) and facts (in the cache).  The cache itself stays a
value: every method that changes it takes one and returns one, and only the newest
value of the line is accepted.  Methods are called between compiled steps, from one
thread.
"""

from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from hybridcache_jax import deadlines, eviction, lifecycle
from hybridcache_jax import lease as leaselib
from hybridcache_jax import rows as rowlib
from hybridcache_jax._typing import TokenIds
from hybridcache_jax.approximate import bounded, marked
from hybridcache_jax.branching import Branching
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Reason, Status, Verdict
from hybridcache_jax.contents import Contents, Span
from hybridcache_jax.cost import CostModel
from hybridcache_jax.deadlines import Overdue
from hybridcache_jax.errors import LeaseError
from hybridcache_jax.forms import Form
from hybridcache_jax.host_facts import HostFacts, snapshot
from hybridcache_jax.identity import Identity
from hybridcache_jax.lease import Lease, Receipt
from hybridcache_jax.lineage import Lineage, OnFacts, facts_of
from hybridcache_jax.matching import make_cold_plan, make_plan
from hybridcache_jax.observe.declarations import Where, Why
from hybridcache_jax.observe.metrics import Metrics
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.loads import Load, LoadReport
from hybridcache_jax.offload.outer import Outer
from hybridcache_jax.points import At, Point, pass_by
from hybridcache_jax.prefix_index import NOTHING, PrefixIndex
from hybridcache_jax.publication import collect
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Key, ReusePolicy, Rollout, Scope
from hybridcache_jax.state import HybridCache
from hybridcache_jax.tokens import token_array
from hybridcache_jax.upkeep import UNKNOWN, Upkeep


class PrefixCache:
    """Stored prefixes of one cache: claims, and the way from claim to lease.

    Attributes:
      plan: the plan of the caches it is used with.
      cost: rates by which :meth:`match` weighs waiting, replaying and recomputing.  Set
        it between calls when they were measured anew:
        ``prefixes.cost = prefixes.cost.after_run(tokens, seconds)``.
    """

    def __init__(
        self,
        plan: CapacityPlan,
        *,
        policy: ReusePolicy = ReusePolicy(),
        cost: CostModel = CostModel(),
        metrics: Metrics = Metrics(),
        placeholders: TokenIds = (),
        tier: HostTier | None = None,
        at: At = pass_by,
    ):
        """An empty store of prefixes.

        Args:
          plan: the plan of the caches it will be used with.
          policy: who may reuse what; by default a request only what it stored itself.
          cost: rates by which waiting, replaying and recomputing are compared.
          metrics: where to count what happens; by default nowhere.
          placeholders: token ids that stand for content.  A prompt that has one without
            saying which (``contents`` of :meth:`match`) is not reused from there on.
          tier: takes what is evicted, so that it can be loaded again; None to lose it.
          at: called with every point that is passed, to inject faults.
        """
        self.plan = plan
        self.cost = cost
        self._rollout = Rollout(policy)
        self._index = PrefixIndex(plan.spec, placeholders)
        self._versions: dict[Identity, int] = {}
        self._line = Lineage(plan)
        self._watch = Watch(plan, metrics)
        self._at = at
        self._outer = (
            None if tier is None else Outer(plan, tier, self._index, self._watch, at)
        )
        self._upkeep = Upkeep(
            plan, self._index, self._versions, self._outer, self._watch, at
        )
        self._admit = OnFacts(leaselib.admit)
        self._release = OnFacts(leaselib.release)
        self._renew = OnFacts(deadlines.renew)
        self._keep = OnFacts(leaselib.keep)
        self._read = jax.jit(rowlib.read)
        self._branching = Branching(plan)

    @property
    def stored_tokens(self) -> int:
        """Tokens that the index claims, shared parts counted once."""
        return self._index.stored_tokens

    def claims(self) -> Iterator[tuple[Key, int, np.ndarray, np.ndarray]]:
        """All claims, true or not, for audits.

        Yields:
          Key, number of the pool, ids ``[n]`` int32 and epochs ``[n]`` int32.
        """
        return self._index.claims()

    def scope(self, identity: Identity) -> Scope:
        """The reuse scope of a producer at this moment, whatever its namespace."""
        return self._rollout.scope(identity)

    def set_scope(self, identity: Identity, scope: Scope | str) -> None:
        """Widens or narrows the reuse of a producer, at once and in all namespaces.

        What it stored before is not found any more, its blocks go as dead weight when
        room is made.  Rows that are running go on and publish nothing.

        Args:
          identity: the producer; its namespace does not matter.
          scope: a :class:`Scope` or its name; nothing happens if it is the present one.

        Raises:
          ValueError: for a scope that does not exist.
        """
        producer = identity.within(None)
        if self._rollout.set_scope(producer, scope):
            self._index.drop(lambda key: key.identity.within(None) == producer)

    def end_request(self, plan: ResumePlan) -> None:
        """Takes back what only a request that is over could find.

        Its blocks go as dead weight when room is made; without it they would wait for
        their age.  In a wider scope nothing happens.

        Args:
          plan: any plan of the request.
        """
        if plan.key.scope == Scope.REQUEST:
            gone = (plan.key, marked(plan).key)
            self._index.drop(lambda key: key in gone)

    def match(
        self,
        cache: HybridCache,
        tokens: TokenIds,
        identity: Identity,
        *,
        request: str = "",
        session: str = "",
        contents: Iterable[Span] = (),
        approximate_replay: int | None = None,
    ) -> ResumePlan:
        """Says where a prompt can be resumed now.  Changes nothing.

        Args:
          cache: the cache of this moment.
          tokens: ``[n]`` token ids; an int32 array is used as it is.
          identity: who would read, and in which namespace.
          request: id of the request, for the scope ``request``.
          session: id of its session, for the scope ``session``.
          contents: ``(start, stop, content id)`` of the tokens that stand for content:
            equal prefixes have equal tokens and equal ids.  An id, bytes, str or int of
            any size, names everything that decides what its tokens leave: the picture,
            how it was resized, what encoded it.
          approximate_replay: allows a replay of so few tokens where the exact one is
            longer, and prefixes that came of such replays (:mod:`approximate`).  If it
            saves tokens the plan's ``provenance`` is ``APPROXIMATE``.

        Returns:
          The plan; hand it to :meth:`acquire`.

        Raises:
          ValueError: if the tokens are no flat sequence of int32 integers, or more
            than the plan's ``max_length``; if the contents are no disjoint spans of
            them; or for an approximate replay below 1.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        ids = token_array(tokens)
        if len(ids) > self.plan.max_length:
            raise ValueError(
                f"The prompt has {len(ids)} tokens, the plan allows "
                f"{self.plan.max_length}; shorten it or plan a larger max_length."
            )
        if approximate_replay is not None and approximate_replay < 1:
            raise ValueError(
                f"approximate_replay must be >= 1 token, got {approximate_replay}; "
                "None asks for exact plans only."
            )
        key = self._rollout.key(identity, request=request, session=session)
        facts, known = self._upkeep.facts(cache), Contents.of(contents, len(ids))
        plan = self._solved(facts, ids, key, known)
        if approximate_replay is not None:
            version = self._versions.get(key.identity, UNKNOWN)
            other = self._solved(facts, ids, marked(plan).key, known)
            shorter = (
                bounded(
                    self.plan.spec, facts, way, version, approximate_replay, self.cost
                )
                for way in (plan, other)
            )
            # The first of equals: the exact one.
            plan = max((plan, *shorter), key=lambda way: way.start)
        self._watch.matched(plan)
        return plan

    def _solved(
        self,
        facts: HostFacts,
        ids: np.ndarray,
        key: Key,
        contents: Contents,
    ) -> ResumePlan:
        return make_plan(
            self.plan.spec,
            facts,
            self._index,
            ids,
            key,
            self._versions.get(key.identity, UNKNOWN),
            self.cost,
            contents,
        )

    def cold_plan(
        self,
        tokens: TokenIds,
        identity: Identity,
        *,
        request: str = "",
        session: str = "",
        contents: Iterable[Span] = (),
    ) -> ResumePlan:
        """A plan that reuses nothing, for runs that must be cold.

        What such a row runs may be published like what others run.

        Args:
          tokens: ``[n]`` token ids.
          identity: who writes, and in which namespace.
          request: as for :meth:`match`.
          session: likewise.
          contents: likewise.

        Raises:
          ValueError: if the contents are no disjoint spans of the tokens.
        """
        key = self._rollout.key(identity, request=request, session=session)
        known = Contents.of(contents, len(tokens))
        return make_cold_plan(self.plan.spec, len(tokens), key, self.cost, known)

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
            scope changed (match again), or if the plan waits for I/O.
          NoRoomError: if every row is taken.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        if plan.verdict == Verdict.NEEDS_IO:
            raise LeaseError(
                f"The plan resumes at {plan.length} only once its blocks are loaded; "
                "load them and match again."
            )
        if plan.length > 0 and not self._rollout.holds(plan.key):
            raise LeaseError(
                "The reuse scope of this plan's producer changed since it was matched; "
                "match again."
            )
        due = deadlines.deadline_at(cache, deadline)
        (row,) = leaselib.idle_rows(cache, 1)
        version = self._version(plan.identity)
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
        lease = Lease(row, int(ticket), plan)
        self._watch.acquired(cache, lease, outer)
        return self._line.stamped(cache), lease

    def publish(self, cache: HybridCache, lease: Lease) -> HybridCache:
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

        Raises:
          LeaseError: if the lease no longer holds; nothing is published.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        return self._line.stamped(self._publish(cache, lease, finished=False))

    def _publish(
        self, cache: HybridCache, lease: Lease, *, finished: bool
    ) -> HybridCache:
        row, ticket = np.array([lease.row]), np.array([lease.ticket])
        status, view, log = jax.device_get(self._read(facts_of(cache), row, ticket))
        if status[0] != Status.OK:
            self._watch.stale(Where.PUBLISH)
            raise LeaseError(
                f"The lease on row {lease.row} no longer holds; nothing was published. "
                "Match and acquire again."
            )
        key, contents = lease.plan.key, lease.plan.contents
        if int(view.provenance[0]) > key.provenance:
            raise LeaseError(
                f"Row {lease.row} is approximate and its lease says exact; nothing was "
                "published. Publish it by the lease it was admitted with."
            )
        ids = log[0, : int(view.length[0])]
        ids = ids[: self._index.storable(ids, contents)]
        tables = snapshot(cache.tables)
        offer = collect(self.plan, view, ids, lease.plan, tables, finished=finished)
        if offer is None or not self._rollout.holds(key):
            return cache
        here = (Reason.OK,)
        holds = self._upkeep.holds(self._upkeep.facts(cache), key, here)
        self._index.insert(
            key, offer.tokens, offer.blocks, offer.epochs, holds, contents
        )
        self._at(Point.PUBLISH_CLAIMED)
        accepted = self._index.lookup(key, offer.tokens, contents)
        after = self._keep(cache, *offer.marks(self.plan, accepted))
        self._watch.stored(cache, after)
        return self._upkeep.within_index(after)

    def release(
        self, cache: HybridCache, lease: Receipt, *, publish: bool = True
    ) -> HybridCache:
        """Gives a row back; its blocks are freed unless a stored prefix holds them.

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
        if publish:
            if not isinstance(lease, Lease):
                raise ValueError(
                    f"The receipt of row {lease.row} does not say what may be stored; "
                    "release it with publish=False."
                )
            cache = self._publish(cache, lease, finished=True)
            self._at(Point.RELEASE_PUBLISHED)
        cache, status = self._release(cache, lease.row, lease.ticket)
        if int(status) != Status.OK:
            raise LeaseError(
                f"Row {lease.row} is not held by ticket {lease.ticket}; a lease is "
                "released once, by its own receipt."
            )
        self._watch.released(cache, lease)
        return self._line.stamped(cache)

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

    def load(
        self, cache: HybridCache, plan: ResumePlan, *, deadline: int | None = None
    ) -> Load:
        """Asks for the blocks that a plan waits for; :meth:`poll` brings them.

        What the plan needs on the device is not evicted from here on, until the plan
        that follows is acquired or the load is given up.

        Args:
          cache: the cache of this moment.
          plan: from :meth:`match`, with the verdict NEEDS_IO.
          deadline: ticks of ``cache.clock`` after which it is given up; None for never.

        Returns:
          A receipt, for :meth:`cancel` and to know its reports.

        Raises:
          ValueError: for a plan of another verdict.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        if plan.verdict != Verdict.NEEDS_IO or self._outer is None:
            raise ValueError(
                f"Only a plan with the verdict NEEDS_IO has something to load, this "
                f"one is {plan.verdict.name}."
            )
        last = None if deadline is None else int(cache.clock) + deadline
        return self._outer.ask(plan, last)

    def poll(self, cache: HybridCache) -> tuple[HybridCache, tuple[LoadReport, ...]]:
        """Takes every load as far as it goes.  Call it between steps.

        A load is registered whole, in one update, after all of it was verified; one
        that fails changes nothing and its blocks are not counted on again.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.

        Returns:
          The cache, and a report for every load that was on its way.

        Raises:
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        if self._outer is None:
            return cache, ()
        cache, reports = self._outer.poll(cache, self._upkeep.make_room)
        return self._line.stamped(cache), reports

    def cancel(self, load: Load) -> None:
        """Gives a load up; what it brought already stays like any stored prefix."""
        if self._outer is not None:
            self._outer.cancel(load)

    def fork(self, cache: HybridCache, lease: Lease) -> tuple[HybridCache, Lease]:
        """A second row that stands where the first does, and its receipt.

        Whole blocks are shared; only what is being written is copied.  What either
        row runs from here on is its own.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          lease: the row to fork; it stays valid.  Its deadline is the child's too.

        Raises:
          LeaseError: if the lease no longer holds.
          NoRoomError: if every row is taken, or a pool has no block for the copy.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, child = self._branching.fork(cache, lease)
        self._watch.granted(cache, child)
        return self._line.stamped(cache), child

    def rewind(
        self, cache: HybridCache, lease: Lease, length: int
    ) -> tuple[HybridCache, Lease]:
        """The row as it stood at an earlier length, and its new receipt.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          lease: the row; void afterwards.
          length: tokens that stay.

        Raises:
          ValueError: for a length below 0 or beyond the row's own.
          LeaseError: if the lease no longer holds, or a form no longer holds what
            resuming at ``length`` requires; nothing changes.
          NoRoomError: if a pool has no block for the copy of what is written again.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, new = self._branching.rewind(cache, lease, length)
        self._watch.reissued(lease, new)
        return self._line.stamped(cache), new

    def reorder(
        self, cache: HybridCache, leases: Sequence[Lease], parents: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """Rows of a beam search: place ``i`` goes on where ``parents[i]`` stood.

        A row with no place is released, unpublished, and serves the others.  A row
        goes on in its first place and keeps its receipt; nothing of it is copied.  In
        every further place it is forked.  There may be more places than leases, or
        fewer.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.
          leases: the rows, none twice.
          parents: for each new place, the place of its parent among the leases.

        Returns:
          The cache, and the receipts by new place.

        Raises:
          ValueError: for a parent that is no place, or a row that stands twice.
          LeaseError: if a lease no longer holds; nothing changes.
          NoRoomError: if rows, or free blocks of a pool, do not suffice for all;
            nothing changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, new = self._branching.reorder(cache, leases, parents)
        self._watch.reordered(cache, leases, new)
        return self._line.stamped(cache), new

    def select(
        self, cache: HybridCache, leases: Sequence[Lease], keep: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """Keeps some rows and releases the others, unpublished, in one transition.

        Args:
          cache: the cache.
          leases: the rows, none twice.
          keep: places among the leases, none twice.

        Returns:
          The cache, and the receipts that were kept, in the order of ``keep``.

        Raises:
          ValueError: for a place that is none or stands twice.
          LeaseError: if a lease no longer holds; nothing changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        if len(set(keep)) < len(keep):
            raise ValueError(f"Places {list(keep)}: keep each once, or reorder.")
        return self.reorder(cache, leases, keep)

    def settle(
        self, cache: HybridCache, leases: Sequence[Lease], lengths: Sequence[int]
    ) -> tuple[HybridCache, tuple[Lease, ...]]:
        """Ends a speculative round: each row keeps what was accepted of its drafts.

        A round asks first, runs ``k`` drafts of each row in one step, and settles::

            assert all(prefixes.can_rewind_after(cache, l, k) for l in leases)
            cache, logits = step(params, cache, batch_inputs(...))
            lengths = [n + accepted for n, accepted in zip(before, ...)]
            cache, leases = prefixes.settle(cache, leases, lengths)

        Args:
          cache: the cache after the step; its memory is donated, go on from the one
            returned.
          leases: the rows, none twice.
          lengths: tokens that stay of each row; those it has for a row that is left
            alone.

        Returns:
          The cache, and the receipts; a row that was left alone keeps its own.

        Raises:
          ValueError: for a length below 0 or beyond the row's own, or a row that
            stands twice.
          LeaseError: if a lease no longer holds, or a form no longer holds what
            resuming at the row's length requires; no row changes.
          NoRoomError: if a pool lacks blocks for the copies of what is written again;
            no row changes.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        cache, new = self._branching.settle(cache, leases, lengths)
        for old, lease in zip(leases, new, strict=True):
            self._watch.reissued(old, lease)
        return self._line.stamped(cache), new

    def can_rewind(self, cache: HybridCache, lease: Lease, length: int) -> bool:
        """Whether every form of a row still holds what resuming there requires.

        Args:
          cache: the cache of this moment.
          lease: the row.
          length: tokens that would stay; any integer.
        """
        self._line.require_newest(cache)
        return self._branching.can_rewind(cache, lease, length)

    def can_rewind_after(self, cache: HybridCache, lease: Lease, tokens: int) -> bool:
        """Whether the row could come back to where it stands after more tokens.

        True only if that holds however the tokens are cut into steps, and if one more
        step is refused.  What one step ran can be rewound until the next one begins,
        whatever is said here, but for recurrent states.

        Args:
          cache: the cache of this moment.
          lease: the row.
          tokens: how many would be run first.
        """
        self._line.require_newest(cache)
        return self._branching.can_rewind_after(cache, lease, tokens)

    def make_room(self, cache: HybridCache, blocks: Sequence[int]) -> HybridCache:
        """Evicts stored blocks until so many are free, as far as that is possible.

        Args:
          cache: the cache.
          blocks: per pool, free blocks wanted.
        """
        self._line.require_newest(cache)
        after = self._upkeep.make_room(cache, blocks)
        return cache if after is cache else self._line.stamped(after)

    def evict(self, cache: HybridCache, form: Form) -> HybridCache:
        """Evicts every stored block of one form that nobody has pinned."""
        self._line.require_newest(cache)
        counts = [
            count if pool.form == form else 0
            for pool, count in zip(self.plan.spec.pools, self.plan.blocks, strict=True)
        ]
        return self._line.stamped(self._upkeep.evict(cache, counts, Why.ASKED))

    def shrink(self, cache: HybridCache, nbytes: int) -> HybridCache:
        """Evicts stored blocks worth so many bytes, as far as that is possible.

        What is cheapest to get back goes first: windows and tails, which are replayed,
        before checkpoints, and those before the history; among equals the longest
        unused, then the highest position.  What a row has pinned stays.  Dead weight is
        no part of the bytes: it goes besides.

        Args:
          cache: the cache.
          nbytes: bytes of stored blocks to give up.

        Raises:
          ValueError: for a negative amount.
        """
        if nbytes < 0:
            raise ValueError(f"Bytes to give up cannot be negative, got {nbytes}.")
        self._line.require_newest(cache)
        after = self._upkeep.without_dead_weight(cache)
        self._watch.lost(cache, after)
        tables = snapshot(after.tables)
        counts = eviction.cheapest(self.plan.spec.pools, tables, nbytes)
        return self._line.stamped(self._upkeep.evict(after, counts, Why.ASKED))

    def recover(self, cache: HybridCache) -> HybridCache:
        """Settles what an interrupted eviction left behind.

        Blocks that were about to go stay if a claim names them, and become free if
        none does.  Nothing that a row reads is touched.

        Args:
          cache: the newest value that is at hand.

        Raises:
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        return self._line.stamped(self._upkeep.recover(cache))

    def warm_up(
        self, cache: HybridCache, identity: Identity, *, sequences: bool = False
    ) -> HybridCache:
        """Compiles the transitions of serving by acquiring and releasing a row once.

        Args:
          cache: a cache with an idle row.
          identity: any; nothing is stored.
          sequences: forks, reorderings, rewinds and rounds too, which otherwise
            compile when they are first used; the cache's memory is donated.

        Returns:
          A cache that holds what it held before.
        """
        nothing = tuple(
            np.full(self.plan.columns(number), NOTHING)
            for number in range(len(self.plan.blocks))
        )
        with self._watch.paused():
            cache, lease = self.acquire(cache, self.cold_plan([0], identity))
            if sequences:
                cache = self._line.stamped(self._branching.warm_up(cache))
            cache = self.publish(cache, lease)
            cache = self._keep(cache, nothing, nothing)
            cache = self.renew(cache, lease, None)
            cache = self.release(cache, lease, publish=False)
        return self.recover(self.evict(cache, Form.NONE))

    def account(self, cache: HybridCache) -> dict[str, dict[str, int]]:
        """Per pool, how many blocks are what; the parts add up to ``total``.

        The gauges of the metrics are set to the same.
        """
        accounts = {
            pool.name: {k: int(v) for k, v in lifecycle.account(table).items()}
            for pool, table in zip(
                self.plan.spec.pools, snapshot(cache.tables), strict=True
            )
        }
        self._watch.sampled(accounts, self._index)
        return accounts

    def _version(self, identity: Identity) -> int:
        return self._versions.setdefault(identity, len(self._versions) + 1)
