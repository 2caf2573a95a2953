"""The logical time of a store, and which records were of use when.

A tick passes with every run of the collector.  It is an object, ``ticks/<number>``, and
the largest number there is is the time: no lock, no clock of any machine, no access
times of a file system.  Who uses a record leaves an empty object
``used/<tick>/<key of the record>``.
"""

import re
from collections.abc import Iterable, Iterator

from hybridcache_jax.store.prefix_store import PrefixStore, StoreError

TICKS = "ticks"
USED = "used"

_DIGITS = 12
_TICK = re.compile(rf"{TICKS}/([0-9]{{{_DIGITS}}})")
_MARK = re.compile(rf"{USED}/([0-9]{{{_DIGITS}}})/([0-9a-f]{{32}})")
_LAST = 10**_DIGITS - 1

# Of the ticks that have passed; the newest alone would do.
_KEPT = 3


def written(tick: int) -> str:
    """A tick as it stands in names, which sort as the numbers do."""
    return f"{tick:0{_DIGITS}d}"


def tick(store: PrefixStore) -> int:
    """The logical time of a store: how often it was collected; 0 for never.

    Writers put it into ``Manifest.age``.

    Raises:
      StoreError: if the store fails.
    """
    return max((number for number, _ in _ticks(store)), default=0)


def next_tick(store: PrefixStore) -> int:
    """Lets a tick pass.  Two that do so at once may get the same one.

    Raises:
      StoreError: if the store fails, or if its ticks are used up.
    """
    there = list(_ticks(store))
    now = 1 + max((number for number, _ in there), default=0)
    if now > _LAST:
        raise StoreError(
            f"The store has the tick {_LAST}, after which there is none; delete what "
            f"is in {TICKS}/ if no collector wrote it."
        )
    store.put(f"{TICKS}/{written(now)}", b"")
    for number, name in there:
        if number <= now - _KEPT:
            store.delete(name)
    return now


def mark_used(
    store: PrefixStore, keys: Iterable[bytes], now: int | None = None
) -> None:
    """Says that records were of use, so that they are not taken for unused ones.

    A record that others go on from needs no mark of its own.  A mark that is there
    already is not written again.

    Args:
      store: where they are.
      keys: ``Manifest.key`` of each.
      now: the tick; None to look it up.

    Raises:
      StoreError: if the store fails.
    """
    folder = f"{USED}/{written(tick(store) if now is None else now)}/"
    for key in keys:
        name = folder + key.hex()
        if store.get(name) is None:
            store.put(name, b"")


def last_used(store: PrefixStore) -> dict[bytes, int]:
    """The last tick at which each record was of use, by its key.

    Marks of ticks that are yet to come are not believed.
    """
    return _last(*_marks(store))


def forget_marks(store: PrefixStore, before: int, records: Iterable[bytes]) -> None:
    """Deletes marks that say no more than others, or that are of no record.

    Those of ticks that are yet to come go, too.

    Args:
      store: where they are.
      before: only marks of earlier ticks.
      records: keys of all records; their last marks stay.
    """
    marks, now = _marks(store)
    last, known = _last(marks, now), set(records)
    for number, key, name in marks:
        no_more = key not in known or number < last.get(key, 0)
        if number > now or (number < before and no_more):
            store.delete(name)


def _ticks(store: PrefixStore) -> Iterator[tuple[int, str]]:
    for name in store.names(TICKS + "/"):
        if match := _TICK.fullmatch(name):
            yield int(match[1]), name


def _marks(store: PrefixStore) -> tuple[list[tuple[int, bytes, str]], int]:
    """Tick, key and name of every mark; and the time, looked up after them."""
    found = [(_MARK.fullmatch(name), name) for name in store.names(USED + "/")]
    marks = [(int(m[1]), bytes.fromhex(m[2]), name) for m, name in found if m]
    return marks, tick(store)


def _last(marks: list[tuple[int, bytes, str]], now: int) -> dict[bytes, int]:
    last: dict[bytes, int] = {}
    for number, key, _ in marks:
        if number <= now:
            last[key] = max(number, last.get(key, 0))
    return last
