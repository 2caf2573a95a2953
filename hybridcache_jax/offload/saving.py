"""One save: the blocks that a store lacks of a prefix, and the record that names them.

Each step copies one batch of blocks at most.  While two packs are being written nothing
more is copied, so a slow store costs time and no memory: copies take twice
``PACK_BYTES`` and two batches of the largest block, and as much again in the objects
made of them.  A block that is lost before its turn ends the save: a record is whole or
it is not written.
"""

import collections
import dataclasses
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from typing import TypeVar

import numpy as np

from hybridcache_jax._version import __version__
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import NOTHING, Holds
from hybridcache_jax.contents import Contents
from hybridcache_jax.forms import RULES
from hybridcache_jax.observe.declarations import SaveEnd
from hybridcache_jax.offload.held_back import Published
from hybridcache_jax.offload.pack_writes import PACK_BYTES, PackWrites, Writing
from hybridcache_jax.offload.stored_blocks import Block, offered, required_blocks
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.finding import Found, find_records
from hybridcache_jax.store.manifest import BlockPlace, Manifest
from hybridcache_jax.store.pack import GonePackError
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.records import PoolBlocks, Prefix, write_record
from hybridcache_jax.store.ticks import tick
from hybridcache_jax.store.trust import stored_prefix

# The cache at a step, and which claims of the save's key are true then.
Moment = tuple[HybridCache, Holds]
Steps = Generator[None, Moment, SaveEnd]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Save(Published):
    """One prefix to be saved.

    Attributes:
      held: per pool, ascending numbers of its blocks: of what grows with the history
        all, of the others what is kept.
    """

    held: tuple[np.ndarray, ...]

    def behind(self, spec: CacheSpec, start: int) -> list[list[int]]:
        """Per pool, the blocks of a record that goes on from ``start``.

        What its own end requires may lie before that.
        """
        named = []
        for pool, numbers in zip(spec.pools, self.held, strict=True):
            first = start // pool.block_tokens
            if not RULES[pool.form].grows:
                first = min([first, *required_blocks(pool, len(self.tokens))[:1]])
            named.append(numbers[numbers >= first].tolist())
        return named

    def until(self, spec: CacheSpec, stop: int) -> "Save":
        """What of it a record has that stops at ``stop``, without the logits."""
        held = (
            numbers[numbers < stop // pool.block_tokens]
            for pool, numbers in zip(spec.pools, self.held, strict=True)
        )
        return dataclasses.replace(
            self,
            tokens=self.tokens[:stop],
            contents=self.contents.before(stop),
            held=tuple(held),
            logits=None,
        )


class Saving:
    """Takes the saves of one ``PrefixCache`` from beginning to end.

    Attributes:
      batches: how many were copied for them so far.
    """

    def __init__(
        self,
        plan: CapacityPlan,
        store: PrefixStore,
        executor: Executor,
        index: PrefixIndex,
        whereabouts: Whereabouts,
        current: Callable[[Key], bool],
        use: Callable[[Key, np.ndarray, Contents], None],
    ):
        """Nothing is begun.

        Args:
          plan: the plan of the caches.
          store: where to.
          executor: runs what waits for the store.
          index: says where blocks are.
          whereabouts: has the blocks, and is told where they lie.
          current: whether what is claimed may be saved under a key of the store; if
            not, ``Saves.give_up`` is called meanwhile for what was claimed before.
          use: told of what is in the store and was published again.
        """
        self._plan, self._store, self._executor = plan, store, executor
        self._index, self._whereabouts = index, whereabouts
        self._current, self._use = current, use
        self._packs = PackWrites(store, executor, whereabouts)
        self.batches = 0

    def begun(self, save: Save) -> Steps:
        """The steps of a save; each is sent the cache of its moment, and what is true.

        They return how it ended.

        Raises:
          StoreError: from a step, if the store fails.
          GonePackError: from a step, if blocks that were known were swept from it.
        """
        steps = self._steps(save)
        next(steps)
        return steps

    def _steps(self, save: Save) -> Steps:
        """One save from beginning to end; goes on with every moment it is given."""
        yield
        prefix = yield from self._done(
            stored_prefix,
            self._store,
            save.key,
            save.tokens,
            save.contents,
            self._plan.spec.grid,
        )
        if not self._current(prefix.key):
            return SaveEnd.FAILED
        found = yield from self._done(find_records, self._store, prefix)
        start, places = self._offered(found)
        if start < len(save.tokens):
            parted = _parted(found, start)
            if start < parted < len(save.tokens):
                # Others will leave the record there as well: what they share is one of
                # its own, so that none has to look through all of them.
                shared = save.until(self._plan.spec, parted)
                named = shared.behind(self._plan.spec, start)
                if not (yield from self._record(shared, prefix, start, named, places)):
                    return SaveEnd.LOST
                start = parted
            named = save.behind(self._plan.spec, start)
        else:
            self._learn(save, places)
            record = found.leading[-1]
            if save.logits is None or self._has_logits(record):
                self._use(save.key, save.tokens, save.contents)
                return SaveEnd.THERE
            # The same record once more, and what it lacks.
            start = record.start
            named = [[place.number for place in part.blocks] for part in record.parts]
        record = yield from self._record(save, prefix, start, named, places)
        if record is None:
            return SaveEnd.LOST
        if record.logits is not None:
            self._whereabouts.written(record.logits.blocks[0].pack)
        self._learn(save, places)
        return SaveEnd.SAVED

    def _record(
        self,
        save: Save,
        prefix: Prefix,
        start: int,
        named: list[list[int]],
        places: dict[Block, BlockPlace],
    ) -> Generator[None, Moment, Manifest | None]:
        """One record, and before it the blocks that the store does not have.

        Args:
          save: what ends where the record does.
          prefix: the save's own, or a longer one.
          start: where the record begins.
          named: per pool, its blocks.
          places: where blocks lie; what is written is added.

        Returns:
          The record; None if a block is lost.
        """
        copied: list[tuple[Block, memoryview]] = []
        writing: collections.deque[Writing] = collections.deque()
        for pool, numbers in self._batches(named, places):
            while self._packs.busy:
                yield
            while writing and writing[0].task.done():
                places.update((yield from self._packs.written(writing.popleft())))
            cache, holds = yield
            there, data = self._copies(save, cache, holds, pool, numbers)
            self.batches += 1
            # While it waits it must not keep memory alive that a step donates.
            del cache, holds
            if len(there) + len(data) < len(numbers):
                return None
            places.update(there)
            copied += data
            if sum(len(data) for _, data in copied) >= PACK_BYTES:
                writing.append(self._packs.begin(copied))
                copied = []
        if copied:
            writing.append(self._packs.begin(copied))
        while writing:
            places.update((yield from self._packs.written(writing.popleft())))
        contents = prefix.contents.before(len(save.tokens))
        own = dataclasses.replace(prefix, tokens=save.tokens, contents=contents)
        parts = self._parts(named, places)
        return (
            yield from self._done(_write, self._store, own, start, parts, save.logits)
        )

    def _offered(self, found: Found) -> tuple[int, dict[Block, BlockPlace]]:
        """Where a record goes on from what the store has, and where blocks lie there.

        The records that share most may begin before others that lead as far: each of
        them would then have to be looked at by everybody who comes that way.
        """
        refused = self._whereabouts.refused
        start, places = offered(self._plan.spec, found, refused)
        whole = dataclasses.replace(found, records=found.leading)
        stop, more = offered(self._plan.spec, whole, refused)
        return (stop, more | places) if stop > start else (start, places)

    def _has_logits(self, record: Manifest) -> bool:
        part = record.logits
        refused = self._whereabouts.refused
        return part is not None and part.blocks[0].pack not in refused

    def _done(
        self, task: Callable[..., T], *args, **options
    ) -> Generator[None, Moment, T]:
        """What a task gives that waits for the store."""
        future = submitted(self._executor, task, *args, **options)
        while not future.done():
            yield
        return future.result()

    def _batches(
        self, named: list[list[int]], places: dict[Block, BlockPlace]
    ) -> Iterator[tuple[int, list[int]]]:
        """Blocks that the store does not have, as many as are copied at once."""
        most = self._plan.staging_blocks
        for pool, numbers in enumerate(named):
            missing = [n for n in numbers if (pool, n) not in places]
            for start in range(0, len(missing), most):
                yield pool, missing[start : start + most]

    def _copies(
        self,
        save: Save,
        cache: HybridCache,
        holds: Holds,
        pool: int,
        numbers: list[int],
    ) -> tuple[dict[Block, BlockPlace], list[tuple[Block, memoryview]]]:
        """A batch of blocks: where they lie in the store, or their bytes.

        A block that is in neither, or is damaged, is lost.
        """
        claims = self._index.lookup(save.key, save.tokens, save.contents)
        numbers = [n for n in numbers if n < len(claims.blocks[pool])]
        ids, epochs = claims.blocks[pool][numbers], claims.epochs[pool][numbers]
        size = self._plan.spec.pools[pool].block_tokens
        first = np.array(numbers, np.int32) * np.int32(size)
        good = np.flatnonzero(holds(pool, ids, epochs, first))
        there, here = {}, []
        for at in good.tolist():
            place = self._whereabouts.stored(pool, int(ids[at]), int(epochs[at]))
            if place is None:
                here.append(at)
            else:
                there[pool, numbers[at]] = place
        data = self._whereabouts.copies(cache, pool, ids[here])
        blocks = [(pool, numbers[at]) for at in here]
        pairs = zip(blocks, data, strict=True)
        return there, [(block, own) for block, own in pairs if own is not None]

    def _parts(
        self, named: list[list[int]], places: dict[Block, BlockPlace]
    ) -> list[PoolBlocks]:
        """What the record names, unless a pack does not count any more."""
        for place in places.values():
            if place.pack in self._whereabouts.refused:
                # Meanwhile a load failed for it, of a block or of what comes before.
                raise GonePackError(place.pack)
        return [
            PoolBlocks(pool, [(n, places[number, n]) for n in named[number]])
            for number, pool in enumerate(self._plan.spec.pools)
        ]

    def _learn(self, save: Save, places: dict[Block, BlockPlace]) -> None:
        """Remembers of what is claimed now where it lies in the store."""
        claims = self._index.lookup(save.key, save.tokens, save.contents)
        for (pool, number), where in places.items():
            if number < len(claims.blocks[pool]):
                block = int(claims.blocks[pool][number])
                epoch = int(claims.epochs[pool][number])
                if block != NOTHING:
                    self._whereabouts.lies(pool, block, epoch, where)


def _parted(found: Found, start: int) -> int:
    """Where a prompt leaves the record that shares most with it; ``start`` if none."""
    last = found.records[-1:]
    return found.length if last and last[0].stop > found.length else start


def _write(
    store: PrefixStore,
    prefix: Prefix,
    start: int,
    parts: list[PoolBlocks],
    logits: np.ndarray | None,
) -> Manifest:
    """Writes the record of blocks that are written."""
    more = {"library": __version__, "age": tick(store), "logits": logits}
    return write_record(store, prefix, start, parts, **more)
