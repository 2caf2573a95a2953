"""Packs on their way to a store: only so many are being written at any time."""

from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

from hybridcache_jax.offload.stored_blocks import Block
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.store.manifest import BlockPlace
from hybridcache_jax.store.pack import write_blocks
from hybridcache_jax.store.prefix_store import PrefixStore

PACK_BYTES = 16 * 2**20
"""Bytes of blocks from which on they are written as one pack."""

# Packs at once, the one included that is copied while another is written.
_PACKS = 2


class Writing(NamedTuple):
    """A pack that is being written.

    Attributes:
      blocks: that are in it, in order.
      task: says where they lie when it has written them.
    """

    blocks: list[Block]
    task: Future[list[BlockPlace]]


class PackWrites:
    """Writes packs beside the steps, for all saves of one ``PrefixCache``."""

    def __init__(
        self, store: PrefixStore, executor: Executor, whereabouts: Whereabouts
    ):
        """Nothing is being written.

        Args:
          store: where to.
          executor: runs what waits for the store.
          whereabouts: told of packs that were written.
        """
        self._store, self._executor, self._whereabouts = store, executor, whereabouts
        self._tasks: list[Future[list[BlockPlace]]] = []

    @property
    def busy(self) -> bool:
        """Whether no more may be copied, for packs of this save and of ended ones."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return len(self._tasks) >= _PACKS

    def begin(self, copied: list[tuple[Block, memoryview]]) -> Writing:
        """Begins to write what was copied; the list is emptied meanwhile."""
        blocks = [block for block, _ in copied]
        data = _taken(copied)
        task = submitted(self._executor, write_blocks, self._store, data)
        self._tasks.append(task)
        return Writing(blocks, task)

    def written(self, pack: Writing) -> Generator[None, Any, dict[Block, BlockPlace]]:
        """Where blocks lie; goes on until they are written."""
        while not pack.task.done():
            yield
        places = pack.task.result()
        for name in {place.pack for place in places}:
            self._whereabouts.written(name)
        return dict(zip(pack.blocks, places, strict=True))


def _taken(copied: list[tuple[Block, memoryview]]) -> Iterator[tuple[int, memoryview]]:
    """Numbers and bytes in order; none is kept here once it was taken."""
    copied.reverse()
    while copied:
        (_, number), data = copied.pop()
        yield number, data
