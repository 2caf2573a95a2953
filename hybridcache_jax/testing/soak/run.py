"""Long runs of random operations; a failing one is made short enough to read.

A run is cut into episodes, each from an empty cache: by turns with an outer tier that
has some room, without one, with a roomy one and with a tight one.  The operations of an
episode follow from the run's seed and the episode's number alone.
"""

import collections
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from hybridcache_jax.testing.soak.machine import Machine, Operation
from hybridcache_jax.testing.soak.operations import WEIGHTS
from hybridcache_jax.testing.toy import Model

_LARGEST = 2**16

TIERS = (12, 0, 48, 4)
"""Grid units of every form in the outer tier, by turns."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Operations after which the library did something else than the oracle.

    Attributes:
      episode: number of the episode.
      tier: grid units of its outer tier; 0 for none.
      message: what differed.
      operations: as few as were found; the last one fails.
    """

    episode: int
    tier: int
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


def operations(seed: int, episode: int, count: int) -> list[Operation]:
    """The operations of one episode.

    Args:
      seed: of the run.
      episode: number of the episode.
      count: how many.
    """
    draw = random.Random(f"{seed}/{episode}")
    names = draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [
        Operation(name, *(draw.randrange(_LARGEST) for _ in range(3))) for name in names
    ]


def soak(
    model: Model,
    *,
    count: int,
    seed: int = 0,
    episode_length: int = 2000,
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
      on_progress: told ``(done, count)`` after every episode.

    Raises:
      ValueError: for a model without a form that grows, or a length below 1.
    """
    if episode_length < 1:
        raise ValueError(f"episode_length must be >= 1, got {episode_length}.")
    counts: collections.Counter = collections.Counter()
    verdicts: collections.Counter = collections.Counter()
    loads: collections.Counter = collections.Counter()
    begin, tokens, origins, episode, failure = time.perf_counter(), 0, 0, 0, None
    while counts.total() < count and failure is None:
        drawn = operations(seed, episode, episode_length)
        tier = TIERS[episode % len(TIERS)]
        machine, message, done = _play(model, drawn, tier, count - counts.total())
        counts += machine.counts
        verdicts += machine.verdicts
        loads += machine.loaded
        origins += machine.origins
        tokens += machine.tokens
        if message:
            short = shrink(model, drawn[:done], tier)
            failure = Failure(episode, tier, replay(model, short, tier), tuple(short))
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
        tokens=tokens,
        seconds=time.perf_counter() - begin,
        failure=failure,
    )


def replay(model: Model, drawn: Sequence[Operation], tier: int = 0) -> str:
    """Runs operations from an empty cache.

    Args:
      model: the toy.
      drawn: the operations.
      tier: grid units of its outer tier; 0 for none.

    Returns:
      What differed from the oracle or was raised; empty if nothing.
    """
    return _play(model, drawn, tier, len(drawn))[1]


def shrink(model: Model, drawn: Sequence[Operation], tier: int = 0) -> list[Operation]:
    """Leaves out what is not needed for a failure, half by half, then one by one.

    Args:
      model: the toy.
      drawn: operations that fail; any part of them can be run.
      tier: grid units of the outer tier; 0 for none.
    """
    left, size = list(drawn), len(drawn) // 2
    while size:
        at = 0
        while at < len(left):
            rest = left[:at] + left[at + size :]
            done = _play(model, rest, tier, len(rest))
            if done[1]:
                left = rest[: done[2]]
            else:
                at += size
        size //= 2
    return left


def _play(
    model: Model, drawn: Sequence[Operation], tier: int, limit: int
) -> tuple[Machine, str, int]:
    """The machine, what went wrong, and how many operations were begun."""
    machine = Machine(model, tier)
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
