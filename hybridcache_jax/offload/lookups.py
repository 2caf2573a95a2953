"""Asking a store what it has, for no longer than a caller can wait."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

import numpy as np

from hybridcache_jax.contents import Contents
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.records import Found, Prefix, find_records
from hybridcache_jax.store.trust import stored_prefix

Answer = tuple[Prefix, Found]
T = TypeVar("T")


class Lookups:
    """The lookups of one ``PrefixCache`` in one store.

    One that takes too long is a miss; until it has ended, however it does, every other
    one is a miss at once: a store that hangs costs one wait.
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
        self._late: Future | None = None

    def ask(self, key: Key, tokens: np.ndarray, contents: Contents) -> Answer | None:
        """The records that lead along a prompt, and the prompt under their key.

        Args:
          key: under which the index would claim it.
          tokens: ``[n]`` int32, whole grid units.
          contents: what some of them stand for.

        Returns:
          None if the store fails or takes too long.
        """
        return self.run(_look_up, self._store, key, tokens, contents, self._grid)

    def run(self, task: Callable[..., T], *args) -> T | None:
        """What a task gives that asks the store.

        Args:
          task: what to run.
          *args: for it.

        Returns:
          None if the store fails or takes too long.
        """
        if self._late is not None and not self._late.done():
            self._watch.lookup_failed()
            return None
        future = submitted(self._executor, task, *args)
        try:
            self._late = None
            return future.result(self._patience)
        except TimeoutError:
            self._late = future
            why = TimeoutError(f"it took longer than {self._patience} s")
        except Exception as error:  # a store may fail in any way of its own
            why = error
        self._watch.lookup_failed(why)
        return None


def _look_up(
    store: PrefixStore, key: Key, tokens: np.ndarray, contents: Contents, grid: int
) -> Answer:
    prefix = stored_prefix(store, key, tokens, contents, grid)
    return prefix, find_records(store, prefix)
