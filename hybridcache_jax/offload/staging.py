"""What comes for loads, from the tier to its place on the device: read and verified.

What lies in the tier's own memory takes none besides.  What lies in a store sets out a
window at a time, and the next of it only when that was placed: a load takes as much
host memory as the window, however much it brings.  So one that is held up by the window
gets memory on the device as soon as something of it was verified, and what comes is
placed there as it comes.  Nobody can read it before the load seals all of it.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.homes import Homes
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.loads import LoadReport, LoadStage, Pending
from hybridcache_jax.offload.payload import Payload, layout_refusal
from hybridcache_jax.offload.transfer import Arrival
from hybridcache_jax.points import At, Point

WINDOW_BYTES = 32 * 2**20
"""Bytes of blocks from a store that are on their way, or wait to be placed."""

_NONE = -1

# A place of the tier and its epoch: a place may be handed out again while a load still
# waits for what it held.
Slot = tuple[int, int]


class Staging:
    """Blocks that loads of one ``PrefixCache`` wait for, in whatever state.

    Every poll looks at all of what every load waits for, in arrays; block after block
    only at what came or sets out.

    Attributes:
      window: bytes of blocks from a store that may be on their way; one block may
        always be.
      homes: per pool, the blocks on the device that slots go to.
    """

    def __init__(self, plan: CapacityPlan, tier: HostTier, at: At):
        """Nothing comes.

        Args:
          plan: the plan of the caches.
          tier: where blocks come from.
          at: called with every point that is passed.
        """
        self.window = WINDOW_BYTES
        counts = [len(table.stage) for table in tier.places]
        self.homes = list(map(Homes, counts))
        self._verified: list[dict[Slot, Payload]] = [{} for _ in counts]
        # The epochs of those by place; of an older one nobody can make use.
        self._good = [np.full(count, _NONE, np.int32) for count in counts]
        # Asked of the store, and not placed yet.
        self._out: list[set[Slot]] = [set() for _ in counts]
        self._plan, self._tier, self._at = plan, tier, at

    def fetch(self, pending: Pending) -> LoadReport | None:
        """Reads and verifies what has come; None once all of it is good.

        A load of which something is good, and whose next blocks the window holds up,
        needs room on the device from here on.
        """
        some, held_up = False, False
        for pool, verified in enumerate(self._verified):
            there, gone = self._there(pending, pool)
            self._set_out(pending, pool, there)
            for slot in self._slots(pending, pool, there):
                if slot in verified:
                    some = True
                    continue
                if self._tier.away(pool, slot[0]) and slot not in self._out[pool]:
                    held_up = True
                    break
                came = self._came(pool, slot[0])
                if isinstance(came, Payload):
                    verified[slot] = came
                    self._good[pool][slot[0]] = slot[1]
                    some = True
                elif came is not None:
                    return self._failed(pending, pool, slot[0], *came)
            if gone is not None:
                return gone
        pending.needs_room |= held_up and some and not pending.reserved
        return self.waits(pending)

    def waits(self, pending: Pending) -> LoadReport | None:
        """What a load waits for; None if all of it is good."""
        left = 0
        for pool, good in enumerate(self._good):
            rest, places = self._rest(pending, pool), pending.places[pool]
            left += int((rest & (good[places] != pending.epochs[pool])).sum())
        if not left:
            return None
        why = f"{left} blocks are on the way"
        return LoadReport(pending.load, LoadStage.READ, why=why, left=left)

    def gone(self, pending: Pending) -> LoadReport | None:
        """How a load ended of which a block left the tier; None if all is there."""
        found = (self._there(pending, n)[1] for n in range(len(self._verified)))
        return next(filter(None, found), None)

    def set_out(self, pending: Pending) -> None:
        """Asks the store for what a load waits for, as far as the window allows."""
        for pool, places in enumerate(pending.places):
            if len(places) and self._room(pool):
                self._set_out(pending, pool, self._there(pending, pool)[0])

    def wanted(self, pending: Pending) -> list[set[Slot]]:
        """Per pool, the slots of a load that no memory was handed out for."""
        return [
            set(self._slots(pending, pool, ~self.homes[pool].have(places, epochs)))
            for pool, (places, epochs) in enumerate(
                zip(pending.places, pending.epochs, strict=True)
            )
        ]

    def verified(self, pending: Pending, pool: int) -> dict[Slot, Payload]:
        """What of a load waits to be placed."""
        good = self._good[pool][pending.places[pool]] == pending.epochs[pool]
        waiting = self._slots(pending, pool, good & self._rest(pending, pool))
        return {slot: self._verified[pool][slot] for slot in waiting}

    def coming(self, pool: int) -> np.ndarray:
        """``[P]`` bool: blocks on the device that were handed out for loads."""
        return self.homes[pool].coming(self._plan.blocks[pool])

    def have_room(self, loads: Iterable[Pending], homes: Sequence[Homes]) -> None:
        """Loads have memory for all of their blocks from here on.

        Args:
          loads: which.
          homes: per pool, where all slots go for which blocks were handed out.
        """
        self.homes = list(homes)
        for pending in loads:
            pending.reserved, pending.needs_room = True, False

    def placed(self, part: Arrival) -> None:
        """Verified blocks lie on the device; others may come in their stead."""
        verified, out = self._verified[part.pool], self._out[part.pool]
        self.homes[part.pool].fill(part.places)
        epochs = self._good[part.pool][part.places]
        for slot in zip(part.places.tolist(), epochs.tolist(), strict=True):
            del verified[slot]
            out.discard(slot)
        self._good[part.pool][part.places] = _NONE

    def release(self, waiting: Sequence[Pending]) -> bool:
        """Lets go of blocks on the device that no load fills any more.

        Args:
          waiting: the loads that have not ended or come.

        Returns:
          Whether there are any; they are :meth:`coming` no more.
        """
        found, filling = False, [each for each in waiting if each.reserved]
        for pool, held in enumerate(self.homes):
            kept = self._epochs(filling, pool)
            gone = held.without(kept)
            held.take(gone)
            found = found or len(gone) > 0
        return found

    def tidy(self, waiting: Sequence[Pending]) -> None:
        """Lets go of payloads that lie on the device, or that no load waits for.

        What came from the store goes, too, if its load waits for room: it would keep
        others from coming.

        Args:
          waiting: the loads that have not ended or come.
        """
        still, going_on = [], [each for each in waiting if not each.needs_room]
        for pool, verified in enumerate(self._verified):
            wanted, reading = (
                self._epochs(loads, pool, placed=False) for loads in (waiting, going_on)
            )
            out = {s for s in self._out[pool] if reading[s[0]] == s[1]}
            let_go, self._out[pool] = self._out[pool] - out, out
            for slot in list(verified):
                if slot in let_go or wanted[slot[0]] != slot[1]:
                    del verified[slot]
            good = self._good[pool]
            good.fill(_NONE)
            for place, epoch in verified:
                good[place] = epoch
            still += [
                (pool, self._tier.where(pool, place))
                for place, epoch in out
                if (place, epoch) not in verified
            ]
        if self._tier.reader is not None:
            self._tier.reader.keep([(n, at) for n, at in still if at is not None])

    def _there(
        self, pending: Pending, pool: int
    ) -> tuple[np.ndarray, LoadReport | None]:
        """What a load waits for, up to the first block that left the tier; and that.

        Returns:
          ``[n]`` bool of its blocks, and how the load ended if one left.
        """
        table, places = self._tier.places[pool], pending.places[pool]
        left = table.epoch[places] != pending.epochs[pool]
        left |= table.stage[places] != Stage.ON_DISK
        there, report = self._rest(pending, pool), None
        if left.any():
            first = int(np.argmax(left))
            why = "the block left the tier meanwhile"
            place = int(places[first])
            report = self._failed(pending, pool, place, LoadStage.READ, why)
            there[first:] = False
        return there, report

    def _rest(self, pending: Pending, pool: int) -> np.ndarray:
        """``[n]`` bool: which blocks of a load are not placed."""
        return ~self.homes[pool].filled(pending.places[pool], pending.epochs[pool])

    def _slots(self, pending: Pending, pool: int, mask: np.ndarray) -> Iterator[Slot]:
        """Those of a load's slots of which a mask is true, in order."""
        places, epochs = pending.places[pool][mask], pending.epochs[pool][mask]
        return zip(places.tolist(), epochs.tolist(), strict=True)

    def _epochs(
        self, loads: Iterable[Pending], pool: int, *, placed: bool = True
    ) -> np.ndarray:
        """``[Q]`` int32: by place the epoch with which loads wait for it, or -1.

        Args:
          loads: whose places.
          pool: index of the pool.
          placed: whether what is placed already counts.
        """
        found = np.full(len(self._good[pool]), _NONE, np.int32)
        for pending in loads:
            places, epochs = pending.places[pool], pending.epochs[pool]
            if not placed:
                rest = self._rest(pending, pool)
                places, epochs = places[rest], epochs[rest]
            found[places] = np.maximum(found[places], epochs)
        return found

    def _room(self, pool: int) -> int:
        """How many more blocks of a pool may be on their way."""
        sizes = [part.block_bytes for part in self._plan.spec.pools]
        held = sum(len(out) * n for out, n in zip(self._out, sizes, strict=True))
        most = max(self.window - held, 0) // sizes[pool]
        return most if held else max(most, 1)

    def _set_out(self, pending: Pending, pool: int, there: np.ndarray) -> None:
        room = 0 if pending.needs_room else self._room(pool)
        fresh = []
        for slot in self._slots(pending, pool, there) if room else ():
            if slot in self._verified[pool] or slot in self._out[pool]:
                continue
            if not self._tier.away(pool, slot[0]):
                continue
            fresh.append(slot)
            if len(fresh) == room:
                break
        self._out[pool].update(fresh)
        self._tier.expect(pool, [place for place, _ in fresh])

    def _came(self, pool: int, place: int) -> Payload | tuple[LoadStage, str] | None:
        """A verified block, or what is wrong with it; None while it is on its way."""
        try:
            payload = self._tier.read(pool, place)
        except KeyError:
            # Asked again it would be gone again.
            self._tier.quarantine(pool, place)
            return LoadStage.READ, "the tier no longer has the block"
        except Exception as error:  # a tier may fail in any way of its own
            return LoadStage.READ, f"{type(error).__name__}: {error}"
        if payload is None:
            return None
        self._at(Point.LOAD_READ)
        stage = LoadStage.LAYOUT
        spec = self._plan.spec.pools[pool]
        why = layout_refusal(spec, self._plan.backend, payload)
        if why is None and not payload.holds_what_it_says():
            stage = LoadStage.DIGEST
            why = "its bytes are not those that were stored"
        if why is not None:
            self._tier.quarantine(pool, place)
            return stage, why
        return payload

    def _failed(
        self, pending: Pending, pool: int, place: int, stage: LoadStage, why: str
    ) -> LoadReport:
        name, first = self._plan.spec.pools[pool].name, self._tier.places[pool].first
        where = f"{name}, positions from {int(first[place])}"
        return LoadReport(pending.load, stage, True, f"{where}: {why}")
