"""From the device to the tier: what happens between the two phases of an eviction.

A block is copied, sealed with a digest, its claims are led to the copy, and only then
it is given away.  Where the tier has no memory for it, its claims are led to the store,
if it lies there.
"""

from collections.abc import Callable, Sequence

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.offload.transfer import LABELS, Transfer
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.manifest import BlockPlace


class MovesOut:
    """Moves blocks from one line of caches to one tier."""

    def __init__(
        self,
        plan: CapacityPlan,
        tier: HostTier,
        index: PrefixIndex,
        watch: Watch,
        transfer: Transfer,
        whereabouts: Whereabouts,
    ):
        """Nothing moves.

        Args:
          plan: the plan of the caches.
          tier: where blocks go.
          index: its claims follow the blocks.
          watch: counts what moves.
          transfer: copies blocks.
          whereabouts: of the blocks that lie in a store as well.
        """
        self._plan, self._tier, self._index = plan, tier, index
        self._watch, self._transfer, self._whereabouts = watch, transfer, whereabouts

    def move_out(
        self,
        cache: HybridCache,
        begun: Sequence[np.ndarray],
        needed: Callable[[int], np.ndarray],
    ) -> None:
        """Copies blocks that are about to go, and leads their claims to the copies.

        A block for which the tier has no place, or which it fails to take, is left to
        go: room is made whatever the tier does.  Besides what the tier holds there
        is never more than one batch of copies, and the payload of one block.

        Args:
          cache: the cache between the two phases of an eviction.
          begun: per pool, ``[n]`` int32 ids that begin to go; others are padding.
          needed: gives, for a pool, the places that a pending load will read.
        """
        for pool, ids in enumerate(begun):
            ids = ids[ids < self._plan.blocks[pool]]
            if not len(ids):
                continue
            table = cache.tables[pool]
            columns = [np.asarray(getattr(table, name))[ids] for name in LABELS]
            labels = np.stack(columns)
            epochs = np.asarray(table.epoch)[ids]
            keep, found = needed(pool), []
            for start in range(0, len(ids), self._plan.staging_blocks):
                some = slice(start, start + self._plan.staging_blocks)
                found += self._batch(
                    cache, pool, ids[some], epochs[some], labels[:, some], keep
                )
            kept = [at for at, place in enumerate(found) if place is not None]
            places = [place for place, _ in filter(None, found)]
            stamps = [stamp for _, stamp in filter(None, found)]
            new = self._whereabouts.ids(pool, places), np.array(stamps, np.int32)
            self._index.move(pool, (ids[kept], epochs[kept]), new)
            self._watch.moved_out(pool, len(kept))

    def _batch(
        self,
        cache: HybridCache,
        pool: int,
        ids: np.ndarray,
        epochs: np.ndarray,
        labels: np.ndarray,
        needed: np.ndarray,
    ) -> list[tuple[int, int] | None]:
        """Copies one batch to the tier; the batch is gone when this returns.

        Returns:
          Per block its place and the place's epoch, None if the tier has not taken it.
        """
        taken, found = self._transfer.take(cache, pool, ids), []
        for at, (block, epoch) in enumerate(zip(ids, epochs, strict=True)):
            planes = {name: plane[:, at] for name, plane in taken.items()}
            place = self._stored(pool, planes, labels[:, at].tolist(), needed)
            where = self._whereabouts.stored(pool, int(block), int(epoch))
            if where is not None:
                if place is None:
                    place = self._claimed(pool, where, labels[:, at].tolist(), needed)
                else:
                    self._tier.lies(pool, place, where)
            # A later block may drop this one and take its place.
            stamps = self._tier.places[pool].epoch
            found.append(None if place is None else (place, int(stamps[place])))
        return found

    def _stored(
        self,
        pool: int,
        planes: dict[str, np.ndarray],
        labels: list[int],
        needed: np.ndarray,
    ) -> int | None:
        """Copies one block to the tier: its place, None if it was not taken."""
        payload, facts = Payload.sealed(planes), zip(LABELS, labels, strict=True)
        try:
            return self._tier.store(pool, payload, **dict(facts), needed=needed)
        except Exception:  # a tier may fail in any way of its own
            self._watch.store_failed(pool)
            return None

    def _claimed(
        self, pool: int, where: BlockPlace, labels: list[int], needed: np.ndarray
    ) -> int | None:
        """A place for one block that lies in the store, if there is one."""
        facts = dict(zip(LABELS, labels, strict=True))
        first = np.array([facts.pop("first")], np.int32)
        places = self._tier.claim(pool, [where], **facts, first=first, needed=needed)
        return int(places[0]) if len(places) else None
