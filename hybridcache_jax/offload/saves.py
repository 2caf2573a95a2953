"""Prefixes on their way to a store: copied between compiled steps, written beside them.

What is saved is what the index claims.  Each step of a save copies one batch of blocks
at most.  While two packs are being written nothing more is copied, so a slow store
costs time and no memory: copies take twice ``PACK_BYTES`` and two batches of the
largest block, and as much again in the objects made of them.  A block that is lost
before its turn ends the save: a record is whole or it is not written.
"""

import collections
import dataclasses
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

import numpy as np

from hybridcache_jax._version import __version__
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import NOTHING, Claims, Holds
from hybridcache_jax.contents import Contents
from hybridcache_jax.forms import RULES
from hybridcache_jax.observe.declarations import SaveEnd
from hybridcache_jax.observe.watch import Watch
from hybridcache_jax.offload.held_back import Published
from hybridcache_jax.offload.stored_blocks import Block, offered, required_blocks
from hybridcache_jax.offload.tasks import submitted
from hybridcache_jax.offload.whereabouts import Whereabouts
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store.manifest import BlockPlace, Manifest
from hybridcache_jax.store.pack import GonePackError, write_blocks
from hybridcache_jax.store.prefix_store import PrefixStore, StoreError
from hybridcache_jax.store.records import (
    Found,
    PoolBlocks,
    Prefix,
    find_records,
    write_record,
)
from hybridcache_jax.store.ticks import tick
from hybridcache_jax.store.trust import stored_prefix

MOST_WAITING = 64
"""Saves that wait at most; what is published beyond them is not saved."""

PACK_BYTES = 16 * 2**20
"""Bytes of blocks from which on they are written as one pack."""

# Failures of one save for which the store is the reason, after which it is let go.
_MOST_TRIES = 8
# Polls before the second try; twice as many before each one that follows.
_PAUSE = 16
# Times that one try begins anew because what it was to name is gone.
_MOST_GONE = 3

# Packs at once, the one included that is copied while another is written.
_PACKS = 2

# The cache at a step, and which claims of the save's key are true then.
Moment = tuple[HybridCache, Holds]
Steps = Generator[None, Moment, SaveEnd]
# Blocks, and the task that says where they lie when it has written them.
Writing = tuple[list[Block], Future[list[BlockPlace]]]
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
        store: PrefixStore,
        executor: Executor,
        index: PrefixIndex,
        whereabouts: Whereabouts,
        watch: Watch,
        current: Callable[[Key], bool],
        use: Callable[[Key, np.ndarray, Contents], None],
    ):
        """Nothing waits.

        Args:
          plan: the plan of the caches.
          store: where to.
          executor: runs what waits for the store.
          index: says where blocks are.
          whereabouts: has the blocks, and is told where they lie.
          watch: counts how saves end.
          current: whether what is claimed may be saved under a key of the store; if
            not, :meth:`give_up` is called meanwhile for what was claimed before.
          use: told of what is in the store and was published again.
        """
        self._plan, self._store, self._executor = plan, store, executor
        self._index, self._watch, self._whereabouts = index, watch, whereabouts
        self._current, self._use = current, use
        self._waiting: collections.deque[_Turn] = collections.deque()
        # Saves that failed and are tried again; they do not count as waiting.
        self._failed: list[_Turn] = []
        self._writes: list[Future[list[BlockPlace]]] = []

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
        self._waiting.append(_Turn(save, self._begun(save)))

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
            return
        turn = self._waiting[0]
        try:
            turn.steps.send((cache, holds_for(turn.save.key)))
        except StopIteration as done:
            end = done.value
        except GonePackError as error:
            # Known blocks were swept from the store; this save copies them anew.
            self._whereabouts.refuse(error.pack)
            turn.gone += 1
            if turn.gone < _MOST_GONE:
                turn.steps = self._begun(turn.save)
                return
            end = SaveEnd.FAILED
        except StoreError:
            end = SaveEnd.FAILED
            turn.tries += 1
            if turn.tries < _MOST_TRIES and len(self._failed) < MOST_WAITING:
                turn.pause = _PAUSE << turn.tries
                self._failed.append(turn)
        except Exception:  # a store may fail in any way of its own
            end = SaveEnd.FAILED
        else:
            return
        # Unless it was given up with all that its producer had stored.
        if self._waiting and self._waiting[0] is turn:
            self._waiting.popleft()
            self._watch.save_ended(end)

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
        """What failed is tried again at once."""
        for turn in self._failed:
            turn.pause = 0
        self._try_again()

    def _try_again(self) -> None:
        """What failed waits again, when its pause is over."""
        for turn in [each for each in self._failed if each.pause <= 0]:
            if not self.full:
                self._failed.remove(turn)
                turn.steps, turn.gone = self._begun(turn.save), 0
                self._waiting.append(turn)

    def _begun(self, save: Save) -> Steps:
        steps = self._steps(save)
        next(steps)
        return steps

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
            while self._busy():
                yield
            while writing and writing[0][1].done():
                places.update((yield from self._written(writing.popleft())))
            cache, holds = yield
            there, data = self._copies(save, cache, holds, pool, numbers)
            # While it waits it must not keep memory alive that a step donates.
            del cache, holds
            if len(there) + len(data) < len(numbers):
                return None
            places.update(there)
            copied += data
            if sum(len(data) for _, data in copied) >= PACK_BYTES:
                writing.append(self._write_pack(copied))
                copied = []
        if copied:
            writing.append(self._write_pack(copied))
        while writing:
            places.update((yield from self._written(writing.popleft())))
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

    def _write_pack(self, copied: list[tuple[Block, memoryview]]) -> Writing:
        """Begins to write what was copied; the list is emptied meanwhile."""
        blocks = [block for block, _ in copied]
        data = _taken(copied)
        task = submitted(self._executor, write_blocks, self._store, data)
        self._writes.append(task)
        return blocks, task

    def _busy(self) -> bool:
        """Whether no more may be copied, for packs of this save and of ended ones."""
        self._writes = [task for task in self._writes if not task.done()]
        return len(self._writes) >= _PACKS

    def _written(
        self, writing: Writing
    ) -> Generator[None, Moment, dict[Block, BlockPlace]]:
        """Where blocks lie, once they are written."""
        blocks, future = writing
        while not future.done():
            yield
        places = future.result()
        for pack in {place.pack for place in places}:
            self._whereabouts.written(pack)
        return dict(zip(blocks, places, strict=True))

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


def _taken(copied: list[tuple[Block, memoryview]]) -> Iterator[tuple[int, memoryview]]:
    """Numbers and bytes in order; none is kept here once it was taken."""
    copied.reverse()
    while copied:
        (_, number), data = copied.pop()
        yield number, data


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
