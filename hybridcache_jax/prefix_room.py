"""The room of a ``PrefixCache``: what is evicted, moved out and loaded again."""

from collections.abc import Sequence

from hybridcache_jax import eviction
from hybridcache_jax._whole import whole
from hybridcache_jax.codes import Verdict
from hybridcache_jax.deadlines import deadline_at
from hybridcache_jax.forms import Form
from hybridcache_jax.host_facts import snapshot
from hybridcache_jax.observe.declarations import Why
from hybridcache_jax.offload.loads import LOAD_TICKS, Load, LoadReport
from hybridcache_jax.prefix_parts import PrefixParts
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.state import NEVER, HybridCache
from hybridcache_jax.upkeep import ANYWHERE


class RoomMethods(PrefixParts):
    """Memory that stored prefixes give up and get back."""

    def make_room(
        self,
        cache: HybridCache,
        blocks: Sequence[int],
        *,
        ahead: Sequence[int] | None = None,
    ) -> HybridCache:
        """Evicts stored blocks until so many are free, as far as that is possible.

        Every claim is looked at, so this takes time with the number of stored prefixes,
        and as long for many blocks as for one.

        Args:
          cache: the cache.
          blocks: per pool, free blocks wanted; nothing is evicted while they are there.
          ahead: per pool, free blocks to go on to where something is evicted, so that
            the next steps find theirs; None for ``blocks``.

        Raises:
          ValueError: for another number of pools than the plan has.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        goal = blocks if ahead is None else ahead
        for each in (blocks, goal):
            if len(each) != len(self.plan.blocks):
                raise ValueError(
                    f"make_room takes free blocks for each of {len(self.plan.blocks)} "
                    f"pools, got {len(each)} numbers; give 0 where none are wanted."
                )
        wanted, goal = (
            [whole("A number of blocks", n, most=2**63 - 1) for n in each]
            for each in (blocks, goal)
        )
        self._line.require_newest(cache)
        after = self._upkeep.make_room(cache, wanted, goal)
        return cache if after is cache else self._line.stamped(after)

    def evict(self, cache: HybridCache, form: Form) -> HybridCache:
        """Evicts every stored block of one form that nobody has pinned.

        Args:
          cache: the cache.
          form: which; nothing goes for a form that no pool holds.

        Raises:
          ValueError: for what is no :class:`Form`.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        if not isinstance(form, Form):
            raise ValueError(
                f"{form!r} is no form; expected one of hybridcache_jax.Form, such as "
                "Form.FULL_KV."
            )
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
        unused, then the highest position.  What a row has pinned or a load protects
        stays.  Dead weight is no part of the bytes: it goes besides.

        Args:
          cache: the cache.
          nbytes: bytes of stored blocks to give up.

        Raises:
          ValueError: for what is no whole number of bytes, 0 at least.
        """
        nbytes = whole("nbytes", nbytes, most=2**63 - 1)
        self._line.require_newest(cache)
        after = self._upkeep.without_dead_weight(cache)
        self._watch.lost(cache, after)
        tables = snapshot(after.tables)
        pools = self.plan.spec.pools
        sizes = [self.plan.block_bytes(number) for number in range(len(pools))]
        counts = eviction.cheapest(
            pools, tables, self._upkeep.protected(after), sizes, nbytes
        )
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

    def load(
        self, cache: HybridCache, plan: ResumePlan, *, deadline: int | None = None
    ) -> Load:
        """Asks for the blocks that a plan waits for; :meth:`poll` brings them.

        What the plan needs on the device is not evicted from here on, until the plan
        that follows is acquired, the load is given up, or its deadline passes.  In the
        scope ``request`` a lease on any plan of the request ends all its loads that
        have come; in wider scopes, where requests are not told apart, a lease ends the
        one that is closest to its plan.

        Args:
          cache: the cache of this moment.
          plan: from :meth:`match`, with the verdict NEEDS_IO.
          deadline: ticks of ``cache.clock`` after which it is over: given up if it has
            not come; if it has, its blocks stay stored and may be evicted.  None for
            ``loads.LOAD_TICKS`` (4096), so that nothing is protected for ever by a
            request that is gone.

        Returns:
          A receipt, for :meth:`cancel` and to know its reports.

        Raises:
          ValueError: for a plan of another verdict, or a deadline below 1 or beyond the
            clock's end.
          LeaseError: for a plan that another ``PrefixCache`` made, or whose producer's
            scope changed since it was matched.
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        self._line.require_own(plan)
        if plan.verdict != Verdict.NEEDS_IO or self._outer is None:
            raise ValueError(
                f"Only a plan with the verdict NEEDS_IO has something to load, this "
                f"one is {plan.verdict.name}."
            )
        self._require_scope(plan)
        if deadline is None:
            due = min(int(cache.clock) + LOAD_TICKS, NEVER)
        else:
            due = deadline_at(cache, deadline)
        since = self._load_times.now()
        load = self._outer.ask(plan, due)
        self._load_times.asked(load, since)
        return load

    def poll(self, cache: HybridCache) -> tuple[HybridCache, tuple[LoadReport, ...]]:
        """Takes every load as far as it goes, and saves a step further.

        Call it between steps.  One save at a time copies a batch of blocks for the
        store, at one call of eight, so that steps take little longer for it; at every
        one while more than eight saves wait, or after :meth:`flush` was called until
        none does.  See :attr:`saving`.

        A load is registered whole, in one update, after all of it was verified.  One of
        more than 32 MiB from a store comes a part at a time into blocks that nobody can
        read yet, for which room is made when the first of it was verified; if it ends
        before, they are free again.  ``LoadReport.left`` says how much is to come.
        Nothing else changes with a load that fails.

        A block that failed verification, or that the tier no longer has, is not counted
        on again; after any other error it may be.

        Args:
          cache: the cache; its memory is donated, go on from the one returned.

        Returns:
          The cache, and a report for every load that was on its way, or that is over
          because its deadline passed (``LAPSED`` if it had come) or its request ended
          (``CANCELLED``).

        Raises:
          StaleCacheError: if the cache is not the newest value of its line.
        """
        self._line.require_newest(cache)
        if self._outer is None:
            return cache, ()
        after, reports = self._outer.poll(cache, self._upkeep.make_room)
        if self._link is not None:
            now = self._upkeep.facts(after)
            self._link.step(after, lambda key: self._upkeep.holds(now, key, ANYWHERE))
        self.cost = self._load_times.learned(self.cost, reports)
        for report in reports:
            self._watch.reported(report)
        return cache if after is cache else self._line.stamped(after), reports

    def cancel(self, load: Load) -> None:
        """Gives a load up; what it brought already stays like any stored prefix."""
        if self._outer is not None:
            self._outer.cancel(load)
            self._load_times.cancelled(load)
