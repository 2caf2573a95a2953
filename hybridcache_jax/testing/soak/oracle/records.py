"""A store as the oracle has it: records by name, packs, and how time passes there.

Nothing is compared but tokens and readers; whether a pack's bytes are good is a flag.
Which names objects were given is told by the machine.
"""

import collections
import dataclasses
from typing import NamedTuple

from hybridcache_jax.testing.soak.oracle.ledger import Pool, Who

# Records beside each other that are looked at.
_MOST = 16

Tokens = tuple[int, ...]
# By pool and number of a block, the pack that it lies in.
Places = dict[tuple[int, int], str]


class Reader(NamedTuple):
    """Whose records: two that are equal find what the other saved."""

    identity: int
    owner: str
    scope: int
    given_up: int


class Found(NamedTuple):
    """Records that lead along a prompt.

    Attributes:
      length: tokens that they and the prompt have in common.
      chain: those that have most in common with it.
      leading: those that lead furthest of all that the prompt runs through.
    """

    length: int
    chain: "list[Record]"
    leading: "list[Record]"


@dataclasses.dataclass(eq=False)
class Record:
    """One resume point.

    Attributes:
      reader: who finds it.
      tokens: all up to its end.
      start: where it goes on from another one.
      places: its blocks.
      written: the time.
      damaged: whether it can no longer be read.
    """

    reader: Reader
    tokens: Tokens
    start: int
    places: Places
    written: int
    damaged: bool = False


