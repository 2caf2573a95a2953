"""What is asked back from an outer tier: requests, their state, and how they end."""

import dataclasses
import enum
from collections.abc import Iterable

import numpy as np

from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Scope

LOAD_TICKS = 4096
"""Ticks of the cache's clock after which a load is over, unless it says otherwise."""


class LoadStage(enum.StrEnum):
    """Where a load is, or the stage at which it ended.

    ``LAPSED`` is one that was registered and that nobody acquired in time,
    ``CANCELLED`` one whose request is over or whose reuse scope changed.
    """

    READ = "read"
    LAYOUT = "layout"
    DIGEST = "digest"
    DEADLINE = "deadline"
    ROOM = "room"
    REGISTERED = "registered"
    LAPSED = "lapsed"
    CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True)
class Load:
    """A receipt for blocks that were asked back.

    Attributes:
      number: which request it is, counted from 0.
      plan: the plan that needs the blocks.
      deadline: logical time (``HybridCache.clock``) from which on it is over: given up
        if it has not come, and protecting nothing if it has.
    """

    number: int
    plan: ResumePlan
    deadline: int

    @property
    def blocks(self) -> int:
        """How many blocks it brings."""
        return sum(map(len, self.plan.loads))


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """How a load stands after a poll.

    Attributes:
      load: the request.
      stage: what it waits for, or where it ended.
      failed: True if it is over and nobody acquired what it brought; plan again.
      why: one sentence for a failure or a wait, else empty.
      left: at ``READ``, how many of its ``load.blocks`` blocks have not come yet; those
        that have are verified.
    """

    load: Load
    stage: LoadStage
    failed: bool = False
    why: str = ""
    left: int = 0

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
      cancelled: whether the claims that it was to serve were dropped.
      reserved: whether all its blocks have memory on the device; what was verified is
        placed there as it comes.
      needs_room: whether no more of it is read until it has that.
    """

    load: Load
    places: list[np.ndarray]
    epochs: list[np.ndarray]
    keep: list[np.ndarray]
    registered: bool = False
    cancelled: bool = False
    reserved: bool = False
    needs_room: bool = False

    def over(self, now: int) -> bool:
        """Whether at ``now`` it protects nothing any more."""
        return self.cancelled or now >= self.load.deadline

    def ended(self) -> LoadReport:
        """How it ended, of one that is over."""
        due, stage = self.load.deadline, LoadStage.DEADLINE
        why = f"it was to come before tick {due}"
        if self.cancelled:
            stage = LoadStage.CANCELLED
            why = "its request is over, or the reuse scope of its producer changed"
        elif self.registered:
            stage = LoadStage.LAPSED
            why = f"it came and nobody acquired it before tick {due}; it stays stored"
        return LoadReport(self.load, stage, True, why)


def settled(plan: ResumePlan, loads: Iterable[Pending]) -> list[Pending]:
    """The registered loads that are over when a lease on a plan is granted.

    In the scope ``request`` all of the same request.  In wider scopes requests are not
    told apart, and what another one waits for must stay: it is one load, the closest.
    That is the deepest that the plan begins with, else the shallowest of the same
    prompt beyond it, among equals the oldest.

    Args:
      plan: what was acquired.
      loads: all loads, the oldest first.
    """
    mine = [
        pending
        for pending in loads
        if pending.registered and _same_asker(plan, pending.load.plan)
    ]
    if plan.key.scope == Scope.REQUEST:
        return mine
    mine = [pending for pending in mine if _same_prompt(plan, pending.load.plan)]

    def distance(pending: Pending) -> tuple[bool, int]:
        beyond = pending.load.plan.length - plan.length
        return beyond > 0, abs(beyond)

    return sorted(mine, key=distance)[:1]


def _same_asker(plan: ResumePlan, other: ResumePlan) -> bool:
    """Whether claims are looked up alike, exact or approximate."""
    provenance = other.key.provenance
    return dataclasses.replace(plan.key, provenance=provenance) == other.key


def _same_prompt(plan: ResumePlan, other: ResumePlan) -> bool:
    """Whether one prompt begins with what the other plan reuses, by what is claimed."""
    length = min(other.length, plan.claims.length)
    # A prompt that goes another way is another request's; one that ends may be cut.
    ends = plan.shared_length >= plan.num_tokens
    return (
        length > 0
        and (length == other.length or ends)
        and np.array_equal(other.claims.tokens[:length], plan.claims.tokens[:length])
        and other.contents.before(length) == plan.contents.before(length)
    )
