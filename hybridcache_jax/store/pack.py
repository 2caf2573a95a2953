"""Blocks of a record as objects: many in one, named by what they hold.

One object costs one durable write, however many blocks lie in it.  A block that two
records have lies in one pack, and both name it.
"""

import itertools
import re
from collections.abc import Container, Iterable, Sequence

import numpy as np
from blake3 import blake3

from hybridcache_jax.offload.payload import DIGEST_BYTES
from hybridcache_jax.store.manifest import BlockPlace
from hybridcache_jax.store.prefix_store import PrefixStore, ShortObjectError, StoreError
from hybridcache_jax.store.sweeps import noted_packs

FOLDER = "packs"
# What pack_name and free_name make, and nothing else: a manifest may name folders, or
# more letters than a file system takes.
_PACK = re.compile(
    rf"{FOLDER}/([0-9a-f]{{2}})/(\1[0-9a-f]{{30}})(?:-[1-9][0-9]{{0,8}})?"
)

# Bytes of blocks that are read or written at once.
_MOST = 64 * 2**20
_LARGEST = 2**48


def block_digest(data: bytes | memoryview) -> bytes:
    """What a manifest says of the bytes of a block: ``Payload.digest``."""
    return blake3(data).digest(length=DIGEST_BYTES)


def pack_digest(data: bytes | memoryview) -> str:
    """Digest of a whole pack, in hex."""
    return blake3(data).hexdigest(length=DIGEST_BYTES)


def pack_name(data: bytes | memoryview) -> str:
    """The name of a pack: a digest of all of it."""
    digest = pack_digest(data)
    return f"{FOLDER}/{digest[:2]}/{digest}"


def free_name(name: str, noted: Container[str]) -> str:
    """A name for a pack that the next sweep does not take for a leftover.

    Args:
      name: by :func:`pack_name`.
      noted: names of packs that the last sweep found unused; it may be one of a writer
        that was cut short, and the next sweep deletes it.

    Returns:
      The name itself, or with a number behind it.
    """
    spare = (f"{name}-{number}" for number in itertools.count(1))
    return next(each for each in itertools.chain([name], spare) if each not in noted)


def is_pack_name(name: str) -> bool:
    """Whether packs are called so."""
    return _PACK.fullmatch(name) is not None


def digest_in(name: str) -> str:
    """The digest of a pack that its name says, in hex; empty if it says none."""
    match = _PACK.fullmatch(name)
    return match[2] if match else ""


def _is_place(place: BlockPlace) -> bool:
    return is_pack_name(place.pack) and 0 <= place.start < _LARGEST


class GonePackError(StoreError):
    """Blocks that lay in a store are there no more, or go before long.

    Attributes:
      pack: where they lay.
    """

    def __init__(self, pack: str):
        """Says what to do."""
        super().__init__(
            f"{pack} is gone, or goes with the next sweep; write its blocks anew."
        )
        self.pack = pack


def check_lasting(store: PrefixStore, places: Iterable[BlockPlace]) -> None:
    """Checks that a new record may name blocks that lie in a store already.

    Who remembers where blocks lie may do so for longer than the records last that named
    them: their packs may be swept, or be next.

    Args:
      store: the store.
      places: of the blocks.

    Raises:
      GonePackError: if a pack is gone or noted for the next sweep; write its blocks
        anew.
      StoreError: if the store fails.
    """
    packs = sorted({place.pack for place in places})
    noted = noted_packs(store) if packs else ()
    for pack in packs:
        if pack in noted or store.get(pack, 0, 0) is None:
            raise GonePackError(pack)


def write_blocks(
    store: PrefixStore, blocks: Iterable[tuple[int, bytes | memoryview]]
) -> list[BlockPlace]:
    """Writes blocks, as many in one object as fit.

    Args:
      store: where to.
      blocks: numbers and bytes; taken one after the other, so that no more of them
        than fit in one pack need be there at once.

    Returns:
      Their places, in order; all of them survive the end of the machine.
    """
    places: list[BlockPlace] = []
    waiting: list[tuple[int, bytes | memoryview]] = []
    size, noted = 0, noted_packs(store)

    def write() -> None:
        sizes = [(number, len(block)) for number, block in waiting]
        # From here on there is one copy of them.
        data = _joined(waiting)
        name, start = free_name(pack_name(data), noted), 0
        for number, size in sizes:
            digest = block_digest(data[start : start + size])
            places.append(BlockPlace(number, name, start, digest))
            start += size
        store.put(name, data)

    for number, block in blocks:
        if waiting and size + len(block) > _MOST:
            write()
            size = 0
        waiting.append((number, block))
        size += len(block)
    if waiting:
        write()
    return places


def _joined(waiting: list[tuple[int, bytes | memoryview]]) -> memoryview:
    """The bytes of blocks in order; the list is emptied meanwhile.

    NumPy copies beside the interpreter's other threads, ``bytes.join`` does not.
    """
    data, start = np.empty(sum(len(block) for _, block in waiting), np.uint8), 0
    waiting.reverse()
    while waiting:
        block = np.frombuffer(waiting.pop()[1], np.uint8)
        data[start : start + len(block)] = block
        start += len(block)
    return data.data


def read_blocks(
    store: PrefixStore, places: Sequence[BlockPlace], size: int
) -> list[memoryview | None]:
    """The bytes of blocks of one pool; blocks that lie side by side are read at once.

    Those are views of what was read at once, and stay in memory together.

    Args:
      store: where from.
      places: of the blocks.
      size: bytes of each, by the reader's own reckoning.

    Returns:
      In order; None for a block whose pack is gone, whose bytes are not those that
      were written, or whose place is none: a manifest may be hostile.

    Raises:
      StoreError: if the store fails.
    """
    found: list[memoryview | None] = [None] * len(places)
    sound = [n for n, place in enumerate(places) if _is_place(place)]
    order = sorted(sound, key=lambda n: (places[n].pack, places[n].start))
    runs: list[list[int]] = []
    for number in order:
        place, beside = places[number], False
        if runs:
            last = places[runs[-1][-1]]
            beside = (last.pack, last.start + size) == (place.pack, place.start)
        if beside and len(runs[-1]) * size < _MOST:
            runs[-1].append(number)
        else:
            runs.append([number])
    for run in runs:
        first = places[run[0]]
        stop = first.start + size * len(run)
        try:
            data = store.get(first.pack, first.start, stop)
        except ShortObjectError:
            data = None
        if data is None:
            continue
        view = memoryview(data)
        for at, number in enumerate(run):
            block = view[at * size : (at + 1) * size]
            if block_digest(block) == places[number].digest:
                found[number] = block
    return found
