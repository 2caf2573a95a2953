"""Whether a store holds what its manifests say, and moving away what does not.

Nothing is taken from a manifest that can be worked out: names, keys and digests are
computed again from tokens and bytes.  A record is damaged if it or one of its blocks is
not as it was written; what goes on from a record that is gone waits for it.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from blake3 import blake3

from hybridcache_jax.offload.payload import DIGEST_BYTES
from hybridcache_jax.store.inventory import (
    QUARANTINE,
    Unread,
    is_foreign,
    read_manifests,
)
from hybridcache_jax.store.manifest import PoolPart
from hybridcache_jax.store.pack import (
    block_digest,
    digest_in,
    is_pack_name,
    pack_digest,
)
from hybridcache_jax.store.parallel import in_order
from hybridcache_jax.store.prefix_store import PrefixStore, ShortObjectError
from hybridcache_jax.store.record_checks import beginning, ending, record_problems
from hybridcache_jax.store.sizes import OnProgress, block_size, object_size

# Bytes of a pack that are read at once.
_WINDOW = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
      name: of the object.
      reason: what is wrong.
      damage: whether bytes are not those that were written; otherwise it is something
        that this library does not know, or that waits for something.
    """

    name: str
    reason: str
    damage: bool = True


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
      records: manifests that could be read.
      packs: packs that were read.
      nbytes: bytes of those.
      problems: all of them.
      moved: names of what was moved into the folder ``quarantine``.
    """

    records: int
    packs: int
    nbytes: int
    problems: tuple[Problem, ...]
    moved: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(problem.damage for problem in self.problems)


@dataclasses.dataclass(frozen=True)
class _Place:
    """A block as a record names it, and which record that is."""

    start: int
    stop: int
    digest: bytes
    record: str


@dataclasses.dataclass(frozen=True)
class _Link:
    """Where a record begins and ends, and for whom."""

    start: int
    beginning: tuple
    ending: tuple


def verify(
    store: PrefixStore,
    *,
    quarantine: bool = False,
    on_progress: OnProgress | None = None,
    threads: int = 1,
) -> Verification:
    """Reads every manifest and every pack, and compares them.

    What is written meanwhile may be missed; it is not called damaged.

    Args:
      store: which.
      quarantine: whether what is damaged moves to the folder ``quarantine``, where
        nobody looks for it: records of which one byte is wrong, and packs of which one
        is, unless a whole record needs other bytes of them.  What was written anew
        meanwhile is found whole just before, and stays, as do manifests of other
        formats and names that are not the library's.
      on_progress: told ``("reading manifests", done, total)`` and
        ``("reading packs", done, total)``.
      threads: how many objects are read at once; each pack takes up to 64 MiB.

    Raises:
      StoreError: if the store fails.
    """
    problems: list[Problem] = []
    places: dict[str, list[_Place]] = {}
    links: dict[str, _Link] = {}
    for name, _, found in read_manifests(store, None, on_progress, threads):
        if isinstance(found, Unread):
            problems.append(Problem(name, found.reason, not found.newer))
            continue
        links[name] = _Link(found.start, beginning(found), ending(found))
        problems += [Problem(name, why) for why in record_problems(name, found)]
        for part in found.every_part:
            for pack, place in _places(name, part):
                places.setdefault(pack, []).append(place)
    names = list(store.names(""))
    problems += [
        Problem(name, "nothing of this library is called so", damage=False)
        for name in filter(is_foreign, names)
    ]
    chosen = sorted({*places, *filter(is_pack_name, names)})
    bad_packs, read, nbytes = [], 0, 0
    looked_at = in_order(
        lambda pack: _pack_problems(store, pack, places.get(pack, ())), chosen, threads
    )
    for done, (pack, found) in enumerate(zip(chosen, looked_at, strict=True)):
        if on_progress is not None:
            on_progress("reading packs", done, len(chosen))
        size, own, of_blocks = found
        read, nbytes = read + (size is not None), nbytes + (size or 0)
        problems += of_blocks
        if own is not None:
            bad_packs.append(pack)
            problems.append(own)
    # What was deleted while it was looked at is not damaged.
    there = {problem.name for problem in problems}
    there = {name for name in there if store.get(name, 0, 0) is not None}
    problems = [problem for problem in problems if problem.name in there]
    damaged = {problem.name for problem in problems if problem.damage}
    problems += _waiting(links, damaged)
    moved: list[str] = []
    if quarantine:
        moved += [
            name
            for name in sorted(damaged - set(bad_packs))
            if not _is_whole_record(store, name) and _move(store, name)
        ]
        gone = set(moved)
        needed = {
            pack
            for pack, all_of_it in places.items()
            if any(place.record not in gone for place in all_of_it)
        }
        moved += [
            name
            for name in bad_packs
            if name not in needed
            and not _is_whole_pack(store, name)
            and _move(store, name)
        ]
    unique = dict.fromkeys(problems)
    return Verification(len(links), read, nbytes, tuple(unique), tuple(moved))


def _places(name: str, part: PoolPart) -> Iterable[tuple[str, _Place]]:
    """Packs and places of the blocks that can be looked for."""
    size = block_size(part)
    for place in part.blocks:
        if size is not None and is_pack_name(place.pack) and place.start >= 0:
            stop = place.start + size
            yield place.pack, _Place(place.start, stop, place.digest, name)


def _pack_problems(
    store: PrefixStore, pack: str, places: Sequence[_Place]
) -> tuple[int | None, Problem | None, list[Problem]]:
    """Reads a pack: its size, what is wrong with it, and with records' blocks in it."""
    hint = max((place.stop for place in places), default=0)
    size = object_size(store, pack, hint)
    if size is None:
        return None, None, [Problem(p.record, f"{pack} is gone") for p in places]
    wrong = [
        Problem(place.record, f"{pack} ends before byte {place.stop}")
        for place in places
        if place.stop > size
    ]
    whole = blake3()
    try:
        for start in range(0, size, _WINDOW):
            data = memoryview(store.get(pack, start, min(start + _WINDOW, size)) or b"")
            whole.update(data)
            for place in places:
                if not start <= place.start < start + _WINDOW or place.stop > size:
                    continue
                if place.stop <= start + _WINDOW:
                    block = data[place.start - start : place.stop - start]
                else:
                    block = store.get(pack, place.start, place.stop) or b""
                if block_digest(block) != place.digest:
                    said = f"bytes {place.start} to {place.stop} of {pack} are damaged"
                    wrong.append(Problem(place.record, said))
    except ShortObjectError:
        # It was replaced, or deleted and written anew, while it was read.
        return size, Problem(pack, "it changed while it was read"), wrong
    digest = whole.hexdigest(length=DIGEST_BYTES)
    if digest != digest_in(pack):
        return size, Problem(pack, f"its bytes have the digest {digest}"), wrong
    return size, None, wrong


