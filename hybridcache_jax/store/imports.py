"""Taking records out of an archive into a store.

Every digest and key is computed again, and a record is written only when the store has
given back every block that it names.
"""

import dataclasses
import os
from collections.abc import Mapping

import msgspec

from hybridcache_jax.identity import Identity
from hybridcache_jax.store.archive import ArchiveReader
from hybridcache_jax.store.inventory import (
    StoredRecord,
    read_manifests,
    record_name,
    summary,
)
from hybridcache_jax.store.manifest import (
    MOST_BYTES,
    Manifest,
    ManifestError,
    PoolPart,
    UnknownFormatError,
    decode,
    encode,
)
from hybridcache_jax.store.pack import (
    digest_in,
    free_name,
    pack_digest,
    read_blocks,
)
from hybridcache_jax.store.prefix_store import (
    LargeObjectError,
    PrefixStore,
    read_at_most,
)
from hybridcache_jax.store.record_checks import beginning, ending, record_problems
from hybridcache_jax.store.records import FOLDER as RECORDS
from hybridcache_jax.store.sizes import OnProgress, block_size
from hybridcache_jax.store.sweeps import noted_packs
from hybridcache_jax.store.ticks import tick
from hybridcache_jax.store.trust import generation

# Bytes of blocks that are read back at once.
_MOST = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Import:
    """What was taken in.

    Attributes:
      records: names of the records that were written.
      present: names of those that were there already, whole.
      packs: how many packs were written.
      refused: names in the archive, each with why it was not taken.
    """

    records: tuple[str, ...]
    present: tuple[str, ...]
    packs: int
    refused: tuple[tuple[str, str], ...]


def import_records(
    store: PrefixStore,
    file: str | os.PathLike,
    *,
    largest: int = 2**30,
    on_progress: OnProgress | None = None,
) -> Import:
    """Writes the records of an archive into a store: packs first, manifests last.

    Records that are there already are left alone, so an import that was cut short may
    be started again.  What is written is of the store's present tick.  A producer whose
    records were given up more or less often where they come from is refused.

    Args:
      store: where to.
      file: the archive.
      largest: bytes that one object in it may have.
      on_progress: told ``(what, done, total)``.

    Raises:
      ArchiveError: if the file is no archive, or not all of it.
      StoreError: if the store fails.
      OSError: if the file cannot be read.
    """
    with open(file, "rb") as raw:
        archive = ArchiveReader(raw, largest)
        refused = list(archive.refused)
        wanted: dict[str, StoredRecord] = {}
        present = []
        generations: dict[Identity, int] = {}
        for name, manifest, why in archive.manifests():
            if manifest is None:
                refused.append((name, why))
                continue
            whole, other = _there(store, name)
            other = other or _generation_problem(store, manifest, generations)
            if other:
                refused.append((name, other))
            elif whole:
                present.append(name)
            else:
                wanted[name] = summary(name, 0, manifest)
        renamed, written, bad = _put_packs(store, archive, wanted, on_progress)
        refused += bad
        ends = _Ends(store)
        now, records = tick(store), []
        order = sorted(wanted, key=lambda name: wanted[name].start)
        for done, name in enumerate(order):
            if on_progress is not None:
                on_progress("writing manifests", done, len(order))
            manifest = _placed(archive.manifest(name), renamed, now)
            if manifest.start and not ends.have(beginning(manifest)):
                refused.append((name, "the record that it goes on from is not there"))
            elif not _is_whole(store, manifest):
                refused.append((name, "not every block that it names is there, whole"))
            else:
                store.put(name, encode(manifest))
                ends.add(ending(manifest))
                records.append(name)
    return Import(tuple(records), tuple(present), written, tuple(refused))


def _generation_problem(
    store: PrefixStore, manifest: Manifest, known: dict[Identity, int]
) -> str:
    """Why a record would be found never, or only when others are given up; or ""."""
    identity = Identity(**manifest.identity)  # type: ignore[arg-type]
    if identity not in known:
        known[identity] = generation(store, identity)
    if manifest.generation == known[identity]:
        return ""
    return f"its generation is {manifest.generation}, the store's {known[identity]}"


class _Ends:
    """Where the records of a store lead; a manifest is read when somebody asks."""

    def __init__(self, store: PrefixStore):
        self._store, self._ends = store, set()
        self._names: dict[bytes, list[str]] = {}
        for name in store.names(RECORDS + "/"):
            said = record_name(name)
            if said is not None:
                self._names.setdefault(said.key, []).append(name)

    def add(self, end: tuple) -> None:
        self._ends.add(end)

    def have(self, beginning: tuple) -> bool:
        names = self._names.pop(beginning[0], ())
        for _, _, found in read_manifests(self._store, names):
            if isinstance(found, Manifest):
                self._ends.add(ending(found))
        return beginning in self._ends


def _put_packs(
    store: PrefixStore,
    archive: ArchiveReader,
    wanted: Mapping[str, StoredRecord],
    on_progress: OnProgress | None,
) -> tuple[dict[str, str], int, list[tuple[str, str]]]:
    """Writes the packs that records need: their names here, how many, what is wrong."""
    noted, renamed, written, wrong = noted_packs(store), {}, 0, []
    needed = {pack for record in wanted.values() for pack in record.packs}
    chosen = sorted(needed & archive.packs.keys())
    for done, name in enumerate(chosen):
        if on_progress is not None:
            on_progress("writing packs", done, len(chosen))
        data = archive.read(archive.packs[name])
        if pack_digest(data) != digest_in(name):
            wrong.append((name, f"its bytes have the digest {pack_digest(data)}"))
            continue
        renamed[name] = free_name(name, noted)
        there = store.get(renamed[name])
        if there is None or pack_digest(there) != digest_in(name):
            store.put(renamed[name], data)
            written += 1
    return renamed, written, wrong


def _placed(manifest: Manifest, renamed: Mapping[str, str], now: int) -> Manifest:
    """A manifest whose blocks lie where they were put, written now."""

    def put(part: PoolPart) -> PoolPart:
        blocks = (
            msgspec.structs.replace(place, pack=renamed.get(place.pack, place.pack))
            for place in part.blocks
        )
        return msgspec.structs.replace(part, blocks=tuple(blocks))

    return msgspec.structs.replace(
        manifest,
        parts=tuple(map(put, manifest.parts)),
        logits=None if manifest.logits is None else put(manifest.logits),
        age=now,
    )


def _there(store: PrefixStore, name: str) -> tuple[bool, str]:
    """Whether a record is there, whole; and why it must not be replaced otherwise."""
    try:
        data = read_at_most(store, name, MOST_BYTES)
    except LargeObjectError:
        data = b""
    if data is None:
        return False, ""
    try:
        manifest = decode(data)
    except UnknownFormatError as error:
        return False, f"there is one of that name, and {error}"
    except ManifestError:
        return False, ""
    return not record_problems(name, manifest) and _is_whole(store, manifest), ""


def _is_whole(store: PrefixStore, manifest: Manifest) -> bool:
    """Whether the store gives back every block of a manifest."""
    for part in manifest.every_part:
        size = block_size(part)
        if size is None:
            return False
        many = max(_MOST // size, 1)
        for first in range(0, len(part.blocks), many):
            if None in read_blocks(store, part.blocks[first : first + many], size):
                return False
    return True
