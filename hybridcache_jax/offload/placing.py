"""What was verified of loads goes to its place, and whole loads are registered."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.homes import Homes
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.loads import LoadReport, LoadStage, Pending
from hybridcache_jax.offload.staging import Staging
from hybridcache_jax.offload.transfer import LABELS, Arrival, Transfer
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.points import At, Point
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.state import HybridCache, StateTable


class Placing:
    """Places what comes for the loads of one ``PrefixCache``."""

    def __init__(
        self,
        tier: HostTier,
        index: PrefixIndex,
        staging: Staging,
        transfer: Transfer,
        whereabouts: Whereabouts,
        watch: Watch,
        at: At,
    ):
        """Nothing comes.

        Args:
          tier: where blocks come from.
          index: its claims follow the blocks.
          staging: has what was verified.
          transfer: copies it.
          whereabouts: told where blocks lie in a store besides.
          watch: counts what comes.
          at: called with every point that is passed.
        """
        self._tier, self._index, self._staging = tier, index, staging
        self._transfer, self._whereabouts = transfer, whereabouts
        self._watch, self._at = watch, at

    def go_on(
        self,
        cache: HybridCache,
        ready: Sequence[Pending],
        loads: Collection[Pending],
    ) -> tuple[HybridCache, list[LoadReport]]:
        """Puts what was verified in place, of the loads for which there is room.

        Those are sealed of which all is there then: what another load had placed that
        has just ended is not, though this one counted on it.  All of it is made ready
        first, the memory for one batch too: whatever can fail has been done before any
        memory is donated, so a call that is cut short leaves the cache that it was
        given.  Payloads stay in the tier until they are placed.

        Args:
          cache: the cache; its memory is donated.
          ready: the loads that can go on.
          loads: all of them.

        Returns:
          The cache, and how each of ``ready`` stands.
        """
        tables, stands, going, whole = list(cache.tables), [], [], []
        homes = [held.copy() for held in self._staging.homes]
        for pending in ready:
            if not (pending.reserved or self._received(cache, pending, tables, homes)):
                pending.needs_room = True
                why = "a pool has no room yet"
                stands.append(LoadReport(pending.load, LoadStage.ROOM, why=why))
                continue
            going.append(pending)
            waits = self._staging.waits(pending)
            if waits is None:
                whole.append(pending)
                waits = LoadReport(pending.load, LoadStage.REGISTERED)
            stands.append(waits)
        arrivals, done = [], []
        for pool, held in enumerate(homes):
            came = {}
            for pending in going:
                came |= self._staging.verified(pending, pool)
            places = np.array([place for place, _ in came], int)
            ids = held.blocks(places)
            arrivals.append(Arrival(pool, ids, list(came.values()), places))
            ended = dict.fromkeys(
                n for load in whole for n in load.places[pool].tolist()
            )
            done.append(np.array(list(ended), int))
            if ended:
                sealed = held.blocks(done[pool]).tolist()
                tables[pool] = self._transfer.seal(pool, tables[pool], sealed)
        staging = self._transfer.staging()
        self._at(Point.LOAD_RECEIVED)
        del came

        def placed(part: Arrival) -> None:
            # There is no way back from here on; what comes next is read meanwhile.
            self._staging.have_room(going, homes)
            self._staging.placed(part)
            for pending in going:
                self._staging.set_out(pending)

        pools = self._transfer.place(cache.pools, arrivals, staging, placed)
        cache = dataclasses.replace(cache, pools=pools, tables=tuple(tables))
        # Nothing fails from here on.
        self._staging.have_room(going, homes)
        # Claims follow once all of it is there.
        for pool, places in enumerate(done):
            if len(places):
                self._arrived(cache, pool, places, loads)
                self._watch.loaded(pool, len(places))
        for pending in whole:
            pending.registered = True
        return cache, stands

    def _received(
        self,
        cache: HybridCache,
        pending: Pending,
        tables: list[StateTable],
        homes: Sequence[Homes],
    ) -> bool:
        """Hands out blocks for all that a load brings, if there is room for it.

        What an earlier one brings, too, comes once.

        Args:
          cache: the cache.
          pending: the load.
          tables: of every pool; changed in place.
          homes: per pool, the blocks that were handed out; added to.
        """
        wanted = [
            places[~held.have(places, epochs)]
            for held, places, epochs in zip(
                homes, pending.places, pending.epochs, strict=True
            )
        ]
        free = [int(table.num_free) for table in tables]
        if any(len(p) > n for p, n in zip(wanted, free, strict=True)):
            return False
        for pool, places in enumerate(wanted):
            if not len(places):
                continue
            # They are what it waits for: none has left the tier.
            facts = self._tier.places[pool]
            labels = np.stack([getattr(facts, name)[places] for name in LABELS])
            tables[pool], ids = self._transfer.receive(
                pool, tables[pool], labels, cache.clock
            )
            homes[pool].give(places, facts.epoch[places], ids)
        return True

    def _arrived(
        self,
        cache: HybridCache,
        pool: int,
        places: np.ndarray,
        loads: Iterable[Pending],
    ) -> None:
        """Leads claims, and loads that wait for the same places, to the blocks."""
        ids = self._staging.homes[pool].blocks(places)
        ids_of, epochs = self._whereabouts.ids, np.asarray(cache.tables[pool].epoch)
        old = ids_of(pool, places), self._tier.places[pool].epoch[places]
        self._index.move(pool, old, (ids, epochs[ids]))
        for place, block in zip(places.tolist(), ids.tolist(), strict=True):
            where = self._tier.where(pool, place)
            if where is not None:
                self._whereabouts.lies(pool, block, int(epochs[block]), where)
        self._tier.drop(pool, places)
        self._staging.homes[pool].take(places)
        count = len(self._tier.places[pool].stage)
        arrived = np.zeros(count, bool)
        arrived[places] = True
        for pending in loads:
            mine = np.zeros(count, bool)
            mine[pending.places[pool]] = True
            here = arrived[pending.places[pool]]
            pending.keep[pool] = np.concatenate([pending.keep[pool], ids[mine[places]]])
            pending.places[pool] = pending.places[pool][~here]
            pending.epochs[pool] = pending.epochs[pool][~here]
