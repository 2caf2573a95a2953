"""The outer tier of one ``PrefixCache``: what is asked back from it, between steps.

A load reads every block into memory of its own and verifies it; the live cache changes
in one update, when all of them are good, or not at all.
"""

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
    LoadStage,
    Pending,
    settled,
)
from hybridcache_jax.offload.moves_out import MovesOut
from hybridcache_jax.offload.payload import Payload, layout_refusal
from hybridcache_jax.offload.transfer import LABELS, Transfer
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.points import At, Point
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Key
from hybridcache_jax.state import HybridCache

MakeRoom = Callable[[HybridCache, Sequence[int]], HybridCache]


class Outer:
    """Moves blocks between one line of caches and one tier."""

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
        # Verified payloads by pool, and by place and epoch: a place may be handed out
        # again while a load still waits for what it held.
        self._staged: list[dict[tuple[int, int], Payload]] = [{} for _ in plan.blocks]
        self._watch, self._at = watch, at
        self._asked = 0

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """See :meth:`Transfer.warm_up`; nothing moves."""
        return self._transfer.warm_up(cache)

    def move_out(self, cache: HybridCache, begun: Sequence[np.ndarray]) -> None:
        """See :meth:`MovesOut.move_out`."""
        now = int(cache.clock)
        self._moves_out.move_out(
            cache, begun, lambda pool: self.needed_places(pool, now)
        )

    def ask(self, plan: ResumePlan, deadline: int) -> Load:
        """Asks for what a plan needs from the tier; nothing is read yet.

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
            pending.places.append(self.whereabouts.places(pool, ids[away]))
            pending.epochs.append(epochs[away])
            pending.keep.append(ids[here])
        self._pending[load.number] = pending
        return load

    def cancel(self, load: Load) -> None:
        """Gives a load up, or lets go of what it brought; unknown ones are ignored."""
        self._pending.pop(load.number, None)
        self._unstage()

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
        ready = self._verified(list(self._pending.values()), now, reports)
        if ready:
            # Up to here nothing has changed.
            self._at(Point.LOAD_VERIFIED)
            places = self._places_of(ready)
            cache = make_room(cache, [len(where) for where in places])
            # Places that nobody claims any more went with what made room.
            ready = self._verified(ready, now, reports)
            cache = self._register(cache, ready, reports)
        self._unstage()
        return cache, tuple(reports)

    def _waiting(self) -> list[Pending]:
        return [load for load in self._pending.values() if not load.registered]

    def _verified(
        self, loads: Sequence[Pending], now: int, reports: list[LoadReport]
    ) -> list[Pending]:
        """The loads of which all has come and is good; reports on the others."""
        good = []
        for pending in loads:
            if pending.over(now):
                report = pending.ended()
            elif pending.registered:
                continue
            else:
                report = self._fetched(pending)
            if report is None:
                good.append(pending)
                continue
            reports.append(report)
            if report.failed:
                if not (pending.registered or pending.cancelled):
                    self._watch.load_failed(report.stage)
                del self._pending[pending.load.number]
        return good

    def _places_of(self, loads: Sequence[Pending]) -> list[np.ndarray]:
        """Per pool, the places that loads name, each once."""
        return [
            np.unique(np.concatenate([np.zeros(0, np.int64), *places]))
            for places in zip(*(pending.places for pending in loads), strict=True)
        ]

    def _register(
        self,
        cache: HybridCache,
        loads: Sequence[Pending],
        reports: list[LoadReport],
    ) -> HybridCache:
        """Puts what was verified in place, of the loads for which there is room.

        All of it is made ready first, the memory for one batch too: whatever can fail
        has been done before any memory is donated, so a call that is cut short leaves
        the cache that it was given.  Payloads stay in the tier until they are placed.
        """
        tables, coming, stands = list(cache.tables), [], []
        known: list[set[int]] = [set() for _ in tables]
        for pending in loads:
            # What an earlier one brings, too, comes once.
            wanted = [
                places[~np.isin(places, list(known[pool]))]
                for pool, places in enumerate(pending.places)
            ]
            free = [int(table.num_free) for table in tables]
            if any(len(p) > n for p, n in zip(wanted, free, strict=True)):
                why = "a pool has no room yet"
                stands.append(LoadReport(pending.load, LoadStage.ROOM, why=why))
                continue
            for pool, places in enumerate(wanted):
                facts = self.tier.places[pool]
                keys = zip(places.tolist(), facts.epoch[places].tolist(), strict=True)
                payloads = [self._staged[pool][key] for key in keys]
                labels = np.stack([getattr(facts, name)[places] for name in LABELS])
                arrival = self._transfer.receive(
                    cache, pool, tables[pool], payloads, labels
                )
                tables[pool] = arrival.table
                known[pool].update(places.tolist())
                coming.append((places, arrival, arrival.ids))
            stands.append(LoadReport(pending.load, LoadStage.REGISTERED))
        staging = self._transfer.staging()
        self._at(Point.LOAD_RECEIVED)
        arrivals = [arrival for _, arrival, _ in coming]
        cache = self._transfer.place(cache, arrivals, staging)
        # Claims follow once all of it is there.
        for places, arrival, ids in coming:
            self._arrived(cache, arrival.pool, places, ids)
            self._watch.loaded(arrival.pool, len(ids))
        for report in stands:
            self._pending[report.load.number].registered |= report.ready
        reports += stands
        return cache

    def _arrived(self, cache: HybridCache, pool: int, places, ids: np.ndarray) -> None:
        """Leads claims, and loads that wait for the same places, to the blocks."""
        ids_of, epochs = self.whereabouts.ids, np.asarray(cache.tables[pool].epoch)
        old = ids_of(pool, places), self.tier.places[pool].epoch[places]
        self.index.move(pool, old, (ids, epochs[ids]))
        for place, block in zip(places.tolist(), ids.tolist(), strict=True):
            where = self.tier.where(pool, place)
            if where is not None:
                self.whereabouts.lies(pool, block, int(epochs[block]), where)
        self.tier.drop(pool, places)
        for pending in self._pending.values():
            here = np.isin(pending.places[pool], places)
            came = np.isin(places, pending.places[pool])
            pending.keep[pool] = np.concatenate([pending.keep[pool], ids[came]])
            pending.places[pool] = pending.places[pool][~here]
            pending.epochs[pool] = pending.epochs[pool][~here]

    def _fetched(self, pending: Pending) -> LoadReport | None:
        """Reads and verifies what has not come yet; None once all of it is good."""
        load, late = pending.load, 0
        for pool in range(len(self._staged)):
            table, staged = self.tier.places[pool], self._staged[pool]
            places = pending.places[pool]
            left = table.epoch[places] != pending.epochs[pool]
            left |= table.stage[places] != Stage.ON_DISK
            there = int(np.argmax(left)) if left.any() else len(places)
            if not pending.expected:
                self.tier.expect(pool, self._not_staged(pending, pool))
            for place, epoch in _keys(pending, pool)[:there]:
                if (place, epoch) in staged:
                    continue
                came = self._came(pool, place)
                if came is None:
                    late += 1
                elif isinstance(came, Payload):
                    staged[place, epoch] = came
                else:
                    return self._failed(load, pool, place, *came)
            if there < len(places):
                why = "the block left the tier meanwhile"
                place = int(places[there])
                return self._failed(load, pool, place, LoadStage.READ, why)
        pending.expected = True
        if late:
            return LoadReport(load, LoadStage.READ, why=f"{late} blocks are on the way")
        return None

    def _failed(
        self, load: Load, pool: int, place: int, stage: LoadStage, why: str
    ) -> LoadReport:
        name, first = self.plan.spec.pools[pool].name, self.tier.places[pool].first
        where = f"{name}, positions from {int(first[place])}"
        return LoadReport(load, stage, True, f"{where}: {why}")

    def _came(self, pool: int, place: int) -> Payload | tuple[LoadStage, str] | None:
        """A verified block, or what is wrong with it; None while it is on its way."""
        try:
            payload = self.tier.read(pool, place)
        except KeyError:
            # Asked again it would be gone again.
            self.tier.quarantine(pool, place)
            return LoadStage.READ, "the tier no longer has the block"
        except Exception as error:  # a tier may fail in any way of its own
            return LoadStage.READ, f"{type(error).__name__}: {error}"
        if payload is None:
            return None
        self._at(Point.LOAD_READ)
        stage = LoadStage.LAYOUT
        spec = self.plan.spec.pools[pool]
        why = layout_refusal(spec, self.plan.backend, payload)
        if why is None and not payload.holds_what_it_says():
            stage = LoadStage.DIGEST
            why = "its bytes are not those that were stored"
        if why is not None:
            self.tier.quarantine(pool, place)
            return stage, why
        return payload

    def _unstage(self) -> None:
        """Lets go of payloads that no load waits for any more."""
        waiting = self._waiting()
        for pool, staged in enumerate(self._staged):
            wanted = {key for load in waiting for key in _keys(load, pool)}
            for key in staged.keys() - wanted:
                del staged[key]
        if self.tier.reader is not None:
            stored = (
                (pool, self.tier.where(pool, place))
                for pool in range(len(self._staged))
                for load in waiting
                for place in self._not_staged(load, pool)
            )
            self.tier.reader.keep([(pool, at) for pool, at in stored if at is not None])

    def _not_staged(self, pending: Pending, pool: int) -> list[int]:
        """Places whose payload a load waits for."""
        keys = _keys(pending, pool)
        return [
            place for place, epoch in keys if (place, epoch) not in self._staged[pool]
        ]

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


def _keys(pending: Pending, pool: int) -> list[tuple[int, int]]:
    """Places and epochs of what a load waits for in one pool."""
    places, epochs = pending.places[pool].tolist(), pending.epochs[pool].tolist()
    return list(zip(places, epochs, strict=True))
