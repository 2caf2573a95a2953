"""Keeping claims, blocks and the outer tier in step: what goes, and what goes with it.

Eviction in two phases; in between blocks may move to an outer tier, claims that can
never be resumed are dropped, and what nobody claims any more is freed as dead weight.
None of it stamps a cache as the newest: that is done once, when all has gone well.
"""

from collections.abc import Sequence

import jax
import numpy as np

from hybridcache_jax import eviction
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import Holds
from hybridcache_jax.codes import Reason
from hybridcache_jax.forms import RULES, Remedy
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.lineage import with_tables
from hybridcache_jax.observe.declarations import Why
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.outer import Outer
from hybridcache_jax.points import At, Point
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.state import HybridCache, StateTable
from hybridcache_jax.versions import Versions

# A claim that is true on the device or in an outer tier.
ANYWHERE = (Reason.OK, Reason.IN_OUTER_TIER)


class Upkeep:
    """Evicts, recovers and prunes for one ``PrefixCache``."""

    def __init__(
        self,
        plan: CapacityPlan,
        index: PrefixIndex,
        versions: Versions,
        outer: Outer | None,
        watch: Watch,
        at: At,
    ):
        """Compiles nothing yet.

        Args:
          plan: the plan of the caches.
          index: the claims.
          versions: numbers of identities in the facts.
          outer: where evicted blocks go, if anywhere.
          watch: counts what is lost.
          at: called with every point that is passed.
        """
        self._plan, self._index, self._versions = plan, index, versions
        self._outer, self._watch, self._at = outer, watch, at
        self._essential = tuple(
            number
            for number, pool in enumerate(plan.spec.pools)
            if RULES[pool.form].remedy is not Remedy.REPLAY
        )
        self._begin = jax.jit(eviction.begin)
        self._finish = jax.jit(eviction.finish)
        self._recover = jax.jit(eviction.recover)
        self._forget = jax.jit(_forget)

    def facts(self, cache: HybridCache) -> HostFacts:
        """What is true of blocks, and of places outside, at this moment."""
        tier = None if self._outer is None else self._outer.tier
        return HostFacts(self._plan.spec, cache.tables, tier)

    def holds(self, now: HostFacts, key: Key, good: tuple[Reason, ...]) -> Holds:
        """Which claims under a key hold: those of which one of ``good`` is true."""
        version = np.int32(self._versions.of(key.identity))

        def holds(number, ids, epochs, first):
            found = now.reasons(number, ids, epochs, version, first, key.provenance)
            return np.isin(found, good)

        return holds

    def protected(self, cache: HybridCache) -> tuple[np.ndarray, ...]:
        """Per pool, ``[P]`` bool: blocks that no eviction takes, whatever their age."""
        if self._outer is None:
            return tuple(np.zeros(count, bool) for count in self._plan.blocks)
        return self._outer.protected(int(cache.clock))

    def make_room(
        self,
        cache: HybridCache,
        blocks: Sequence[int],
        ahead: Sequence[int] | None = None,
    ) -> HybridCache:
        """See :meth:`hybridcache_jax.PrefixCache.make_room`."""

        def short(cache: HybridCache, of: Sequence[int]) -> list[int]:
            return [
                max(0, want - int(table.num_free))
                for want, table in zip(of, cache.tables, strict=True)
            ]

        if not any(short(cache, blocks)):
            return cache
        # What nobody can resume goes before anything that somebody can.
        after = self.without_dead_weight(cache)
        self._watch.lost(cache, after)
        if not any(short(after, blocks)):
            return after
        left = short(after, blocks if ahead is None else ahead)
        return self.evict(after, left, Why.ROOM)

    def evict(self, cache: HybridCache, counts: Sequence[int], why: Why) -> HybridCache:
        """Evicts up to so many blocks of each pool, in two phases.

        Args:
          cache: the cache.
          counts: per pool, blocks that shall go.
          why: for the metrics.
        """
        protected = self.protected(cache)
        begun = [
            self._begin(table, np.int32(min(count, len(kept))), kept)
            for table, count, kept in zip(cache.tables, counts, protected, strict=True)
        ]
        chosen = [ids for _, ids in begun]
        after = with_tables(cache, (table for table, _ in begun))
        self._at(Point.EVICTION_BEGUN)
        if self._outer is not None:
            self._outer.move_out(after, [np.asarray(ids) for ids in chosen])
            self._at(Point.EVICTION_COPIED)
        after = self.without_dead_weight(after)
        self._at(Point.EVICTION_FORGOTTEN)
        finished = map(self._finish, after.tables, chosen)
        after = with_tables(after, finished)
        self._watch.lost(cache, after, chosen, why)
        return after

    def recover(self, cache: HybridCache) -> HybridCache:
        """See :meth:`hybridcache_jax.PrefixCache.recover`."""
        after = with_tables(cache, map(self._recover, cache.tables))
        after = self.without_dead_weight(after)
        self._watch.lost(cache, after)
        return after

    def within_index(self, cache: HybridCache) -> HybridCache:
        """Drops the oldest claims where blocks do not bound how many there are."""
        outside = 0 if self._outer is None else self._outer.tier.tokens
        bound = self._plan.index_tokens + outside
        # What is approximate claims the exact blocks before it once more.
        marked = any(key.provenance for key in self._index.stored_keys())
        bounded = bool(self._essential) and not marked
        if bounded or self._index.stored_tokens <= bound:
            return cache
        now = self.facts(cache)
        self._index.shed(
            bound,
            # What lies outside has no age on the device, and goes first.
            lambda key: self.holds(now, key, (Reason.OK,)),
            [np.asarray(table.used) for table in cache.tables],
        )
        after = self.without_dead_weight(cache)
        self._watch.lost(cache, after)
        return after

    def without_dead_weight(self, cache: HybridCache) -> HybridCache:
        """Drops claims that can never be resumed, and what nobody claims any more."""
        now = self.facts(cache)

        def holds_for(key: Key) -> Holds:
            return self.holds(now, key, ANYWHERE)

        tables = []
        claimed = self._index.prune(holds_for, self._essential)
        for number, (table, ids) in enumerate(zip(cache.tables, claimed, strict=True)):
            named = np.zeros(self._plan.blocks[number], bool)
            named[ids[ids < len(named)]] = True
            coming = np.zeros(len(named), bool)
            if self._outer is not None:
                coming = self._outer.coming(number)
            tables.append(self._forget(table, named, coming))
            if self._outer is not None:
                self._outer.forget(number, ids)
        return with_tables(cache, tables)


def _forget(table: StateTable, claimed: jax.Array, coming: jax.Array) -> StateTable:
    """Frees what no claim of use names, and what no load fills any more."""
    return eviction.abandon(eviction.forget(table, claimed), coming)
