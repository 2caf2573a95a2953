"""Which prefixes are of use, noted in their store so that they are not collected.

What is used on the device, again and again, asks the store for nothing: without a note
a collector would take the most used record for one that nobody needs.  And whoever
serves nothing else would not hear that others gave its records up: so a note is a look
at that, too.
"""

import contextlib
from concurrent.futures import Executor, Future

import numpy as np
from blake3 import blake3

from hybridcache_jax.contents import Contents
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.finding import find_records
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.ticks import mark_used, tick
from hybridcache_jax.store.trust import current_key, stored_prefix

# Prefixes that wait to be noted at most; what is used beyond them is noted at its next
# use.
_MOST = 256

# A prefix by what its claims are kept under: key, digest of its tokens, contents.
_Name = tuple[Key, bytes, Contents]


class Uses:
    """The uses of one ``PrefixCache``, each noted once in every tick of the store.

    One task does it at a time, beside the compiled steps, for all that was used since
    the one before: a prefix that is noted already costs a look at the time.
    """

    def __init__(self, store: PrefixStore, executor: Executor, grid: int):
        """Nothing was used.

        Args:
          store: where records lie.
          executor: runs what waits for it.
          grid: tokens of a grid unit.
        """
        self._store, self._executor, self._grid = store, executor, grid
        self._waiting: dict[_Name, np.ndarray] = {}
        self._task: Future[list[Key]] | None = None
        self._looked: list[Key] = []
        # Of the task alone: a tick, and what was noted in it.
        self._tick, self._noted = -1, set[_Name]()

    def add(self, key: Key, tokens: np.ndarray, contents: Contents) -> None:
        """A prefix was of use.

        Args:
          key: under which the index claims it.
          tokens: ``[n]`` int32, whole grid units.
          contents: what some of them stand for.
        """
        if len(self._waiting) < _MOST:
            digest = blake3(np.ascontiguousarray(tokens, "<i4").tobytes()).digest()
            self._waiting[key, digest, contents.before(len(tokens))] = tokens
        self.step()

    def step(self) -> None:
        """Notes what waits, unless a task is still at it."""
        if self._task is not None:
            if not self._task.done():
                return
            failed = self._task.cancelled() or self._task.exception() is not None
            self._looked += [] if failed else self._task.result()
            self._task = None
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._task = submitted(self._executor, self._note, waiting)

    def looked(self) -> list[Key]:
        """One key of every producer of which something was noted since the last call.

        Their generations are what the store said meanwhile.
        """
        self.step()
        looked, self._looked = self._looked, []
        return looked

    def _note(self, used: dict[_Name, np.ndarray]) -> list[Key]:
        looked: list[Key] = []
        # They are of use without it.
        with contextlib.suppress(Exception):
            of = {key.identity.within(None): key for key, _, _ in used}
            for key in of.values():
                looked.append(current_key(self._store, key))
            now = tick(self._store)
            if now != self._tick:
                self._tick, self._noted = now, set()
            for name, tokens in used.items():
                if name not in self._noted:
                    key, _, contents = name
                    prefix = stored_prefix(
                        self._store, key, tokens, contents, self._grid
                    )
                    records = find_records(self._store, prefix).records
                    # Those that it goes on from need no mark of their own.
                    mark_used(self._store, [each.key for each in records[-1:]], now)
                    self._noted.add(name)
        return looked
