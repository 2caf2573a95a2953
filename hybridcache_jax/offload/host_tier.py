"""The tier in host memory: bounded, the longest unused goes first, never by a clock.

Every pool has places of its own, as it has blocks of its own on the device.  A place
has facts like a block: what it holds, who wrote it, and an epoch that grows whenever
it is handed out or dropped, so an old claim never meets a new content.

What a place holds lies in memory, in a store of prefixes, or in both.  Memory is what
the budget bounds; a block that lies in a store as well gives its memory up and keeps
its place.
"""

import bisect
import functools
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from hybridcache_jax._whole import whole
from hybridcache_jax.byte_sizes import parse_bytes
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.offload.places import Places, places_for, tier_bytes
from hybridcache_jax.store.manifest import BlockPlace


class Reader(Protocol):
    """Brings blocks from a store."""

    def expect(self, pool: int, wanted: Sequence[BlockPlace]) -> None:
        """Begins to read blocks, as far as nobody has asked for them yet."""
        ...

    def keep(self, wanted: Collection[tuple[int, BlockPlace]]) -> None:
        """Lets go of all but some blocks, each with its pool."""
        ...

    def read(self, pool: int, wanted: BlockPlace) -> Payload | None:
        """A block; None while it is on its way.

        Raises:
          KeyError: if what lies there is not the block.
          StoreError: if the store fails.
        """
        ...


