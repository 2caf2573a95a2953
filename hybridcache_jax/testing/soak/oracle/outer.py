"""The outer tier as the oracle has it: what lies there, and what is asked back.

A block that moves out becomes another object, with the place it was handed there; so
does one that comes back.  Which places those are is told by the machine.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.points import Point
from hybridcache_jax.testing.soak.oracle.blocks import Blocks
from hybridcache_jax.testing.soak.oracle.ledger import Block, Expected, Who


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
    """The tier, and the loads from it.

    Attributes:
      at: per pool, the blocks that lie there by place.
      waiting: loads by number, until they fail, are given up or are acquired.
      moves: per pool, where the cache moved what, by what claims call the places.
    """

    def __init__(self, blocks: Blocks, capacity: Sequence[int], now: Callable[[], int]):
        """An empty tier; without capacity there is none."""
        self._blocks, self._capacity, self._now = blocks, capacity, now
        self.at: list[dict[int, Block]] = [{} for _ in capacity]
        self.waiting: dict[int, Waiting] = {}
        self.moves: list[dict[int, int]] = [{} for _ in capacity]
        self._staged: set[Block] = set()
        self._asked = self._clock = 0

    # What lies there.

    def take(self, going: Sequence[Block]) -> None:
        """Blocks of one pool move out, as far as there is room."""
        for block in going:
            if self._make_place(block.pool):
                away = block.moved(
                    Stage.ON_DISK, self._moved(block, block.id) - self._first(block)
                )
                self._clock += 1
                away.used = self._clock
                self.at[block.pool][away.id] = away

    def forget(self, named: set[Block]) -> None:
        """What nothing claims is dropped; what was set aside stays."""
        for held in self.at:
            for block in list(held.values()):
                if block.loadable and block not in named:
                    self._drop(block)

    def protected(self, pool: int) -> set[int]:
        """Places on the device that the plan of a load needs that is not over."""
        loads, now = self.waiting.values(), self._now()
        return {n for load in loads if not load.over(now) for n in load.keep[pool]}

    def _make_place(self, pool: int) -> bool:
        """Drops the longest unused if it must; whether there is a place now."""
        held = self.at[pool]
        if len(held) < self._capacity[pool]:
            return True
        needed = {
            block.id
            for load in self.waiting.values()
            if not load.registered and not load.over(self._now())
            for block in load.places[pool]
        }
        free = [block for n, block in held.items() if n not in needed]
        if free:
            self._drop(min(free, key=lambda b: (b.loadable, b.used, -b.number)))
        return bool(free)

    def _drop(self, block: Block) -> None:
        block.stage = Stage.FREE
        del self.at[block.pool][block.id]

    def _moved(self, block: Block, name: int) -> int:
        """Where the cache moved it; -1, which is found out, if it did not."""
        return self.moves[block.pool].pop(name, -1)

    def _first(self, block: Block) -> int:
        """What claims call the first place of its pool."""
        return self._blocks.pools[block.pool].count + 1

    # What is asked back.

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
        return load.number

    def cancel(self, number: int) -> None:
        """Gives a load up."""
        self.waiting.pop(number, None)
        self._unstage()

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
        self, now: int, fault: Fault, make_room: Callable[[list[int]], Any]
    ) -> list[Result]:
        """Takes every load as far as it goes.

        Args:
          now: the clock.
          fault: what goes wrong.
          make_room: evicts until so many blocks are free per pool, if it can.

        Returns:
          How each load stands that was on its way.

        Raises:
          CutError: if the fault says so.
        """
        results, ready, tier = [], [], _Reads(fault)
        for load in list(self.waiting.values()):
            if load.over(now):
                results.append(_ended(load))
                del self.waiting[load.number]
                continue
            if load.registered:
                continue
            result = self._fetched(load, tier)
            if result is None:
                ready.append(load)
                continue
            results.append(result)
            if result.failed:
                del self.waiting[load.number]
        if ready:
            tier.cut(Point.LOAD_VERIFIED)
            make_room(
                [
                    len({b for load in ready for b in load.places[pool]})
                    for pool in range(len(self.at))
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

    def _fetched(self, load: Waiting, tier: "_Reads") -> Result | None:
        """Reads what has not come yet; None once all of it is good."""
        late = False
        for block in _each(load.places):
            if not block.loadable:
                return Result(load.number, LoadStage.READ, True)
            if block in self._staged:
                continue
            self._clock += 1
            block.used = self._clock
            stage, sets_aside = tier.read()
            if sets_aside:
                block.stage = Stage.QUARANTINED
            if stage is not None:
                return Result(load.number, stage, True)
            if tier.was_late:
                late = True
            else:
                self._staged.add(block)
        return Result(load.number, LoadStage.READ, False) if late else None

    def _registered(self, load: Waiting) -> Result:
        """Puts what was read in place, if there is room."""
        if any(
            len(places) > room
            for places, room in zip(load.places, self._blocks.room, strict=True)
        ):
            return Result(load.number, LoadStage.ROOM, False)
        for block in list(_each(load.places)):
            name = self._first(block) + block.id
            here = block.moved(Stage.SEALED, self._moved(block, name))
            here.kept = True
            self._blocks.take_in(here)
            self._drop(block)
            for other in self.waiting.values():
                if block in other.places[block.pool]:
                    other.places[block.pool].remove(block)
                    other.keep[block.pool].add(here.id)
        load.registered = True
        return Result(load.number, LoadStage.REGISTERED, False)

    def _unstage(self) -> None:
        """Lets go of what no load waits for."""
        self._staged &= {
            block
            for load in self.waiting.values()
            if not load.registered
            for block in _each(load.places)
        }


class _Reads:
    """The reads of one poll, with their fault."""

    def __init__(self, fault: Fault):
        self._fault, self._late, self._passes = fault, fault.late, fault.passes
        self.was_late = False

    def read(self) -> tuple[LoadStage | None, bool]:
        """Where a read fails, and whether the block is set aside then."""
        self.was_late = False
        if self._fault.error is not None:
            # Only what is no longer there would be gone again.
            return LoadStage.READ, self._fault.error is KeyError
        if self._late:
            self._late -= 1
            self.was_late = True
            return None, False
        self.cut(Point.LOAD_READ)
        return self._fault.damage, self._fault.damage is not None

    def cut(self, point: Point) -> None:
        """Ends the poll if its time has come."""
        if self._fault.cut is point:
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
