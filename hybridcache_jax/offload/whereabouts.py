"""Where the blocks that claims name lie: on the device, in memory, in a store."""

from collections.abc import Collection
from typing import TypeVar

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.payload import joined, layout_refusal
from hybridcache_jax.offload.transfer import Transfer
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.manifest import BlockPlace

# One of them, or an array.
Ids = TypeVar("Ids", int, np.ndarray)


class Whereabouts:
    """Of the blocks and places of one ``PrefixCache``.

    What lies in the store is known of a block as long as its epoch is the same; for a
    place of the tier the tier knows it.
    """

    def __init__(self, plan: CapacityPlan, tier: HostTier, transfer: Transfer):
        """Nothing lies in a store.

        Args:
          plan: the plan of the caches.
          tier: has the places.
          transfer: copies blocks from the device.
        """
        self._plan, self._tier, self._transfer = plan, tier, transfer
        # By pool and block; one epoch of each, so no more than there are blocks.
        self._stored: list[dict[int, tuple[int, BlockPlace]]] = [
            {} for _ in plan.blocks
        ]

    @property
    def refused(self) -> Collection[str]:
        """See :attr:`HostTier.refused`."""
        return self._tier.refused

    def refuse(self, pack: str) -> None:
        """Nothing lies in a pack any more."""
        self._tier.refuse(pack)

    def written(self, pack: str) -> None:
        """A pack is whole, maybe anew: what is computed again has the same name."""
        self._tier.refused.discard(pack)

    def ids(self, pool: int, places) -> np.ndarray:
        """What claims call places of the tier."""
        return np.asarray(places, np.int32) + np.int32(self._plan.blocks[pool] + 1)

    def places(self, pool: int, ids: Ids) -> Ids:
        """Places of the tier by what claims call them; negative for blocks."""
        return ids - (self._plan.blocks[pool] + 1)

    def stored(self, pool: int, block: int, epoch: int) -> BlockPlace | None:
        """Where in the store a block lies that is claimed, and still there; or None.

        Args:
          pool: index of the pool.
          block: what claims call it.
          epoch: its epoch.
        """
        place = self.places(pool, block)
        if place >= 0:
            return self._tier.where(pool, place)
        seen, where = self._stored[pool].get(block, (-1, None))
        if where is None or seen != epoch or where.pack in self.refused:
            return None
        return where

    def lies(self, pool: int, block: int, epoch: int, where: BlockPlace) -> None:
        """A block lies in the store, too.

        Nothing is noted by a claim of before: what it named has gone, and of what took
        its place more is known.

        Args:
          pool: index of the pool.
          block: what claims call it; one that there is.
          epoch: its epoch, by a claim that may be true no more.
          where: in the store.
        """
        place = self.places(pool, block)
        if place < 0:
            seen, _ = self._stored[pool].get(block, (-1, None))
            if epoch >= seen:
                self._stored[pool][block] = epoch, where
        elif self._tier.places[pool].epoch[place] == epoch:
            self._tier.lies(pool, place, where)

    def copies(
        self, cache: HybridCache, pool: int, ids: np.ndarray
    ) -> list[memoryview | None]:
        """The bytes of blocks, as ``Payload.data`` gives them.

        Args:
          cache: the cache of this moment.
          pool: index of the pool.
          ids: ``[n]`` int32 what claims call them, ``n <= K``; all of them are there,
            none in the store.

        Returns:
          In order; None for a block that the tier gives back otherwise than it was
          sealed, which is set aside there: with a new digest nobody could tell.
        """
        places = self.places(pool, ids)
        found: dict[int, memoryview | None] = {}
        here = ids[places < 0]
        if len(here):
            planes = self._transfer.take(cache, pool, here)
            for at, block in enumerate(here.tolist()):
                one = {name: plane[:, at] for name, plane in planes.items()}
                found[block] = joined(one)
        for block, place in zip(ids.tolist(), places.tolist(), strict=True):
            if place >= 0:
                found[block] = self._held(pool, place)
        return [found[block] for block in ids.tolist()]

    def _held(self, pool: int, place: int) -> memoryview | None:
        """The bytes of a block in the tier's memory; None if they are not its own."""
        payload, spec = self._tier.read(pool, place), self._plan.spec.pools[pool]
        if payload is None:
            return None
        if (
            layout_refusal(spec, self._plan.backend, payload) is None
            and payload.holds_what_it_says()
        ):
            return payload.data()
        self._tier.quarantine(pool, place)
        return None
