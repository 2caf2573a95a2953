"""What is asked back from an outer tier: requests, their state, and how they end."""

import dataclasses
import enum

import numpy as np

from hybridcache_jax.resume_plan import ResumePlan


class LoadStage(enum.StrEnum):
    """Where a load is, or the stage at which it failed."""

    READ = "read"
    LAYOUT = "layout"
    DIGEST = "digest"
    DEADLINE = "deadline"
    ROOM = "room"
    REGISTERED = "registered"


@dataclasses.dataclass(frozen=True)
class Load:
    """A receipt for blocks that were asked back.

    Attributes:
      number: which request it is, counted from 0.
      plan: the plan that needs the blocks.
      deadline: logical time (``HybridCache.clock``) from which on it is given up; None
        to wait as long as it takes.
    """

    number: int
    plan: ResumePlan
    deadline: int | None


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """How a load stands after a poll.

    Attributes:
      load: the request.
      stage: what it waits for, or where it ended.
      failed: True if it will never be registered; plan again.
      why: one sentence for a failure or a wait, else empty.
    """

    load: Load
    stage: LoadStage
    failed: bool = False
    why: str = ""

    @property
    def ready(self) -> bool:
        """Whether its blocks lie on the device: match again and acquire."""
        return self.stage is LoadStage.REGISTERED


@dataclasses.dataclass
class Pending:
    """A load on its way.

    Attributes:
      load: the request.
      places: per pool, ``[n]`` places of the tier.
      epochs: per pool, ``[n]`` epochs with which they were claimed.
      keep: per pool, ids on the device that the plan needs besides.
      registered: whether it has come; what it needs is kept until it is acquired.
    """

    load: Load
    places: list[np.ndarray]
    epochs: list[np.ndarray]
    keep: list[np.ndarray]
    registered: bool = False
