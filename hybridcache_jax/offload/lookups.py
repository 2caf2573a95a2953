"""Asking a store what it has, for no longer than a caller can wait."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

import numpy as np

from hybridcache_jax.contents import Contents
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.finding import Found, find_records
from hybridcache_jax.store.manifest import Manifest
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.records import Prefix
from hybridcache_jax.store.trust import stored_prefix
from hybridcache_jax.tokens import common_length

Answer = tuple[Prefix, Found]
T = TypeVar("T")

# Late answers that are kept; a manifest has all tokens of its record.
_MOST_KEPT = 4


class Lookups:
    """The lookups of one ``PrefixCache`` in one store.

    One that takes too long is a miss; until it has ended, however it does, every other
    one is a miss at once: a store that hangs costs one wait.  What it found then is
    where a later one begins that comes by there: a long chain of records far away is
    found at the second try.  That one asks again whether records were given up, and
    what is found either way is compared with its digests when it is loaded.
    """

    def __init__(
        self,
        store: PrefixStore,
        executor: Executor,
        grid: int,
        patience: float,
        watch: Watch,
    ):
        """Nothing is asked.

        Args:
          store: where to look.
          executor: runs what waits for it.
          grid: tokens of a grid unit.
          patience: seconds that one lookup may take.
          watch: counts those that fail or take longer.
        """
        self._store, self._executor, self._grid = store, executor, grid
        self._patience, self._watch = patience, watch
        # What goes on though nobody waits for it, and under which key it looks.
        self._late: Future | None = None
        self._late_key: Key | None = None
        # What late lookups found, the newest last.
        self._kept: list[tuple[Key, Answer]] = []

    def ask(self, key: Key, tokens: np.ndarray, contents: Contents) -> Answer | None:
        """The records that lead along a prompt, and the prompt under their key.

        Args:
          key: under which the index would claim it.
          tokens: ``[n]`` int32, whole grid units.
          contents: what some of them stand for.

        Returns:
          None if the store fails or takes too long.
        """
        if self._busy():
            return None
        known = self._known(key, tokens)
        args = self._store, key, tokens, contents, self._grid, known
        answer = self._wait_for(submitted(self._executor, _look_up, *args))
        self._late_key = key
        return answer

    def run(self, task: Callable[..., T], *args) -> T | None:
        """What a task gives that asks the store.

        Args:
          task: what to run.
          *args: for it.

        Returns:
          None if the store fails or takes too long.
        """
        if self._busy():
            return None
        answer = self._wait_for(submitted(self._executor, task, *args))
        self._late_key = None
        return answer

    def _busy(self) -> bool:
        """Whether a late one goes on; what one found that has ended is kept."""
        late, key, self._late = self._late, self._late_key, None
        if late is None:
            return False
        if not late.done():
            self._late = late
            self._watch.lookup_failed()
            return True
        failed = late.cancelled() or late.exception() is not None
        if key is not None and not failed and late.result()[1].records:
            self._kept = [*self._kept, (key, late.result())][-_MOST_KEPT:]
        return False

    def _wait_for(self, future: Future[T]) -> T | None:
        try:
            return future.result(self._patience)
        except TimeoutError:
            self._late = future
            why = TimeoutError(f"it took longer than {self._patience} s")
        except Exception as error:  # a store may fail in any way of its own
            why = error
        self._watch.lookup_failed(why)
        return None

    def _known(self, key: Key, tokens: np.ndarray) -> tuple[Manifest, ...]:
        """What was found late of the prompt that shares most with this one.

        It is kept for others until a prompt runs through all of it.
        """
        best, most = None, self._grid
        for at, (under, (prefix, _)) in enumerate(self._kept):
            shared = common_length(tokens, prefix.tokens)
            if under == key and shared >= most:
                best, most = at, shared
        if best is None:
            return ()
        _, (_, found) = self._kept[best]
        if most >= found.length:
            del self._kept[best]
        return *found.records, *found.leading


def _look_up(
    store: PrefixStore,
    key: Key,
    tokens: np.ndarray,
    contents: Contents,
    grid: int,
    known: Sequence[Manifest],
) -> Answer:
    prefix = stored_prefix(store, key, tokens, contents, grid)
    return prefix, find_records(store, prefix, known)
