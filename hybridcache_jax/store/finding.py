"""Which records lead along a prompt: found by names, believed by what they say.

The name of a record says where it ends.  So the names alone lead from record to record,
those beside each other are listed at once, and all that are named are opened at once
then: a chain of records costs a store far away one round trip each, and two more.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from hybridcache_jax.store.keys import contents_between
from hybridcache_jax.store.logits import logits_problem
from hybridcache_jax.store.manifest import (
    MOST_BYTES,
    Manifest,
    ManifestError,
    decode,
)
from hybridcache_jax.store.parallel import in_order
from hybridcache_jax.store.prefix_store import (
    LargeObjectError,
    PrefixStore,
    read_at_most,
)
from hybridcache_jax.store.records import Prefix, folder_of
from hybridcache_jax.tokens import common_length

# Records beside each other that are opened to see how far they go along.
_MOST_OPENED = 16

# Calls of a store at once.
_THREADS = 8


@dataclasses.dataclass(frozen=True)
class Found:
    """The records that lead along a prompt.

    Attributes:
      records: each goes on where the one before stops.
      length: tokens that they and the prompt have in common, whole grid units; less
        than where the last one stops if the prompt leaves it before.
      problems: names of records that were passed by, and what is wrong with each.
      leading: those that lead furthest of all of which the prompt has every token: a
        record of the rest of it goes on where they stop.
    """

    records: tuple[Manifest, ...]
    length: int
    problems: tuple[tuple[str, str], ...]
    leading: tuple[Manifest, ...]


def find_records(
    store: PrefixStore, prompt: Prefix, known: Iterable[Manifest] = ()
) -> Found:
    """The records that lead furthest along a prompt.

    Args:
      store: where from.
      prompt: what is asked for; its provenance is the one looked for.
      known: records that were found before, maybe along another prompt and under a key
        of before: those along this one are not opened again, and the store is asked for
        what goes on from them.

    Raises:
      StoreError: if the store fails.
    """
    keys, problems, walk = prompt.keys(), [], _Walk(prompt)
    given = {record.key: record for record in known}
    for record in sorted(given.values(), key=lambda record: record.start):
        at = record.start // prompt.grid
        # Its key has all that must be equal up to there.
        if keys[at : at + 1] == [record.parent]:
            walk.go(record, at)
    skipped = {key.hex() for key in given}
    places = [
        (at, name)
        for at, names in _named(store, keys, max(walk.reached)).items()
        for name in names
        if _end(name) not in skipped
    ]

    def opened(place: tuple[int, str]) -> tuple[Manifest | None, str]:
        at, name = place
        return _opened(store, name, prompt, keys[at], at * prompt.grid)

    answers = in_order(opened, places, max(1, min(_THREADS, len(places))))
    for (at, name), (record, why) in zip(places, answers, strict=True):
        if record is None:
            problems.append((name, why))
        else:
            walk.go(record, at)
    return walk.found(problems)


class _Walk:
    """How far whole records lead along a prompt, from its beginning on."""

    def __init__(self, prompt: Prefix):
        self._prompt = prompt
        # Per unit that whole records lead to: the last of them, and where it goes on
        # from.
        self.reached: dict[int, tuple[Manifest, int] | None] = {0: None}
        # Units in common with the prompt, whether the record has no more, and it.
        self._best: tuple[int, bool, tuple[Manifest, int] | None] = 0, True, None

    def go(self, record: Manifest, at: int) -> None:
        """Goes on with a record that begins at a unit, if others lead there."""
        if at not in self.reached:
            return
        along = _along(record, self._prompt) // self._prompt.grid
        whole = along * self._prompt.grid == record.stop
        if (along, whole) > self._best[:2]:
            self._best = along, whole, (record, at)
        if whole:
            self.reached.setdefault(along, (record, at))

    def found(self, problems: Sequence[tuple[str, str]]) -> Found:
        """What it came to."""
        return Found(
            records=self._leading_to(self._best[2]),
            length=self._best[0] * self._prompt.grid,
            problems=tuple(problems),
            leading=self._leading_to(self.reached[max(self.reached)]),
        )

    def _leading_to(self, step: tuple[Manifest, int] | None) -> tuple[Manifest, ...]:
        chain = []
        while step is not None:
            chain.append(step[0])
            step = self.reached[step[1]]
        return tuple(reversed(chain))


def _named(
    store: PrefixStore, keys: Sequence[bytes], first: int
) -> dict[int, list[str]]:
    """Per unit, in order, the records that go on from it, if names lead there.

    Args:
      store: where from.
      keys: of the prompt.
      first: unit from which on the store is asked.
    """
    ends = {key.hex(): unit for unit, key in enumerate(keys)}
    named: dict[int, list[str]] = {}
    wave = [first]
    while wave:
        lists = in_order(
            lambda at: _beside(store, keys, ends, at), wave, min(_THREADS, len(wave))
        )
        named.update(zip(wave, lists, strict=True))
        beyond = {ends.get(_end(name), 0) for at in wave for name in named[at]}
        wave = sorted(at for at in beyond if at > first and at not in named)
    return dict(sorted(named.items()))


def _end(name: str) -> str:
    """The key, in hex, of the prefix where a record ends."""
    return name.rpartition("/")[2]


def _beside(
    store: PrefixStore, keys: Sequence[bytes], ends: dict[str, int], at: int
) -> list[str]:
    """Records that go on from a unit with the prompt's next one, the likeliest first.

    Those come first that the prompt runs through, the furthest before the others.
    """
    if at + 1 >= len(keys):
        return []
    names = [name for name in store.names(folder_of(keys, at)) if name.count("/") == 3]
    names.sort(key=lambda name: -ends.get(_end(name), 0))
    return names[:_MOST_OPENED]


def _opened(
    store: PrefixStore, name: str, prompt: Prefix, parent: bytes, start: int
) -> tuple[Manifest | None, str]:
    """A record that goes on from ``parent``; or None and what is wrong with it."""
    try:
        data = read_at_most(store, name, MOST_BYTES)
    except LargeObjectError as error:
        return None, str(error)
    if data is None:
        return None, "it is gone"
    try:
        record = decode(data)
    except ManifestError as error:
        return None, str(error)
    if record.key.hex() != _end(name):
        return None, "it lies under the name of another record"
    identity = dataclasses.asdict(prompt.key.identity)
    changed = [
        field
        for field, value in identity.items()
        if record.identity.get(field) != value
    ]
    if changed or record.identity.keys() != identity.keys():
        return None, f"another producer wrote it: {', '.join(changed) or 'fields'}"
    key = prompt.key
    readers = int(key.scope), key.owner, key.generation, int(key.provenance)
    written = record.scope, record.owner, record.generation, record.provenance
    if written != readers:
        return None, "it was written for other readers"
    wanted = prompt.grid, parent, start
    if (record.grid, record.parent, record.start) != wanted:
        return None, "it does not go on from the record before"
    whole = record.stop - record.start
    if whole <= 0 or whole % record.grid or len(record.tokens) != 4 * whole:
        return None, "its tokens are not those of its range"
    ends = [edge for span in record.contents for edge in span[:2]]
    if ends != sorted(ends) or any(not 0 <= edge <= whole for edge in ends):
        return None, "its contents lie outside of its range"
    why = logits_problem(record)
    return (record, "") if why is None else (None, why)


def _along(record: Manifest, prompt: Prefix) -> int:
    """Up to where prompt and record have the same tokens and contents."""
    stop = min(record.stop, len(prompt.tokens))
    own = np.frombuffer(record.tokens, "<i4")[: stop - record.start]
    asked = prompt.tokens[record.start : stop]
    same = record.start + common_length(own, asked)
    # Content ids are few: the first position at which they part.
    size = stop - record.start
    first = _at_positions(
        (begin, min(end, size), kind, name)
        for begin, end, kind, name in record.contents
    )
    other = _at_positions(contents_between(prompt.contents, record.start, stop))
    for position in sorted(first.keys() | other.keys()):
        if first.get(position) != other.get(position):
            return min(same, record.start + position)
    return same


def _at_positions(
    contents: Iterable[tuple[int, int, str, str]],
) -> dict[int, tuple[str, str]]:
    return {
        position: (kind, name)
        for start, stop, kind, name in contents
        for position in range(start, stop)
    }
