"""The outer tier of one ``PrefixCache``: what is asked back from it, between steps.

A load verifies every block before anything of it can be read: its blocks are sealed and
claimed in one update, when all of them are good, or not at all.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.lease import admission
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.loads import (
    Load,
    LoadReport,
    Pending,
    settled,
)
from hybridcache_jax.offload.moves_out import MovesOut
from hybridcache_jax.offload.placing import Placing
from hybridcache_jax.offload.staging import Staging
from hybridcache_jax.offload.transfer import Transfer
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.points import At, Point
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Key
from hybridcache_jax.state import HybridCache

MakeRoom = Callable[[HybridCache, Sequence[int]], HybridCache]


class Outer:
    """Moves blocks between one line of caches and one tier.

    Attributes:
      evictions: how often blocks were to move out.
    """

    def __init__(
        self,
        plan: CapacityPlan,
        tier: HostTier,
        index: PrefixIndex,
        watch: Watch,
        at: At,
    ):
        """Nothing is pending.

        Args:
          plan: the plan of the caches.
          tier: where blocks go.
          index: its claims follow the blocks.
          watch: counts what moves.
          at: called with every point that is passed.

        Raises:
          ValueError: for a tier of another plan or another ``PrefixCache``, or a plan
            without staging blocks.
        """
        if tier.plan != plan:
            raise ValueError(
                "The tier was made for another plan than this PrefixCache; make it "
                "with the same one."
            )
        if plan.staging_blocks < 1:
            raise ValueError(
                "A cache with an outer tier needs memory to copy through; plan it with "
                "plan_capacity(staging_blocks=16)."
            )
        if tier.taken:
            raise ValueError(
                "The tier serves another PrefixCache, whose claims name its places; "
                "make one tier for each."
            )
        tier.taken = True
        self.plan, self.tier, self.index = plan, tier, index
        self._transfer = Transfer(plan)
        self.whereabouts = Whereabouts(plan, tier, self._transfer)
        self._moves_out = MovesOut(
            plan, tier, index, watch, self._transfer, self.whereabouts
        )
        self._pending: dict[int, Pending] = {}
        self.staging = Staging(plan, tier, at)
        self._placing = Placing(
            tier, index, self.staging, self._transfer, self.whereabouts, watch, at
        )
        # Whether blocks on the device may be a load's that is over.
        self._abandoned = False
        self._watch, self._at = watch, at
        self._asked = 0
        self.evictions = 0

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """See :meth:`Transfer.warm_up`; nothing moves."""
        return self._transfer.warm_up(cache)

    def move_out(self, cache: HybridCache, begun: Sequence[np.ndarray]) -> None:
        """See :meth:`MovesOut.move_out`."""
        self.evictions += 1
        now = int(cache.clock)
        self._moves_out.move_out(
            cache, begun, lambda pool: self.needed_places(pool, now)
        )

    def ask(self, plan: ResumePlan, deadline: int) -> Load:
        """Asks for what a plan needs from the tier; what lies in a store sets out.

        Args:
          plan: a plan whose verdict is NEEDS_IO.
          deadline: logical time from which on it is over.
        """
        load = Load(self._asked, plan, deadline)
        self._asked += 1
        wanted = admission(self.plan, plan, 0, 0, 0)
        pending = Pending(load, [], [], [])
        for pool, count in enumerate(self.plan.blocks):
            ids, epochs = (np.asarray(x[pool]) for x in (wanted.blocks, wanted.epochs))
            away, here = ids > count, ids < count
            places = self.whereabouts.places(pool, ids[away])
            # Looked up by at every poll, and so of the type that indexes have.
            pending.places.append(places.astype(np.intp))
            pending.epochs.append(epochs[away])
            pending.keep.append(ids[here])
        self._pending[load.number] = pending
        self.staging.set_out(pending)
        return load

    def cancel(self, load: Load) -> None:
        """Gives a load up, or lets go of what it brought; unknown ones are ignored."""
        self._pending.pop(load.number, None)
        self._release()
        self.staging.tidy(self._waiting())

    def give_up(self, dropped: Callable[[Key], bool]) -> None:
        """Ends the loads for claims that were dropped; the next poll says so.

        Args:
          dropped: whether the claims under a key were.
        """
        for pending in self._pending.values():
            pending.cancelled |= dropped(pending.load.plan.key)

    def settle(self, plan: ResumePlan) -> int:
        """Lets go of registered loads that are over now that ``plan`` has a lease.

        Returns:
          Tokens below ``plan.start`` of which something had to be loaded.
        """
        loaded = np.zeros(plan.start, bool)
        for pending in settled(plan, self._pending.values()):
            load = self._pending.pop(pending.load.number).load
            for pool, blocks in zip(self.plan.spec.pools, load.plan.loads, strict=True):
                for block in blocks.tolist():
                    start = block * pool.block_tokens
                    loaded[start : start + pool.block_tokens] = True
        return int(loaded.sum())

    def protected(self, now: int) -> tuple[np.ndarray, ...]:
        """Per pool, ``[P]`` bool: blocks that a load needs which is not over.

        Args:
          now: the cache's clock.
        """
        masks = tuple(np.zeros(count, bool) for count in self.plan.blocks)
        for pending in self._pending.values():
            if pending.over(now):
                continue
            for mask, ids in zip(masks, pending.keep, strict=True):
                mask[ids] = True
        return masks

    def poll(
        self, cache: HybridCache, make_room: MakeRoom
    ) -> tuple[HybridCache, tuple[LoadReport, ...]]:
        """Takes every load as far as it goes.

        Args:
          cache: the cache; its memory is donated where a load is registered.
          make_room: evicts stored blocks until so many are free per pool, if it can.

        Returns:
          The cache, and a report for every load that was on its way or is over.
        """
        now, reports = int(cache.clock), []
        ready = self._fetched(now, reports)
        self._release()
        if self._abandoned:
            cache = self._without_abandoned(cache)
        if ready:
            # Up to here nothing has changed that somebody reads.
            self._at(Point.LOAD_VERIFIED)
            cache = make_room(cache, self._missing(ready))
            # Places that nobody claims any more went with what made room.
            ready = self._still_there(ready, reports)
            cache, stands = self._placing.go_on(cache, ready, self._pending.values())
            reports += stands
        self._abandoned = False
        self.staging.tidy(self._waiting())
        for pending in self._waiting():
            self.staging.set_out(pending)
        return cache, tuple(reports)

    def coming(self, pool: int) -> np.ndarray:
        """``[P]`` bool: blocks of a pool that were handed out for what comes."""
        return self.staging.coming(pool)

    def _waiting(self) -> list[Pending]:
        return [load for load in self._pending.values() if not load.registered]

    def _release(self) -> None:
        self._abandoned |= self.staging.release(self._waiting())

    def _without_abandoned(self, cache: HybridCache) -> HybridCache:
        """Gives back the blocks of loads that are over."""
        tables = (
            self._transfer.abandon(table, self.coming(pool))
            for pool, table in enumerate(cache.tables)
        )
        return dataclasses.replace(cache, tables=tuple(tables))

    def _fetched(self, now: int, reports: list[LoadReport]) -> list[Pending]:
        """The loads that can go on; reports on the others."""
        going = []
        for pending in list(self._pending.values()):
            if pending.over(now):
                report = pending.ended()
            elif pending.registered:
                continue
            else:
                report = self.staging.fetch(pending)
            goes_on = pending.reserved or pending.needs_room
            if report is None or (goes_on and not report.failed):
                going.append(pending)
            else:
                self._reported(pending, report, reports)
        return going

    def _still_there(
        self, ready: Sequence[Pending], reports: list[LoadReport]
    ) -> list[Pending]:
        """The loads of which no block left the tier; reports on the others."""
        going = []
        for pending in ready:
            report = self.staging.gone(pending)
            if report is None:
                going.append(pending)
            else:
                self._reported(pending, report, reports)
        return going

    def _reported(
        self, pending: Pending, report: LoadReport, reports: list[LoadReport]
    ) -> None:
        reports.append(report)
        if report.failed:
            if not (pending.registered or pending.cancelled):
                self._watch.load_failed(report.stage)
            del self._pending[pending.load.number]

    def _missing(self, ready: Sequence[Pending]) -> list[int]:
        """Per pool, the blocks that loads need and that were not handed out yet."""
        wanted = [self.staging.wanted(pending) for pending in ready]
        return [len(set().union(*slots)) for slots in zip(*wanted, strict=True)]

    def forget(self, pool: int, claimed: np.ndarray) -> None:
        """Drops places that no claim of use names any more.

        Args:
          pool: index of the pool.
          claimed: ``[n]`` int32 ids of blocks and places of which a claim is true and
            of use.
        """
        places = self.whereabouts.places(pool, claimed)
        named = np.zeros(len(self.tier.places[pool].stage), bool)
        named[places[places >= 0]] = True
        held = self.tier.places[pool].stage == Stage.ON_DISK
        self.tier.drop(pool, np.flatnonzero(held & ~named))

    def needed_places(self, pool: int, now: int) -> np.ndarray:
        """``[Q]`` bool: places that a load will read which is not over.

        Args:
          pool: index of the pool.
          now: the cache's clock.
        """
        needed = np.zeros(len(self.tier.places[pool].stage), bool)
        for pending in self._waiting():
            if pending.over(now):
                continue
            needed[pending.places[pool]] = True
        return needed
