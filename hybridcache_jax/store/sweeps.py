"""What the collector noted for its next run: packs that no manifest names.

A note is an object, ``sweeps/<tick>``.  The next run deletes what was noted and is
still named by none; so a record whose packs are written and whose manifest is not yet
loses nothing.  Writers read the notes, too, and give no pack a name that is in one:
else a pack that a writer left behind, and that another one writes again, could go away
between its writing and its manifest.
"""

import re

import msgspec

from hybridcache_jax.store.prefix_store import (
    LargeObjectError,
    PrefixStore,
    read_at_most,
)
from hybridcache_jax.store.ticks import written

SWEEPS = "sweeps"

MOST_NOTED = 100_000
"""Packs in a note; those beyond are noted by later runs."""

# More than a note of so many can have: a name has 51 bytes, a size 9.
_MOST_BYTES = 2**23

_NOTE = re.compile(rf"{SWEEPS}/([0-9]{{12}})")
_PACKS = msgspec.msgpack.Decoder(dict[str, int])


def write_note(store: PrefixStore, tick: int, packs: dict[str, int]) -> str:
    """Notes packs.

    Args:
      store: where they are.
      tick: of this run.
      packs: name to bytes, at most ``MOST_NOTED``.

    Returns:
      The name of the note.
    """
    name = f"{SWEEPS}/{written(tick)}"
    store.put(name, msgspec.msgpack.encode(packs))
    return name


def read_notes(store: PrefixStore) -> dict[str, dict[str, int]]:
    """All notes by name: packs and their bytes.

    A note that is damaged, or larger than any that is written, says nothing, to writers
    and collectors alike: no pack goes for it, and the next run deletes it.
    """
    notes: dict[str, dict[str, int]] = {}
    for name in store.names(SWEEPS + "/"):
        if not _NOTE.fullmatch(name):
            continue
        try:
            data = read_at_most(store, name, _MOST_BYTES)
            if data is not None:
                notes[name] = _PACKS.decode(data)
        except (LargeObjectError, msgspec.MsgspecError):
            notes[name] = {}
    return notes


def noted_packs(store: PrefixStore) -> frozenset[str]:
    """Names of packs that the next run of the collector may delete."""
    return frozenset(pack for note in read_notes(store).values() for pack in note)
