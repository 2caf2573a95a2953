"""Prefixes on their way to a store as the oracle has them, batch by batch."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from hybridcache_jax.testing.soak.oracle.ledger import Block, Who
from hybridcache_jax.testing.soak.oracle.outer import Reads
from hybridcache_jax.testing.soak.oracle.records import (
    Found,
    Places,
    Reader,
    Records,
    Tokens,
    Uses,
)
from hybridcache_jax.testing.soak.oracle.store import Store
from hybridcache_jax.testing.soak.oracle.tier import Tier

_REST, _FEW = 7, 8
_MOST_WAITING = 64


class _GoneError(Exception):
    """A pack that a new record was to name is gone, or goes before long."""


class _ReadError(Exception):
    """The tier failed."""


@dataclasses.dataclass(eq=False)
class Save:
    """A prefix that shall be saved.

    Attributes:
      who: for whom it was published.
      tokens: of it.
      held: per pool, numbers of the blocks that were there.
      steps: what is left to do.
    """

    who: Who
    tokens: Tokens
    held: list[list[int]]
    steps: Iterator[str]


class Saves:
    """What was published and is not saved yet.

    Attributes:
      waiting: the oldest first; only that one has its turn.
      ends: how saves ended.
    """

    def __init__(
        self, records: Records, claims: Store, tier: Tier, uses: Uses, batch: int
    ):
        """Nothing waits.

        Args:
          records: where to.
          claims: say where the blocks are.
          tier: has those that moved out.
          uses: told of what is there already.
          batch: blocks that are copied at once.
        """
        self._records, self._claims, self._tier = records, claims, tier
        self._batch, self._pools, self._uses = batch, claims.blocks.pools, uses
        self.waiting: list[Save] = []
        self.hurried, self._rest, self._batches = False, 0, 0
        self.ends: collections.Counter = collections.Counter()

    def published(self, who: Who, tokens: Tokens) -> None:
        """Waits to be saved, unless its history has a hole."""
        if not who.outlives:
            return
        claims = self._claims.claimed(who, tokens)
        held = [[n for n, block in enumerate(part) if _there(block)] for part in claims]
        for pool, part, numbers in zip(self._pools, claims, held, strict=True):
            if pool.grows and len(numbers) < len(part):
                return
        for save in self.waiting[1:]:
            if save.who == who and save.tokens == tokens[: len(save.tokens)]:
                self._ended(save, "merged")
        if len(self.waiting) >= _MOST_WAITING:
            self.ends["too_many"] += 1
            return
        save = Save(who, tokens, held, iter(()))
        save.steps = self._steps(save)
        self.waiting.append(save)

    def step(self, reads: Reads) -> None:
        """The oldest goes a batch further.

        Args:
          reads: those of the poll, with their fault.
        """
        if not self.waiting:
            self.hurried, self._rest = False, 0
            return
        if self._rest and len(self.waiting) <= _FEW and not self.hurried:
            self._rest -= 1
            return
        save, self._reads, self._rest = self.waiting[0], reads, 0
        batches = self._batches
        try:
            end = next(save.steps)
        except _GoneError as gone:
            self._tier.refuse(gone.args[0])
            save.steps = self._steps(save)
        except _ReadError:
            self._ended(save, "failed")
        else:
            if end:
                self._ended(save, end)
            elif self._batches > batches:
                self._rest = _REST

    def give_up(self, gone) -> None:
        """What was published for some is not saved any more.

        Args:
          gone: tells them.
        """
        for save in [save for save in self.waiting if gone(save.who)]:
            self._ended(save, "lost")

    def _ended(self, save: Save, end: str) -> None:
        self.waiting.remove(save)
        self.ends[end] += 1

    def _steps(self, save: Save) -> Iterator[str]:
        """Step by step: empty while there is more to do, and how it ends."""
        reader = self._records.reader(save.who)
        found = self._records.find(reader, save.tokens)
        start, places = self._offered(found)
        if start == len(save.tokens):
            self._learn(save, places)
            self._uses.add(save.who, save.tokens)
            yield "there"
            return
        ends = [len(save.tokens)]
        if found.chain and len(found.chain[-1].tokens) > found.length > start:
            # There the prompt leaves a record that goes on otherwise.
            ends = sorted({found.length, *ends})
        for end in ends:
            named = self._named(save, start, end)
            copied: list[tuple[int, int]] = []
            for pool, numbers in enumerate(named):
                missing = [n for n in numbers if (pool, n) not in places]
                for at in range(0, len(missing), self._batch):
                    yield ""
                    self._batches += 1
                    some = missing[at : at + self._batch]
                    claims = self._claims.claimed(save.who, save.tokens)[pool]
                    blocks = [block for n in some for block in claims[n : n + 1]]
                    there = [block for block in blocks if block and _there(block)]
                    lying = [block for block in there if self._tier.pack(block)]
                    rest = [block for block in there if block not in lying]
                    if not self._copied(rest) or len(there) < len(some):
                        yield "lost"
                        return
                    places |= {(pool, b.number): self._tier.pack(b) for b in lying}
                    copied += [(pool, block.number) for block in rest]
            if copied:
                pack = self._records.write_pack()
                self._tier.refused.discard(pack)
                places |= dict.fromkeys(copied, pack)
            self._write(reader, save.tokens[:end], start, named, places)
            start = end
        self._learn(save, places)
        yield "saved"

    def _offered(self, found: Found) -> tuple[int, Places]:
        """Where a new record goes on from, and which blocks the store has."""
        refused = self._tier.refused
        start, places = self._records.offered(found.length, found.chain, refused)
        stop, more = self._records.offered(found.length, found.leading, refused)
        return (stop, more | places) if stop > start else (start, places)

    def _write(
        self,
        reader: Reader,
        tokens: Tokens,
        start: int,
        named: list[list[int]],
        places: Places,
    ) -> None:
        """A record, if the packs that it names last."""
        for pack in self._tier.refused.intersection(places.values()):
            raise _GoneError(pack)
        own = {
            (pool, n): places[pool, n]
            for pool, numbers in enumerate(named)
            for n in numbers
        }
        for pack in sorted(set(own.values())):
            if not self._records.lasts(pack):
                raise _GoneError(pack)
        self._records.write(reader, tokens, start, own)

    def _named(self, save: Save, start: int, end: int) -> list[list[int]]:
        """Per pool, what a record has that goes on from ``start`` and ends there."""
        named = []
        for pool, numbers in zip(self._pools, save.held, strict=True):
            first = start // pool.size
            if not pool.grows:
                first = min([first, *pool.required(end)[:1]])
            named.append([n for n in numbers if first <= n < end // pool.size])
        return named

    def _copied(self, blocks: Sequence[Block]) -> bool:
        """Whether blocks can be copied, from the device or from the tier's memory."""
        good = True
        for block in blocks:
            if not block.loadable:
                continue
            self._tier.touch(block)
            if self._reads.fault.error is not None:
                raise _ReadError
            if self._reads.late():
                good = False
            elif self._reads.fault.damage is not None:
                self._tier.quarantine(block)
                good = False
        return good

    def _learn(self, save: Save, places: Places) -> None:
        """What is claimed now lies in the store, too."""
        claims = self._claims.claimed(save.who, save.tokens)
        for (pool, number), pack in places.items():
            for block in claims[pool][number : number + 1]:
                if block and _there(block):
                    block.pack = pack


def _there(block: Block | None) -> bool:
    return block is not None and (block.readable or block.loadable)