def _waiting(links: dict[str, _Link], damaged: set[str]) -> Iterable[Problem]:
    """Whole records to which no whole records lead."""
    reached: set[tuple] = set()
    whole = [(link.start, name) for name, link in links.items() if name not in damaged]
    for start, name in sorted(whole):
        if start == 0 or links[name].beginning in reached:
            reached.add(links[name].ending)
        else:
            yield Problem(name, "the record that it goes on from is not there", False)


def _is_whole_record(store: PrefixStore, name: str) -> bool:
    """Whether a record was written anew since it was found damaged, blocks and all."""
    for _, _, found in read_manifests(store, [name]):
        if isinstance(found, Unread):
            return found.newer
        places = [each for part in found.every_part for each in _places(name, part)]
        return not record_problems(name, found) and all(
            _is_whole_block(store, pack, place) for pack, place in places
        )
    return False


def _is_whole_block(store: PrefixStore, pack: str, place: _Place) -> bool:
    try:
        data = store.get(pack, place.start, place.stop)
    except ShortObjectError:
        return False
    return data is not None and block_digest(data) == place.digest


def _is_whole_pack(store: PrefixStore, name: str) -> bool:
    data = store.get(name)
    return data is not None and pack_digest(data) == digest_in(name)


def _move(store: PrefixStore, name: str) -> bool:
    data = store.get(name)
    if data is None:
        return False
    store.put(f"{QUARANTINE}/{name}", data)
    store.delete(name)
    return True
