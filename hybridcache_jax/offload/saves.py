"""Prefixes that wait to be saved: whose turn it is, and what is tried again.

What is saved is what the index claims, one prefix after the other, a step of it between
two compiled steps.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import Claims, Holds
from hybridcache_jax.contents import Contents
from hybridcache_jax.forms import RULES
from hybridcache_jax.observe.declarations import SaveEnd
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.saving import Save, Saving, Steps
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.rollout import Key
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.pack import GonePackError
from hybridcache_jax.store.prefix_store import StoreError

MOST_WAITING = 64
"""Saves that wait at most; what is published beyond them is not saved."""

# Failures of one save for which the store is the reason, after which it is let go.
_MOST_TRIES = 8
# Polls before the second try; twice as many before each one that follows.
_PAUSE = 16
# Steps left alone after one with a batch: a copy, and what writes it beside the steps,
# take time from few of them.  Not where more saves wait, or somebody for all of them.
_REST, _FEW = 7, 8
# Times that one try begins anew because what it was to name is gone.
_MOST_GONE = 3


@dataclasses.dataclass(eq=False)
class _Turn:
    """A save, and how it fared.

    Attributes:
      save: what is to be saved.
      steps: what is left to do.
      tries: how often the store failed.
      gone: how often this try began anew.
      pause: polls until the next try.
    """

    save: Save
    steps: Steps
    tries: int = 0
    gone: int = 0
    pause: int = 0


class Saves:
    """Saves the prefixes of one ``PrefixCache``, one after the other."""

    def __init__(
        self,
        plan: CapacityPlan,
        saving: Saving,
        whereabouts: Whereabouts,
        watch: Watch,
    ):
        """Nothing waits.

        Args:
          plan: the plan of the caches.
          saving: takes each from beginning to end.
          whereabouts: told of packs that are gone.
          watch: counts how saves end.
        """
        self._plan, self._watch, self._whereabouts = plan, watch, whereabouts
        self._saving = saving
        # Steps that are still left alone, and whether somebody waits for all saves.
        self._rest, self._hurried = 0, False
        self._waiting: collections.deque[_Turn] = collections.deque()
        # Saves that failed and are tried again; they do not count as waiting.
        self._failed: list[_Turn] = []

    def __len__(self) -> int:
        """Saves that have not ended."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether no more can wait."""
        return len(self._waiting) >= MOST_WAITING

    def add(
        self,
        key: Key,
        claims: Claims,
        contents: Contents,
        holds: Holds,
        logits: np.ndarray | None = None,
    ) -> None:
        """A prefix was published and shall be saved, if all that counts is there.

        Args:
          key: under which the index claims it.
          claims: what the index claims of it.
          contents: what some of its tokens stand for.
          holds: tells which claims are true, on the device or outside.
          logits: ``[vocab]`` of the token that follows, or None.
        """
        held = self._held(claims, holds)
        if held is None:
            return
        self._merge(key, claims.tokens, contents)
        if self.full:
            self._watch.save_ended(SaveEnd.TOO_MANY)
            return
        save = Save(key, claims.tokens, contents, logits, held)
        self._waiting.append(_Turn(save, self._saving.begun(save)))

    def step(self, cache: HybridCache, holds_for: Callable[[Key], Holds]) -> None:
        """Takes the oldest save a batch further, unless the store is busy with it.

        Args:
          cache: the cache of this moment.
          holds_for: gives, for a key, which claims are true on the device or outside.
        """
        for turn in self._failed:
            turn.pause -= 1
        self._try_again()
        if not self._waiting:
            self._rest, self._hurried = 0, False
            return
        if self._rest and len(self._waiting) <= _FEW and not self._hurried:
            self._rest -= 1
            return
        turn, why, self._rest = self._waiting[0], None, 0
        batches = self._saving.batches
        try:
            turn.steps.send((cache, holds_for(turn.save.key)))
        except StopIteration as done:
            end = done.value
        except GonePackError as error:
            # Known blocks were swept from the store; this save copies them anew.
            self._whereabouts.refuse(error.pack)
            turn.gone += 1
            if turn.gone < _MOST_GONE:
                turn.steps = self._saving.begun(turn.save)
                return
            end, why = SaveEnd.FAILED, error
        except StoreError as error:
            end, why = SaveEnd.FAILED, error
            turn.tries += 1
            if turn.tries < _MOST_TRIES and len(self._failed) < MOST_WAITING:
                turn.pause = _PAUSE << turn.tries
                self._failed.append(turn)
        except Exception as error:  # a store may fail in any way of its own
            end, why = SaveEnd.FAILED, error
        else:
            if self._saving.batches > batches:
                self._rest = _REST
            return
        # Unless it was given up with all that its producer had stored.
        if self._waiting and self._waiting[0] is turn:
            self._waiting.popleft()
            self._watch.save_ended(end, why)

    def give_up(self, dropped: Callable[[Key], bool]) -> None:
        """Ends the saves of claims that were dropped.

        Args:
          dropped: whether the claims under a key were.
        """
        self._failed = [each for each in self._failed if not dropped(each.save.key)]
        kept = [each for each in self._waiting if not dropped(each.save.key)]
        for _ in range(len(self._waiting) - len(kept)):
            self._watch.save_ended(SaveEnd.LOST)
        self._waiting = collections.deque(kept)

    def release(self) -> None:
        """What failed is tried again at once, and no step is left alone any more."""
        self._hurried = True
        for turn in self._failed:
            turn.pause = 0
        self._try_again()

    def _try_again(self) -> None:
        """What failed waits again, when its pause is over."""
        for turn in [each for each in self._failed if each.pause <= 0]:
            if not self.full:
                self._failed.remove(turn)
                turn.steps, turn.gone = self._saving.begun(turn.save), 0
                self._waiting.append(turn)

    def _merge(self, key: Key, tokens: np.ndarray, contents: Contents) -> None:
        """Ends saves that a longer one makes needless; one whose turn it is goes on."""
        self._failed = [
            each
            for each in self._failed
            if not each.save.leads_to(key, tokens, contents)
        ]
        for each in list(self._waiting)[1:]:
            if each.save.leads_to(key, tokens, contents):
                self._waiting.remove(each)
                self._watch.save_ended(SaveEnd.MERGED)

    def _held(self, claims: Claims, holds: Holds) -> tuple[np.ndarray, ...] | None:
        """Per pool, blocks that are there; None if the history has a hole."""
        held = []
        for number, pool in enumerate(self._plan.spec.pools):
            ids, epochs = claims.blocks[number], claims.epochs[number]
            first = np.arange(len(ids), dtype=np.int32) * np.int32(pool.block_tokens)
            there = holds(number, ids, epochs, first)
            if RULES[pool.form].grows and not there.all():
                return None
            held.append(np.flatnonzero(there))
        return tuple(held)