class Records:
    """Everything that outlives the process.

    Attributes:
      pools: their sizes.
      records: by name, in the order in which the names came.
      packs: by name, whether the bytes are those that were written.
      noted: packs that the next collection deletes if nothing names them.
      time: collections so far.
      told: names of objects that were written, in order; what is written here takes
        one of them.
    """

    def __init__(self, pools: tuple[Pool, ...], grid: int):
        """An empty store."""
        self.pools, self._grid = pools, grid
        self.records: dict[str, Record] = {}
        self.packs: dict[str, bool] = {}
        self.noted: set[str] = set()
        self.time = 0
        self.told: list[str] = []
        self._used: dict[tuple[Reader, Tokens], int] = {}
        self._given_up: collections.Counter = collections.Counter()

    def reader(self, who: Who) -> Reader:
        """Whose records somebody finds now."""
        given_up = self._given_up[who.producer]
        return Reader(who.identity, who.owner, who.scope, given_up)

    def give_up(self, producer: int) -> None:
        """What a producer saved so far is found by nobody."""
        self._given_up[producer] += 1

    def prefixes(self, who: Who) -> list[Tokens]:
        """What somebody would find."""
        reader = self.reader(who)
        return [r.tokens for r in self.records.values() if r.reader == reader]

    # What is there.

    def find(self, reader: Reader, prompt: Tokens) -> Found:
        """How far records lead along a prompt, and which."""
        chains: dict[int, list[Record]] = {0: []}
        best, longest, open_ = (0, True), chains[0], [0]
        while open_:
            at = open_.pop()
            for record in self._beside(reader, prompt, at):
                same = self._common(record.tokens, prompt)
                chain, whole = [*chains[at], record], same == len(record.tokens)
                if (same, whole) > best:
                    best, longest = (same, whole), chain
                if whole and same not in chains:
                    chains[same] = chain
                    open_.append(same)
        return Found(best[0], longest, chains[max(chains)])

    def offered(
        self, length: int, chain: list[Record], refused: set[str]
    ) -> tuple[int, Places]:
        """Where the last record stops before which all is sound, and all sound blocks.

        Args:
          length: tokens of the prompt that the records have.
          chain: the records.
          refused: packs that do not count.
        """
        stop, sound, places = 0, True, {}
        for record in chain:
            sound = sound and refused.isdisjoint(record.places.values())
            places |= {
                (pool, number): pack
                for (pool, number), pack in record.places.items()
                if (number + 1) * self.pools[pool].size <= length
                and pack not in refused
            }
            if sound and len(record.tokens) <= length:
                stop = len(record.tokens)
        return stop, places

    def used(self, chain: list[Record]) -> None:
        """Records were of use."""
        for record in chain:
            self._used[record.reader, record.tokens] = self.time

    def lasts(self, pack: str) -> bool:
        """Whether a new record may name a pack."""
        return pack in self.packs and pack not in self.noted

    # What changes.

    def write_pack(self) -> str:
        """The name of a new pack, or of an old one of the same bytes."""
        name = self._named()
        self.packs[name] = True
        return name

    def write(self, reader: Reader, tokens: Tokens, start: int, places: Places) -> None:
        """A record, maybe in the place of one that was damaged."""
        record = Record(reader, tokens, start, places, self.time)
        self.records[self._named()] = record

    def damage(self, name: str, gone: bool) -> None:
        """An object is something else, or gone."""
        if gone:
            (self.records if name in self.records else self.packs).pop(name)
        elif name in self.records:
            self.records[name].damaged = True
        else:
            self.packs[name] = False

    def collect(self, keep: int | None) -> None:
        """Drops what was of no use for long, and packs in two phases.

        Args:
          keep: collections that a record outlives without being of use; None for all.
        """
        self.time += 1
        unread = [record for record in self.records.values() if record.damaged]
        stay = {id(r) for record in unread for r in self._leads_to(record)}
        for name, record in list(self.records.items()):
            old = keep is not None and self.time - self._useful(record) > keep
            if old and not record.damaged and id(record) not in stay:
                del self.records[name]
        if unread:
            # What they name is unknown.
            return
        named = {p for record in self.records.values() for p in record.places.values()}
        unused = self.packs.keys() - named
        for pack in unused & self.noted:
            del self.packs[pack]
        self.noted = unused - self.noted

    def _named(self) -> str:
        return self.told.pop(0) if self.told else "nothing was written"

    def _beside(self, reader: Reader, prompt: Tokens, at: int) -> list[Record]:
        """Records that go on from ``at`` with the prompt's next unit."""
        end = at + self._grid
        found = [
            record
            for record in self.records.values()
            if (record.reader, record.start) == (reader, at)
            and record.tokens[:end] == prompt[:end]
        ]
        if end > len(prompt):
            return []
        # Those that the prompt runs through come first, the furthest before the others.
        found.sort(key=lambda r: -len(r.tokens) * (prompt[: len(r.tokens)] == r.tokens))
        return [record for record in found[:_MOST] if not record.damaged]

    def _common(self, one: Tokens, other: Tokens) -> int:
        """Tokens that both begin with, whole grid units."""
        same = 0
        while same < min(len(one), len(other)) and one[same] == other[same]:
            same += 1
        return same - same % self._grid

    def _leads_to(self, record: Record) -> list[Record]:
        """Records that it goes on from, and so on."""
        found, open_ = [], [record]
        while open_:
            after = open_.pop()
            before = [
                r
                for r in self.records.values()
                if (r.reader, r.tokens) == (after.reader, after.tokens[: after.start])
                and not r.damaged
                and r not in found
            ]
            found += before
            open_ += before
        return found

    def _useful(self, record: Record) -> int:
        """When it, or what goes on from it, was last of use."""
        own = max(record.written, self._used.get((record.reader, record.tokens), 0))
        after = (
            self._useful(r)
            for r in self.records.values()
            if r.reader == record.reader
            and not r.damaged
            and r.start == len(record.tokens)
            and r.tokens[: r.start] == record.tokens
        )
        return max([own, *after])


class Uses:
    """What one process notes of its uses: once in every tick."""

    def __init__(self, records: Records):
        """Nothing was used."""
        self._records = records
        self._time, self._noted = -1, set[tuple[Who, Tokens]]()

    def add(self, who: Who, tokens: Tokens) -> None:
        """A prefix was of use; the last record that leads along it is noted."""
        if self._time != self._records.time:
            self._time, self._noted = self._records.time, set()
        if who.outlives and (who, tokens) not in self._noted:
            self._noted.add((who, tokens))
            _, chain, _ = self._records.find(self._records.reader(who), tokens)
            self._records.used(chain[-1:])
