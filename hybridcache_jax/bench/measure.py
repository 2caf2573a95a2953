"""Timing, and what a bench reports."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


class Line:
    """One line of a bench: what was measured over what it is compared with."""

    what: str
    floor: str
    goal: float | None

    @property
    def ratio(self) -> float:
        """Measured over floor."""
        raise NotImplementedError

    @property
    def missed(self) -> bool:
        """Whether there is a goal, and it is missed."""
        return self.goal is not None and self.ratio > self.goal

    @property
    def goal_text(self) -> str:
        """The goal, for people; empty for none."""
        return "" if self.goal is None else f"≤ {self.goal}"


@dataclasses.dataclass(frozen=True)
class Measurement(Line):
    """One line of a bench.

    Attributes:
      what: what was measured.
      seconds: median of the repetitions.
      floor: what it is compared with.
      floor_seconds: median of the floor's repetitions, in the same run.
      goal: largest ratio that is hoped for; None if the line only informs.
    """

    what: str
    seconds: float
    floor: str
    floor_seconds: float
    goal: float | None = None

    @property
    def ratio(self) -> float:
        """Measured time over floor."""
        return self.seconds / self.floor_seconds


@dataclasses.dataclass(frozen=True)
class Footprint(Line):
    """One line of a bench about memory.

    Attributes:
      what: what was measured.
      nbytes: bytes, of each if the line says so.
      floor: what it is compared with.
      floor_nbytes: bytes of that.
      goal: largest ratio that is hoped for; None if the line only informs.
    """

    what: str
    nbytes: float
    floor: str
    floor_nbytes: float
    goal: float | None = None

    @property
    def ratio(self) -> float:
        """Measured bytes over floor."""
        return self.nbytes / self.floor_nbytes


@dataclasses.dataclass(frozen=True)
class Factor(Line):
    """One line of a bench about how many times longer one thing takes than another.

    Attributes:
      what: what was measured.
      times: the factor.
      floor: who said what it would be.
      floor_times: what was said.
      goal: how far the ratio of both may be from 1; None if the line only informs.
    """

    what: str
    times: float
    floor: str
    floor_times: float
    goal: float | None = None

    @property
    def ratio(self) -> float:
        """Measured factor over the one that was said."""
        return self.times / self.floor_times

    @property
    def missed(self) -> bool:
        """Whether it is farther from 1 than hoped for, on either side."""
        return self.goal is not None and abs(self.ratio - 1) > self.goal

    @property
    def goal_text(self) -> str:
        """The goal, for people; empty for none."""
        return "" if self.goal is None else f"1 ± {self.goal}"


@dataclasses.dataclass(frozen=True)
class Report:
    """What a bench found.

    Attributes:
      name: the bench.
      setting: sizes, for people.
      lines: measurements, of time, of memory or of factors.
    """

    name: str
    setting: str
    lines: tuple[Measurement | Footprint | Factor, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data, with where it ran."""
        return {
            "bench": self.name,
            "setting": self.setting,
            "backend": jax.default_backend(),
            "jax": jax.__version__,
            "lines": [
                {**dataclasses.asdict(line), "ratio": line.ratio} for line in self.lines
            ],
        }


def median_seconds(function: Callable[[], Any], *, repeat: int) -> float:
    """Median wall time of calls, each waited for.

    Args:
      function: what is timed; its result is waited for.
      repeat: timed calls, after one that is not.
    """
    return median_seconds_in_turn([function], repeat=repeat)[0]


def median_seconds_in_turn(
    functions: Sequence[Callable[[], Any]], *, repeat: int
) -> list[float]:
    """Median wall times of calls made in turn: what disturbs one disturbs all.

    Args:
      functions: what is compared; each result is waited for.
      repeat: rounds, after one that is not timed.
    """
    return _medians_in_turn(functions, repeat, time.perf_counter)


def cpu_seconds_in_turn(
    functions: Sequence[Callable[[], Any]], *, repeat: int
) -> list[float]:
    """Median processor times of calls made in turn, for work of this thread alone.

    Time in which the machine served others does not count; what they drove out of its
    memory caches does.

    Args:
      functions: what is compared; host code without threads of its own.
      repeat: rounds, after one that is not timed.
    """
    return _medians_in_turn(functions, repeat, time.thread_time)


def _medians_in_turn(functions, repeat: int, clock) -> list[float]:
    times: list[list[float]] = [[] for _ in functions]
    for attempt in range(repeat + 1):
        for function, mine in zip(functions, times, strict=True):
            start = clock()
            jax.block_until_ready(function())
            if attempt:
                mine.append(clock() - start)
    return [float(np.median(mine)) for mine in times]
