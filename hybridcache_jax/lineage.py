"""One line of cache values: which value is the newest, and transitions on its facts.

Claims follow one line of values.  A claim made on one branch could be true of another
by accident, since both count their epochs alike; so every change leaves a stamp that
never comes again, and a value without the newest stamp is refused.  For the same
reason a plan, and the lease that was granted on it, are of use on their own line only.
"""

import dataclasses
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.errors import LeaseError, StaleCacheError
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.state import HybridCache, StateTable


class Lineage:
    """Remembers the stamp of the newest value.

    Attributes:
      name: of the line, at least 1; no other line has it, also after a restart.
    """

    def __init__(self, plan: CapacityPlan):
        """A line that begins with the first value it sees, a cache of ``plan``."""
        self.plan = plan
        self.newest: int | None = None
        # Tickets count from here on; half of int32 is left for them.
        self.name = secrets.randbelow(2**30) + 1

    def stamp_of(self, cache: HybridCache) -> int:
        """The stamp of a cache, of this line or not.

        Raises:
          ValueError: for what is no cache.
          StaleCacheError: for a cache of another plan, or one that was donated.
        """
        if not isinstance(cache, HybridCache):
            raise ValueError(
                f"Expected a HybridCache, got {type(cache).__name__}; give the newest "
                "value, at first what init(plan) gave."
            )
        # The same object nearly always: a plan is long to compare.
        if cache.plan is not self.plan and cache.plan != self.plan:
            raise StaleCacheError(
                "This cache was made from another plan than this PrefixCache; use the "
                "one that init(plan) gave."
            )
        if isinstance(cache.stamp, jax.Array) and cache.stamp.is_deleted():
            raise StaleCacheError(
                "The memory of this cache was donated to the call that made the next "
                "value; go on from that one."
            )
        return int(cache.stamp)

    def require_newest(self, cache: HybridCache) -> None:
        """Refuses every other value.

        Raises:
          ValueError: for what is no cache.
          StaleCacheError: for a cache of another plan, an older or a foreign value.
        """
        stamp = self.stamp_of(cache)
        if self.newest is None:
            # The first cache seen: nothing is claimed yet.
            self.newest = stamp
        if stamp != self.newest:
            raise StaleCacheError(
                "This cache is not the newest value that this PrefixCache returned, "
                "nor a step made from it. Go on from the newest value; for a new or "
                "restored cache make a new PrefixCache."
            )

    def require_own(self, plan: ResumePlan) -> None:
        """Refuses plans of other lines.

        Raises:
          LeaseError: for a plan that another PrefixCache made.
        """
        if plan.line != self.name:
            raise LeaseError(
                "This plan, or the lease that was granted on it, comes from another "
                "PrefixCache or from before a restart; it names blocks of another "
                "memory. Match and acquire here."
            )

    def stamped(self, cache: HybridCache) -> HybridCache:
        """The cache as the newest value of the line."""
        # Random, so that caches of two PrefixCaches are not taken for each other.
        self.newest = secrets.randbelow(2**31 - 1) + 1
        # Bound to a device if the rest is, or the next step would compile anew.
        where = cache.stamp.sharding if cache.stamp.committed else None
        stamp = jax.device_put(np.int32(self.newest), where)
        return dataclasses.replace(cache, stamp=stamp)


class OnFacts:
    """A transition, jitted, that leaves the pools out: XLA would copy them whole."""

    def __init__(self, transition: Callable):
        """Takes a function from a cache to a cache, alone or first of a tuple."""
        self.jitted = jax.jit(transition)

    def __call__(self, cache: HybridCache, *arguments) -> Any:
        """What the transition gives; the pools are handed on untouched."""
        result = self.jitted(facts_of(cache), *arguments)
        after, *rest = result if isinstance(result, tuple) else (result,)
        after = dataclasses.replace(after, pools=cache.pools)
        return (after, *rest) if rest else after


def facts_of(cache: HybridCache) -> HybridCache:
    """The cache without its memory."""
    return dataclasses.replace(cache, pools=())


def with_tables(cache: HybridCache, tables: Iterable[StateTable]) -> HybridCache:
    """The cache with other facts about its blocks, one table per pool."""
    return dataclasses.replace(cache, tables=tuple(tables))