class HostTier:
    """Blocks in host memory, for one ``PrefixCache``.

    Attributes:
      plan: the plan of its caches.
      places: facts about the places of each pool.
      tokens: stored tokens of which it has places, and the index the claims.
      taken: whether a ``PrefixCache`` has it; another one drops what it cannot claim.
      reader: brings what lies in the store of that ``PrefixCache``, if it has one.
      refused: names of packs there of which a block was not what it should be; none
        of their blocks is asked for again.
    """

    def __init__(self, plan: CapacityPlan, *, budget: int | str, known_tokens: int = 0):
        """An empty tier for caches of one plan.

        Args:
          plan: the plan of the caches whose blocks it takes.
          budget: bytes, or text such as ``"8GiB"``; divided so that all pools can hold
            what the plan's retention policies keep of the same number of tokens, and
            the index the claims of those.
          known_tokens: stored tokens of which it has places beside those, for blocks
            that lie in a store: as many as prompts that wait for the store have
            together.  Only facts and claims of them take memory.

        Raises:
          ValueError: for a budget that cannot be read, or too small for one grid unit
            and what is known; for known tokens below 0.
        """
        # A grid unit of history takes more than a byte; nobody has more of them.
        limit, grid = min(parse_bytes(budget), 2**62), plan.spec.grid
        known = -(-whole("known_tokens", known_tokens) // grid)

        size = functools.partial(tier_bytes, plan, known=known)
        grids = bisect.bisect_right(range(limit + 1), limit, key=size) - 1
        if grids < 1:
            raise ValueError(
                f"A tier of {budget} holds not even what {grid} stored tokens keep, "
                f"which takes {size(1)} bytes; raise its budget."
            )
        counts = places_for(plan, grids + known)
        for count, more in zip(plan.blocks, counts, strict=True):
            if count + 1 + more >= 2**31:
                raise ValueError(
                    f"A tier of {budget} has {more} places beside a pool of {count} "
                    "blocks, more than int32 can name; lower its budget."
                )
        self.plan = plan
        self.tokens = (grids + known) * grid
        self.places = tuple(map(Places.empty, counts))
        self.taken = False
        self.reader: Reader | None = None
        self.refused: set[str] = set()
        self._most_held = places_for(plan, grids)
        self._payloads: list[dict[int, Payload]] = [{} for _ in plan.spec.pools]
        self._stored: list[dict[int, BlockPlace]] = [{} for _ in plan.spec.pools]
        self._clock = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the payloads it holds in memory."""
        return sum(p.nbytes for held in self._payloads for p in held.values())

    def store(
        self,
        pool: int,
        payload: Payload,
        *,
        version: int,
        provenance: int,
        first: int,
        needed: np.ndarray,
    ) -> int | None:
        """Takes a block in; drops the longest unused one if it must.

        Args:
          pool: index of the pool.
          payload: the block.
          version: id of the identity that wrote it.
          provenance: ``codes.Provenance`` of the block.
          first: first token position.
          needed: ``[Q]`` bool, places that a pending load will read; they stay.

        Returns:
          The place, or None if every place is needed.
        """
        places = self._free_places(pool, 1, ~needed)
        if not len(places) or not self._free_memory(pool, needed):
            return None
        place = int(places[0])
        facts = {"version": version, "provenance": provenance, "first": first}
        self._clock += 1
        self.places[pool].hand_out(place, **facts, now=self._clock)
        self._payloads[pool][place] = payload
        return place

    def claim(
        self,
        pool: int,
        wanted: Sequence[BlockPlace],
        *,
        version: int,
        provenance: int,
        first: np.ndarray,
        needed: np.ndarray,
    ) -> np.ndarray:
        """Places for blocks that lie in the store; no memory is taken.

        Args:
          pool: index of the pool.
          wanted: ``n`` blocks, where each lies.
          version: as for :meth:`store`.
          provenance: likewise.
          first: ``[n]`` int32, first token positions.
          needed: as for :meth:`store`.

        Returns:
          ``[m]`` places of the first ``m <= n`` blocks.  Fewer than asked for if only
          places are left that are needed, or whose block lies nowhere else.
        """
        table, elsewhere = self.places[pool], np.zeros(len(needed), bool)
        elsewhere[list(self._stored[pool])] = True
        elsewhere |= table.stage == Stage.QUARANTINED
        places = self._free_places(pool, len(wanted), elsewhere & ~needed)
        self._clock += 1
        table.hand_out(
            places,
            version=version,
            provenance=provenance,
            first=first[: len(places)],
            now=self._clock,
        )
        self._stored[pool].update(zip(places.tolist(), wanted, strict=False))
        return places

    def where(self, pool: int, place: int) -> BlockPlace | None:
        """Where in the store the block of a place lies; None if it does not."""
        return self._stored[pool].get(place)

    def away(self, pool: int, place: int) -> bool:
        """Whether the block of a place has to be read from the store."""
        return place in self._stored[pool] and place not in self._payloads[pool]

    def only_stored(self, pool: int) -> np.ndarray:
        """``[Q]`` bool: places whose block lies in the store and not in memory."""
        found = np.zeros(len(self.places[pool].stage), bool)
        found[list(self._stored[pool].keys() - self._payloads[pool].keys())] = True
        return found

    def lies(self, pool: int, place: int, where: BlockPlace) -> None:
        """The block of a place lies in the store, too."""
        self._stored[pool][place] = where

    def expect(self, pool: int, places: Sequence[int]) -> None:
        """These places will be read soon: what lies in the store sets out."""
        wanted = [
            self._stored[pool][place] for place in places if self.away(pool, place)
        ]
        if wanted and self.reader is not None:
            self.reader.expect(pool, wanted)

    def read(self, pool: int, place: int) -> Payload | None:
        """The payload of a place; None while it is still on its way.

        Raises:
          KeyError: if the place holds nothing, or the store not the block.
          StoreError: if the store fails.
        """
        self._clock += 1
        self.places[pool].used[place] = self._clock
        where = self._stored[pool].get(place)
        if place in self._payloads[pool] or where is None or self.reader is None:
            return self._payloads[pool][place]
        return self.reader.read(pool, where)

    def drop(self, pool: int, places: np.ndarray) -> None:
        """Forgets what places hold; their epochs grow.  Free ones stay as they are."""
        table = self.places[pool]
        places = places[table.stage[places] != Stage.FREE]
        table.free(places)
        for place in places.tolist():
            self._payloads[pool].pop(place, None)
            self._stored[pool].pop(place, None)

    def quarantine(self, pool: int, place: int) -> None:
        """Sets a place aside that failed verification: no plan counts on it again.

        If it came from the store, so is all that lies in the same pack and nowhere
        else: one pack fails one load.
        """
        where = self._stored[pool].get(place)
        if self._payloads[pool].pop(place, None) is None and where is not None:
            self.refuse(where.pack)
        self.places[pool].stage[place] = Stage.QUARANTINED
        self._stored[pool].pop(place, None)

    def refuse(self, pack: str) -> None:
        """Sets aside all that lies in a pack of the store and nowhere else."""
        self.refused.add(pack)
        for table, stored, held in zip(
            self.places, self._stored, self._payloads, strict=True
        ):
            gone = [place for place, at in stored.items() if at.pack == pack]
            for place in gone:
                del stored[place]
            alone = [place for place in gone if place not in held]
            table.stage[alone] = Stage.QUARANTINED

    def _free_places(self, pool: int, count: int, may_go: np.ndarray) -> np.ndarray:
        """So many free places, or that become free; fewer if there are no more."""
        table = self.places[pool]
        free = np.flatnonzero(table.stage == Stage.FREE)[:count]
        if len(free) == count:
            return free
        candidates = np.flatnonzero(may_go & (table.stage != Stage.FREE))
        gone = table.longest_unused(candidates)[: count - len(free)]
        self.drop(pool, gone)
        return np.concatenate([free, gone])

    def _free_memory(self, pool: int, needed: np.ndarray) -> bool:
        """Whether there is memory for a block; gives up that of another if need be."""
        held = self._payloads[pool]
        if len(held) < self._most_held[pool]:
            return True
        candidates = np.array([place for place in held if not needed[place]], int)
        if not len(candidates):
            return False
        place = int(self.places[pool].longest_unused(candidates)[0])
        if place in self._stored[pool]:
            del held[place]
        else:
            self.drop(pool, np.array([place]))
        return True
