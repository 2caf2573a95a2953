"""Long runs of random operations; a failing one is made short enough to read.

A run is cut into episodes, each from an empty cache: by turns with an outer tier that
has some room, without one, with a roomy one and with a tight one; in a run with a store
each also with an empty one.  The operations of an episode follow from the run's seed,
the episode's number and whether there is a store.
"""

import collections
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hybridcache_jax.testing.soak.machine import Machine, Operation
from hybridcache_jax.testing.soak.operations import STORE_WEIGHTS, WEIGHTS
from hybridcache_jax.testing.toy import Model

_LARGEST = 2**16


class Rooms(NamedTuple):
    """What is beyond the device in an episode.

    Attributes:
      tier: grid units of every form that the outer tier holds; 0 for none.
      known: grid units besides, of which it has places for what lies in a store; 0 for
        no store.
    """

    tier: int = 0
    known: int = 0


TIERS = (Rooms(12), Rooms(0), Rooms(48), Rooms(4))
"""By turns, in a run without a store."""

STORES = (Rooms(12, 24), Rooms(48, 48), Rooms(1, 8), Rooms(4, 12), Rooms(2, 64))
"""By turns, in a run with one."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Operations after which the library did something else than the oracle.

    Attributes:
      episode: number of the episode.
      rooms: what was beyond the device.
      message: what differed.
      operations: as few as were found; the last one fails.
    """

    episode: int
    rooms: Rooms
    message: str
    operations: tuple[Operation, ...]


@dataclasses.dataclass(frozen=True)
class SoakReport:
    """What a run did.

    Attributes:
      seed: of the run.
      episode_length: operations drawn per episode.
      episodes: episodes begun.
      counts: operations by name, without those that found nothing to do.
      verdicts: plans by verdict.
      origins: plans of a replay that goes on from pools that were kept.
      loads: what became of loads, once per poll: by stage how they ended,
        ``REGISTERED`` if they came; ``ROOM`` for one that waits for free blocks,
        ``LATE`` for one that waits for what is still on its way.
      saves: how saves to the store ended.
      found: plans for which something in the store was claimed.
      tokens: tokens run.
      seconds: wall time.
      failure: the first one, or None.
    """

    seed: int
    episode_length: int
    episodes: int
    counts: dict[str, int]
    verdicts: dict[str, int]
    origins: int
    loads: dict[str, int]
    saves: dict[str, int]
    found: int
    tokens: int
    seconds: float
    failure: Failure | None

    @property
    def operations(self) -> int:
        """Operations that did something."""
        return sum(self.counts.values())

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {**dataclasses.asdict(self), "operations": self.operations}


def operations(
    seed: int, episode: int, count: int, *, store: bool = False
) -> list[Operation]:
    """The operations of one episode.

    Args:
      seed: of the run.
      episode: number of the episode.
      count: how many.
      store: whether there is a store.
    """
    draw = random.Random(f"{seed}/{episode}")
    weights = STORE_WEIGHTS if store else WEIGHTS
    names = draw.choices(list(weights), list(weights.values()), k=count)
    return [
        Operation(name, *(draw.randrange(_LARGEST) for _ in range(3))) for name in names
    ]


def soak(
    model: Model,
    *,
    count: int,
    seed: int = 0,
    episode_length: int = 2000,
    store: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> SoakReport:
    """Runs random operations until so many did something, or one failed.

    Every verdict must be the oracle's: sound (never ``RESUMABLE`` where something that
    is required is missing) and complete (the largest point that can be proved).

    Args:
      model: the toy; one of its forms at least must grow with the history, for
        without one everything can be replayed and nothing is ever lost.
      count: operations.
      seed: any integer.
      episode_length: operations drawn from each empty cache.
      store: whether there is a store: what is published is saved, processes end and
        others begin, objects are damaged, house-keeping runs.
      on_progress: told ``(done, count)`` after every episode.

    Raises:
      ValueError: for a model without a form that grows, or a length below 1.
    """
    if episode_length < 1:
        raise ValueError(f"episode_length must be >= 1, got {episode_length}.")
    counts: collections.Counter = collections.Counter()
    verdicts: collections.Counter = collections.Counter()
    loads: collections.Counter = collections.Counter()
    saves: collections.Counter = collections.Counter()
    begin, episode, failure = time.perf_counter(), 0, None
    tokens = origins = found = 0
    while counts.total() < count and failure is None:
        drawn = operations(seed, episode, episode_length, store=store)
        rooms = rooms_of(episode, store=store)
        machine, message, done = _play(model, drawn, rooms, count - counts.total())
        counts += machine.counts
        verdicts += machine.verdicts
        loads += machine.loaded
        saves += machine.saved
        found += machine.found
        origins += machine.origins
        tokens += machine.tokens
        if message:
            short = shrink(model, drawn[:done], rooms)
            failure = Failure(episode, rooms, replay(model, short, rooms), tuple(short))
        episode += 1
        if on_progress is not None:
            on_progress(counts.total(), count)
    return SoakReport(
        seed=seed,
        episode_length=episode_length,
        episodes=episode,
        counts=dict(counts),
        verdicts=dict(verdicts),
        origins=origins,
        loads=dict(loads),
        saves=dict(saves),
        found=found,
        tokens=tokens,
        seconds=time.perf_counter() - begin,
        failure=failure,
    )


def rooms_of(episode: int, *, store: bool = False) -> Rooms:
    """What is beyond the device in an episode of a run."""
    rooms = STORES if store else TIERS
    return rooms[episode % len(rooms)]


def replay(model: Model, drawn: Sequence[Operation], rooms: Rooms = Rooms()) -> str:
    """Runs operations from an empty cache.

    Args:
      model: the toy.
      drawn: the operations.
      rooms: what is beyond the device.

    Returns:
      What differed from the oracle or was raised; empty if nothing.
    """
    return _play(model, drawn, rooms, len(drawn))[1]


def shrink(
    model: Model, drawn: Sequence[Operation], rooms: Rooms = Rooms()
) -> list[Operation]:
    """Leaves out what is not needed for a failure, half by half, then one by one.

    Args:
      model: the toy.
      drawn: operations that fail; any part of them can be run.
      rooms: what is beyond the device.
    """
    left, size = list(drawn), len(drawn) // 2
    while size:
        at = 0
        while at < len(left):
            rest = left[:at] + left[at + size :]
            done = _play(model, rest, rooms, len(rest))
            if done[1]:
                left = rest[: done[2]]
            else:
                at += size
        size //= 2
    return left


def _play(
    model: Model, drawn: Sequence[Operation], rooms: Rooms, limit: int
) -> tuple[Machine, str, int]:
    """The machine, what went wrong, and how many operations were begun."""
    machine = Machine(model, rooms.tier, known_grids=rooms.known)
    for begun, operation in enumerate(drawn, start=1):
        try:
            machine.apply(operation)
        # Whatever the library raises where the oracle does not is a finding.
        except Exception as error:
            text = f"{operation}: {type(error).__name__}: {error}"
            return machine, text, begun
        if machine.counts.total() >= limit:
            return machine, "", begun
    return machine, "", len(drawn)
