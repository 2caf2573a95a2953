"""What is asked back from the outer tier, as the oracle has it."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.points import Point
from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import Block, Expected, Who
from hybridcache_jax.testing.soak.oracle.records import Records
from hybridcache_jax.testing.soak.oracle.tier import Tier


class Fault(NamedTuple):
    """What goes wrong while loads are polled.

    Attributes:
      late: so many reads find that the block is still on its way.
      error: every read raises.
      damage: where what is read fails: ``LAYOUT`` or ``DIGEST``; None for nowhere.
      cut: a point at which the poll dies; None for none.
      passes: how often that point is passed before.
    """

    late: int = 0
    error: type[Exception] | None = None
    damage: LoadStage | None = None
    cut: Point | None = None
    passes: int = 0


class Result(NamedTuple):
    """How a load stands after a poll."""

    number: int
    stage: LoadStage
    failed: bool


@dataclasses.dataclass
class Waiting:
    """A load: places of the tier, and places of the device that must stay.

    Attributes:
      number: which request it is.
      plan: the plan that needs it.
      deadline: clock from which on it is over.
      places: per pool, blocks of the tier, as they stand in a row's columns.
      keep: per pool, places on the device.
      registered: whether it has come.
      cancelled: whether what it was for is found by nobody any more.
    """

    number: int
    plan: Expected
    deadline: int
    places: list[list[Block]]
    keep: list[set[int]]
    registered: bool = False
    cancelled: bool = False

    def over(self, now: int) -> bool:
        """Whether it protects nothing any more."""
        return self.cancelled or now >= self.deadline


class CutError(Exception):
    """A poll died at a point."""


class Outer:
    """The loads from the tier, and what they protect.

    Attributes:
      tier: what lies there.
      waiting: loads by number, until they fail, are given up or are acquired.
    """

    def __init__(
        self, blocks: Blocks, tier: Tier, records: Records, now: Callable[[], int]
    ):
        """Nothing is asked back.

        Args:
          blocks: of the device.
          tier: what lies there.
          records: the store that it reads.
          now: tells the clock.
        """
        self._blocks, self.tier, self._records, self._now = blocks, tier, records, now
        self.waiting: dict[int, Waiting] = {}
        self._staged: set[Block] = set()
        # What was read from the store before it was asked for: whether it is good.
        self._coming: dict[tuple[int, int, str], bool] = {}
        self._asked = 0

    def needed(self, pool: int) -> set[int]:
        """Places of the tier that a load will read that is not over."""
        return {
            block.id
            for load in self.waiting.values()
            if not load.registered and not load.over(self._now())
            for block in load.places[pool]
        }

    def protected(self, pool: int) -> set[int]:
        """Places on the device that the plan of a load needs that is not over."""
        loads, now = self.waiting.values(), self._now()
        return {n for load in loads if not load.over(now) for n in load.keep[pool]}

    def ask(self, plan: Expected, deadline: int) -> int:
        """A load of what a plan needs from the tier; its number."""
        load = Waiting(self._asked, plan, deadline, [], [])
        for index, (pool, wanted) in enumerate(
            zip(self._blocks.pools, plan.wanted(self._blocks.pools), strict=True)
        ):
            load.places.append([])
            load.keep.append(set())
            for number in sorted(wanted, key=lambda n, pool=pool: n % pool.columns):
                block = wanted[number]
                assert block is not None
                if number in plan.loads[index]:
                    load.places[-1].append(block)
                else:
                    load.keep[-1].add(block.id)
        self.waiting[load.number] = load
        self._asked += 1
        self._expect(_each(load.places))
        return load.number

    def cancel(self, number: int) -> None:
        """Gives a load up."""
        self.waiting.pop(number, None)
        self._unstage()

    def comes_from_store(self, number: int) -> bool:
        """Whether something of a load has to be read from the store."""
        places = self.waiting[number].places
        return any(block.pack and not block.held for block in _each(places))

    def give_up(self, gone: Callable[[Who], bool]) -> None:
        """What was asked back for some is of no use any more."""
        for load in self.waiting.values():
            load.cancelled = load.cancelled or gone(load.plan.who)

    def acquired(self, plan: Expected) -> None:
        """A lease ends all loads of its request, else the one closest to its plan."""
        mine = [
            load
            for load in self.waiting.values()
            if load.registered and load.plan.who == plan.who
        ]
        if not plan.who.owner.startswith("request"):
            mine = [load for load in mine if _same_prompt(plan, load.plan)]
            below = [load for load in mine if load.plan.point <= plan.point]
            points = [load.plan.point for load in mine]
            if below:
                point = max(load.plan.point for load in below)
            else:
                point = min(points, default=0)
            mine = [load for load in mine if load.plan.point == point][:1]
        for load in mine:
            del self.waiting[load.number]

    def poll(
        self, now: int, reads: "Reads", make_room: Callable[[list[int]], Any]
    ) -> list[Result]:
        """Takes every load as far as it goes.

        Args:
          now: the clock.
          reads: with what goes wrong.
          make_room: evicts until so many blocks are free per pool, if it can.

        Returns:
          How each load stands that was on its way.

        Raises:
          CutError: if the fault says so.
        """
        results, ready = [], []
        for load in list(self.waiting.values()):
            if load.over(now):
                results.append(_ended(load))
                del self.waiting[load.number]
                continue
            if load.registered:
                continue
            result = self._fetched(load, reads)
            if result is None:
                ready.append(load)
                continue
            results.append(result)
            if result.failed:
                del self.waiting[load.number]
        if ready:
            reads.cut(Point.LOAD_VERIFIED)
            make_room(
                [
                    len({b for load in ready for b in load.places[pool]})
                    for pool in range(len(self.tier.at))
                ]
            )
            # What nothing claims any more went with what made room.
            for load in list(ready):
                if not all(block.loadable for block in _each(load.places)):
                    ready.remove(load)
                    del self.waiting[load.number]
                    results.append(Result(load.number, LoadStage.READ, True))
        results += [self._registered(load) for load in ready]
        self._unstage()
        return results

    def _fetched(self, load: Waiting, reads: "Reads") -> Result | None:
        """Reads what has not come yet; None once all of it is good."""
        late = False
        for places in load.places:
            self._expect(block for block in places if block not in self._staged)
            for block in places:
                if not block.loadable:
                    return Result(load.number, LoadStage.READ, True)
                if block in self._staged:
                    continue
                self.tier.touch(block)
                if not self._came(block):
                    stage, sets_aside = LoadStage.READ, True
                else:
                    stage, sets_aside = reads.read()
                if sets_aside:
                    self.tier.quarantine(block)
                if stage is not None:
                    return Result(load.number, stage, True)
                if reads.was_late:
                    late = True
                else:
                    self._staged.add(block)
        return Result(load.number, LoadStage.READ, False) if late else None

    def _expect(self, blocks: Iterable[Block]) -> None:
        """What lies in the store alone is read there, as it is now."""
        for block in blocks:
            if block.pack and not block.held:
                key = block.pool, block.number, block.pack
                good = self._records.packs.get(block.pack, False)
                self._coming.setdefault(key, good)

    def _came(self, block: Block) -> bool:
        """Whether what is read is the block, if it lies in the store alone."""
        self._expect([block])
        return block.held or self._coming.pop((block.pool, block.number, block.pack))

    def _registered(self, load: Waiting) -> Result:
        """Puts what was read in place, if there is room."""
        if any(
            len(places) > room
            for places, room in zip(load.places, self._blocks.room, strict=True)
        ):
            return Result(load.number, LoadStage.ROOM, False)
        for block in list(_each(load.places)):
            name = self.tier.first(block) + block.id
            here = block.moved(Stage.SEALED, self.tier.moved(block, name))
            here.kept = True
            self._blocks.take_in(here)
            self.tier.drop(block)
            for other in self.waiting.values():
                if block in other.places[block.pool]:
                    other.places[block.pool].remove(block)
                    other.keep[block.pool].add(here.id)
        load.registered = True
        return Result(load.number, LoadStage.REGISTERED, False)

    def _unstage(self) -> None:
        """Lets go of what no load waits for."""
        wanted = {
            block
            for load in self.waiting.values()
            if not load.registered
            for block in _each(load.places)
        }
        self._staged &= wanted
        keys = {(b.pool, b.number, b.pack) for b in wanted - self._staged}
        for key in self._coming.keys() - keys:
            del self._coming[key]


class Reads:
    """The reads of one poll, with their fault.

    Attributes:
      fault: what goes wrong.
      was_late: whether the last one found its block still on the way.
    """

    def __init__(self, fault: Fault):
        """Nothing was read yet."""
        self.fault, self._late, self._passes = fault, fault.late, fault.passes
        self.was_late = False

    def read(self) -> tuple[LoadStage | None, bool]:
        """Where a read fails, and whether the block is set aside then."""
        self.was_late = False
        if self.fault.error is not None:
            # Only what is no longer there would be gone again.
            return LoadStage.READ, self.fault.error is KeyError
        if self.late():
            self.was_late = True
            return None, False
        self.cut(Point.LOAD_READ)
        return self.fault.damage, self.fault.damage is not None

    def late(self) -> bool:
        """Whether a block is still on its way; so many are."""
        self._late -= 1
        return self._late >= 0

    def cut(self, point: Point) -> None:
        """Ends the poll if its time has come."""
        if self.fault.cut is point:
            if not self._passes:
                raise CutError(point)
            self._passes -= 1


def _ended(load: Waiting) -> Result:
    """How a load ended that is over."""
    stage = LoadStage.LAPSED if load.registered else LoadStage.DEADLINE
    if load.cancelled:
        stage = LoadStage.CANCELLED
    return Result(load.number, stage, True)


def _same_prompt(plan: Expected, other: Expected) -> bool:
    """Whether both go the same way, as far as the store can tell."""
    length = min(other.point, plan.stored)
    return (
        length > 0
        and (length == other.point or plan.ends)
        and plan.prompt[:length] == other.prompt[:length]
    )


def _each(places: Iterable[Sequence[Block]]) -> Iterable[Block]:
    return (block for part in places for block in part)
