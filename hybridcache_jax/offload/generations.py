"""Records that were given up, by this process or another, and what follows here.

What a process claims of a producer may have come from its records, or be computed on
top of them.  So when they are given up it goes with them: nothing of it is found here
again, and nothing of it is saved under the key of what is stored from then on.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future

from hybridcache_jax.identity import Identity
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.rollout import Key
from hybridcache_jax.store import trust
from hybridcache_jax.store.prefix_store import PrefixStore

# Polls between two tries to give records up, at most.
_LONGEST_PAUSE = 1024


class Generations:
    """Of every producer, the generation of records by which one process goes."""

    def __init__(
        self,
        store: PrefixStore,
        executor: Executor,
        forget: Callable[[Identity], None],
        watch: Watch,
    ):
        """None was seen.

        Args:
          store: where records lie.
          executor: runs what waits for it.
          forget: drops all that is claimed here of a producer, and what was made of it.
          watch: counts tries that fail.
        """
        self._store, self._executor = store, executor
        self._forget, self._watch = forget, watch
        self._seen: dict[Identity, int] = {}
        # Producers whose records this process is giving up.
        self._leaving: dict[Identity, _Try] = {}

    def usable(self, identity: Identity) -> bool:
        """Whether a producer's records may be used: not while they are given up."""
        producer = identity.within(None)
        self._settle(producer)
        return producer not in self._leaving

    def current(self, stored: Key) -> bool:
        """Whether records may be used that lie under a key.

        If others gave up what was stored before, all that is claimed here goes.

        Args:
          stored: by ``trust.stored_prefix``; its generation is what the store said.
        """
        producer = stored.identity.within(None)
        known = self._seen.setdefault(producer, stored.generation)
        if stored.generation > known:
            self._seen[producer] = stored.generation
            self._forget(producer)
        return stored.generation == known and self.usable(producer)

    def give_up(self, identity: Identity) -> None:
        """Begins to give up what a producer stored so far; none of it is used again.

        Args:
          identity: the producer; its namespace does not matter.
        """
        producer = identity.within(None)
        self._leaving[producer] = _Try(self._submitted(producer))
        self._settle(producer)

    def step(self) -> None:
        """Tries again what failed, each time after twice as many of these calls."""
        for producer, last in list(self._leaving.items()):
            self._settle(producer)
            if producer not in self._leaving or not last.task.done():
                continue
            last.left -= 1
            if last.left <= 0:
                pause = min(2 * last.pause, _LONGEST_PAUSE)
                task = self._submitted(producer)
                self._leaving[producer] = _Try(task, pause)
                self._settle(producer)

    def _submitted(self, producer: Identity) -> Future[int]:
        return submitted(self._executor, trust.give_up, self._store, producer)

    def _settle(self, producer: Identity) -> None:
        """Takes notice of a try that has ended."""
        last = self._leaving.get(producer)
        if last is None or last.counted or not last.task.done():
            return
        cancelled = last.task.cancelled()
        error = None if cancelled else last.task.exception()
        if cancelled or error is not None:
            last.counted = True
            self._watch.lookup_failed(error)
            return
        del self._leaving[producer]
        known = self._seen.get(producer, 0)
        self._seen[producer] = max(known, last.task.result())


class _Try:
    """One try to give records up; after a failure, calls until the next one."""

    def __init__(self, task: Future[int], pause: int = 1):
        self.task, self.pause, self.left = task, pause, pause
        self.counted = False
