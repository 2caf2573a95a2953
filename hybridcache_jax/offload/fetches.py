"""Blocks on their way from a store to the device, read beside the compiled steps."""

from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.store.manifest import BlockPlace
from hybridcache_jax.store.pack import read_blocks
from hybridcache_jax.store.prefix_store import PrefixStore

# Bytes that one task reads: enough to be read at full speed, and for several tasks to
# share what one prefix needs.
_TASK_BYTES = 8 * 2**20


class Fetches:
    """The :class:`host_tier.Reader` of one ``PrefixCache``.

    However many loads wait for a block, it is read once.
    """

    def __init__(self, plan: CapacityPlan, store: PrefixStore, executor: Executor):
        """Nothing is on its way.

        Args:
          plan: the plan of the caches.
          store: where blocks lie.
          executor: runs what waits for the store.
        """
        self._plan, self._store, self._executor = plan, store, executor
        # The task that brings a block, and which of its blocks that is.
        self._coming: dict[
            tuple[int, BlockPlace], tuple[Future[list[memoryview | None]], int]
        ] = {}

    def expect(self, pool: int, wanted: Sequence[BlockPlace]) -> None:
        """Begins to read blocks of a pool, as far as nobody has asked for them yet."""
        fresh = [where for where in wanted if (pool, where) not in self._coming]
        fresh.sort(key=lambda where: (where.pack, where.start))
        size = self._plan.spec.pools[pool].block_bytes
        step = max(1, _TASK_BYTES // size)
        for start in range(0, len(fresh), step):
            some = fresh[start : start + step]
            task = submitted(self._executor, read_blocks, self._store, some, size)
            for place, where in enumerate(some):
                self._coming[pool, where] = task, place

    def read(self, pool: int, wanted: BlockPlace) -> Payload | None:
        """A block; None while it is on its way.

        Raises:
          KeyError: if what lies there is not the block.
          StoreError: if the store fails; asked again, it is read again.
        """
        if (pool, wanted) not in self._coming:
            self.expect(pool, [wanted])
        task, place = self._coming[pool, wanted]
        if not task.done():
            return None
        del self._coming[pool, wanted]
        data = task.result()[place]
        if data is None:
            raise KeyError(wanted)
        spec = self._plan.spec.pools[pool]
        return Payload.of_bytes(spec, self._plan.backend, data, wanted.digest)

    def keep(self, wanted: Collection[tuple[int, BlockPlace]]) -> None:
        """Lets go of all but some blocks, each with its pool."""
        gone = [self._coming.pop(key)[0] for key in self._coming.keys() - set(wanted)]
        needed = {task for task, _ in self._coming.values()}
        for task in set(gone) - needed:
            task.cancel()
