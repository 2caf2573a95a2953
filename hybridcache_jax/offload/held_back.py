"""Write-back: published prefixes that are saved when they begin to leave the device.

What is published waits here, as claims: no byte is copied.  An eviction that moves a
block of it out makes it due, and it is saved like any other then: from where each of
its blocks lies.  What is not evicted is not saved, and lost with the process, unless it
is flushed.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import NOTHING, Claims
from hybridcache_jax.contents import Contents
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key

MOST_HELD = 256
"""Prefixes that are held back at most; the longest held is due where there are more."""


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
    """One prefix that was published.

    Attributes:
      key: under which the index claims it.
      tokens: ``[n]`` int32, whole grid units.
      contents: what some of them stand for.
      logits: ``[vocab]`` of the token that follows, or None.
    """

    key: Key
    tokens: np.ndarray
    contents: Contents
    logits: np.ndarray | None

    def leads_to(self, key: Key, tokens: np.ndarray, contents: Contents) -> bool:
        """Whether a save of these tokens makes one of this prefix needless.

        A long prompt is published chunk by chunk.  Who has logits ends where no other
        does.
        """
        size = len(self.tokens)
        return (
            self.logits is None
            and self.key == key
            and np.array_equal(self.tokens, tokens[:size])
            and self.contents.before(size) == contents.before(size)
        )


class HeldBack:
    """Published prefixes of one ``PrefixCache`` that are not to be saved yet."""

    def __init__(self, plan: CapacityPlan, index: PrefixIndex):
        """None.

        Args:
          plan: the plan of the caches.
          index: says where blocks are.
        """
        self._plan, self._index = plan, index
        self._held: list[Published] = []
        self._due: collections.deque[Published] = collections.deque()

    def __len__(self) -> int:
        """Prefixes that were not given out."""
        return len(self._held) + len(self._due)

    def add(self, published: Published) -> None:
        """Holds a prefix back, and no longer those that it goes on from."""
        tokens, contents = published.tokens, published.contents
        self._held = [
            each
            for each in self._held
            if not each.leads_to(published.key, tokens, contents)
        ]
        self._held.append(published)
        if len(self._held) > MOST_HELD:
            self._due.append(self._held.pop(0))

    def evicted(self) -> None:
        """Blocks were evicted: those prefixes are due that have lost one."""
        kept = []
        for each in self._held:
            leaving = self._leaving(self._claims(each))
            (self._due if leaving else kept).append(each)
        self._held = kept

    def release(self) -> None:
        """All of them are due."""
        self._due.extend(self._held)
        self._held = []

    def take(self) -> tuple[Published, Claims] | None:
        """One that is due, and what is claimed of it now; None if none is."""
        if not self._due:
            return None
        due = self._due.popleft()
        return due, self._claims(due)

    def give_up(self, dropped: Callable[[Key], bool]) -> None:
        """Forgets those whose claims were dropped.

        Args:
          dropped: whether the claims under a key were.
        """
        self._held = [each for each in self._held if not dropped(each.key)]
        self._due = collections.deque(e for e in self._due if not dropped(e.key))

    def _claims(self, published: Published) -> Claims:
        return self._index.lookup(published.key, published.tokens, published.contents)

    def _leaving(self, claims: Claims) -> bool:
        """Whether a block lies outside of the device; claims that are gone are, too."""
        return not claims.length or any(
            ((ids > count) & (ids != NOTHING)).any()
            for ids, count in zip(claims.blocks, self._plan.blocks, strict=True)
        )
