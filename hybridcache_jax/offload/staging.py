"""What comes for loads, from the tier to its place on the device: read and verified.

What lies in the tier's own memory takes none besides.  What lies in a store sets out a
window at a time, and the next of it only when that was placed: a load takes as much
host memory as the window, however much it brings.  So one that is held up by the window
gets memory on the device as soon as something of it was verified, and what comes is
placed there as it comes.  Nobody can read it before the load seals all of it.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.loads import LoadReport, LoadStage, Pending
from hybridcache_jax.offload.payload import Payload, layout_refusal
from hybridcache_jax.points import At, Point

WINDOW_BYTES = 32 * 2**20
"""Bytes of blocks from a store that are on their way, or wait to be placed."""

# A place of the tier and its epoch: a place may be handed out again while a load still
# waits for what it held.
Slot = tuple[int, int]


class Staging:
    """Blocks that loads of one ``PrefixCache`` wait for, in whatever state.

    Attributes:
      window: bytes of blocks from a store that may be on their way; one block may
        always be.
      reserved: per pool, the block on the device that each slot goes to.
      placed: per pool, the slots of which the content is there.
    """

    def __init__(self, plan: CapacityPlan, tier: HostTier, at: At):
        """Nothing comes.

        Args:
          plan: the plan of the caches.
          tier: where blocks come from.
          at: called with every point that is passed.
        """
        self.window = WINDOW_BYTES
        self.reserved: list[dict[Slot, int]] = [{} for _ in plan.blocks]
        self.placed: list[set[Slot]] = [set() for _ in plan.blocks]
        self._verified: list[dict[Slot, Payload]] = [{} for _ in plan.blocks]
        # Asked of the store, and not placed yet.
        self._out: list[set[Slot]] = [set() for _ in plan.blocks]
        self._plan, self._tier, self._at = plan, tier, at

    def fetch(self, pending: Pending) -> LoadReport | None:
        """Reads and verifies what has come; None once all of it is good.

        A load of which something is good, and whose next blocks the window holds up,
        needs room on the device from here on.
        """
        some, held_up = False, False
        for pool, verified in enumerate(self._verified):
            slots, gone = self._slots(pending, pool)
            self._set_out(pending, pool, slots)
            for slot in slots:
                if slot in verified:
                    some = True
                    continue
                if self._tier.away(pool, slot[0]) and slot not in self._out[pool]:
                    held_up = True
                    break
                came = self._came(pool, slot[0])
                if isinstance(came, Payload):
                    verified[slot] = came
                    some = True
                elif came is not None:
                    return self._failed(pending, pool, slot[0], *came)
            if gone is not None:
                return gone
        pending.needs_room |= held_up and some and not pending.reserved
        return self.waits(pending)

    def waits(self, pending: Pending) -> LoadReport | None:
        """What a load waits for; None if all of it is good."""
        left = sum(
            slot not in verified and slot not in placed
            for pool, (verified, placed) in enumerate(
                zip(self._verified, self.placed, strict=True)
            )
            for slot in slots_of(pending, pool)
        )
        if not left:
            return None
        why = f"{left} blocks are on the way"
        return LoadReport(pending.load, LoadStage.READ, why=why, left=left)

    def gone(self, pending: Pending) -> LoadReport | None:
        """How a load ended of which a block left the tier; None if all is there."""
        found = (self._slots(pending, n)[1] for n in range(len(self._verified)))
        return next(filter(None, found), None)

    def set_out(self, pending: Pending) -> None:
        """Asks the store for what a load waits for, as far as the window allows."""
        for pool in range(len(self._verified)):
            self._set_out(pending, pool, self._slots(pending, pool)[0])

    def wanted(self, pending: Pending) -> list[list[Slot]]:
        """Per pool, the slots of a load that no memory was handed out for."""
        return [
            [slot for slot in slots_of(pending, pool) if slot not in reserved]
            for pool, reserved in enumerate(self.reserved)
        ]

    def verified(self, pending: Pending, pool: int) -> dict[Slot, Payload]:
        """What of a load waits to be placed."""
        held = self._verified[pool]
        return {
            slot: held[slot]
            for slot in slots_of(pending, pool)
            if slot in held and slot not in self.placed[pool]
        }

    def coming(self, pool: int) -> np.ndarray:
        """``[P]`` bool: blocks on the device that were handed out for loads."""
        mask = np.zeros(self._plan.blocks[pool], bool)
        mask[list(self.reserved[pool].values())] = True
        return mask

    def went(
        self, loads: Iterable[Pending], reserved: Sequence[dict[Slot, int]]
    ) -> None:
        """What was verified of loads lies on the device, in blocks that are theirs.

        Args:
          loads: each has memory for all of its blocks from here on.
          reserved: per pool, where all slots go for which blocks were handed out.
        """
        self.reserved = list(reserved)
        for pending in loads:
            pending.reserved, pending.needs_room = True, False
            for pool, placed in enumerate(self.placed):
                placed.update(self.verified(pending, pool))

    def sealed(self, pool: int, slots: Iterable[Slot]) -> None:
        """Blocks were sealed: they are no longer a load's."""
        for slot in slots:
            del self.reserved[pool][slot]

    def release(self, waiting: Sequence[Pending]) -> bool:
        """Lets go of blocks on the device that no load fills any more.

        Args:
          waiting: the loads that have not ended or come.

        Returns:
          Whether there are any; they are :meth:`coming` no more.
        """
        found = False
        for pool, reserved in enumerate(self.reserved):
            kept = {
                slot
                for pending in waiting
                if pending.reserved
                for slot in slots_of(pending, pool)
            }
            for slot in reserved.keys() - kept:
                del reserved[slot]
                self.placed[pool].discard(slot)
                found = True
        return found

    def tidy(self, waiting: Sequence[Pending]) -> None:
        """Lets go of payloads that lie on the device, or that no load waits for.

        What came from the store goes, too, if its load waits for room: it would keep
        others from coming.

        Args:
          waiting: the loads that have not ended or come.
        """
        still = []
        for pool, verified in enumerate(self._verified):
            self.placed[pool] &= self.reserved[pool].keys()
            wanted, reading = set(), set()
            for pending in waiting:
                slots = set(slots_of(pending, pool)) - self.placed[pool]
                wanted |= slots
                if not pending.needs_room:
                    reading |= slots
            let_go = self._out[pool] - reading
            self._out[pool] -= let_go
            for slot in verified.keys() & let_go | verified.keys() - wanted:
                del verified[slot]
            still += [
                (pool, self._tier.where(pool, place))
                for place, epoch in self._out[pool]
                if (place, epoch) not in verified
            ]
        if self._tier.reader is not None:
            self._tier.reader.keep([(n, at) for n, at in still if at is not None])

    def _slots(
        self, pending: Pending, pool: int
    ) -> tuple[list[Slot], LoadReport | None]:
        """What a load waits for, up to the first block that left the tier; and that."""
        table, places = self._tier.places[pool], pending.places[pool]
        left = table.epoch[places] != pending.epochs[pool]
        left |= table.stage[places] != Stage.ON_DISK
        there, report = len(places), None
        if left.any():
            there = int(np.argmax(left))
            why = "the block left the tier meanwhile"
            place = int(places[there])
            report = self._failed(pending, pool, place, LoadStage.READ, why)
        placed = self.placed[pool]
        return [s for s in slots_of(pending, pool)[:there] if s not in placed], report

    def _set_out(self, pending: Pending, pool: int, slots: Collection[Slot]) -> None:
        if pending.needs_room:
            return
        sizes = [part.block_bytes for part in self._plan.spec.pools]
        held = sum(len(out) * n for out, n in zip(self._out, sizes, strict=True))
        fresh = []
        for slot in slots:
            if slot in self._verified[pool] or slot in self._out[pool]:
                continue
            if not self._tier.away(pool, slot[0]):
                continue
            if held and held + sizes[pool] > self.window:
                break
            held += sizes[pool]
            fresh.append(slot)
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


def slots_of(pending: Pending, pool: int) -> list[Slot]:
    """What a load waits for in one pool."""
    places, epochs = pending.places[pool].tolist(), pending.epochs[pool].tolist()
    return list(zip(places, epochs, strict=True))
