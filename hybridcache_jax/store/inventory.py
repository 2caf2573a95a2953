"""What is in a store: every record, read once, and what cannot be read.

Of a record only what house-keeping needs is kept, so that a store with many long
prefixes is counted in little memory.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

from hybridcache_jax.store.manifest import (
    MOST_BYTES,
    Manifest,
    ManifestError,
    UnknownFormatError,
    decode,
)
from hybridcache_jax.store.pack import FOLDER as PACKS
from hybridcache_jax.store.pack import is_pack_name
from hybridcache_jax.store.parallel import in_order
from hybridcache_jax.store.prefix_store import (
    SNAPSHOTS,
    LargeObjectError,
    PrefixStore,
    is_name,
    read_at_most,
)
from hybridcache_jax.store.records import FOLDER as RECORDS
from hybridcache_jax.store.sizes import OnProgress, block_size, object_size
from hybridcache_jax.store.sweeps import SWEEPS
from hybridcache_jax.store.ticks import TICKS, USED, last_used, tick
from hybridcache_jax.store.trust import FOLDER as GIVEN_UP

QUARANTINE = "quarantine"
"""Folder of what was found damaged."""

_HEX = r"([0-9a-f]{32})"
_RECORD = re.compile(f"{RECORDS}/{_HEX}/{_HEX}/{_HEX}")
_OURS = (RECORDS, PACKS, TICKS, USED, SWEEPS, GIVEN_UP, QUARANTINE, SNAPSHOTS)


@dataclasses.dataclass(frozen=True)
class RecordName:
    """What the name of a record says.

    Attributes:
      parent: key of the prefix that the record goes on from.
      first: key of the prefix that ends with its first grid unit.
      key: its own key.
    """

    parent: bytes
    first: bytes
    key: bytes


@dataclasses.dataclass(frozen=True)
class StoredRecord:
    """One record, without its tokens and blocks.

    Attributes:
      name: of the object.
      key: as the manifest says, like all that follows.
      parent: key of what it goes on from.
      start: first position.
      stop: the resume point.
      grid: tokens of a grid unit.
      identity: fields of the producer's identity.
      scope: who may read it.
      generation: how often its producer's records were given up before.
      provenance: of everything in it.
      library: version that wrote it.
      written: tick at which it was written.
      used: last tick at which it was written or of use, by the marks of use; what lies
        ahead is not believed, and where there is nothing else it is now.
      manifest_bytes: size of the manifest.
      form_bytes: form to bytes of its blocks.
      packs: packs it names, each with the least size it must have.
    """

    name: str
    key: bytes
    parent: bytes
    start: int
    stop: int
    grid: int
    identity: Mapping[str, str | int | None]
    scope: int
    generation: int
    provenance: int
    library: str
    written: int
    used: int
    manifest_bytes: int
    form_bytes: Mapping[str, int]
    packs: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Unread:
    """An object among the records whose manifest cannot be read.

    Attributes:
      name: of the object.
      reason: why not.
      newer: whether it is whole, in a format that this library does not read.
      nbytes: of the object.
    """

    name: str
    reason: str
    newer: bool
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Inventory:
    """Everything in a store.

    Attributes:
      tick: logical time of the store.
      records: all that could be read, by namespace, then along their prefixes.
      unread: what lies among the records and could not.
      packs: names of all packs.
      foreign: names that nothing of this library has.
      quarantined: names of what was moved out of the way.
    """

    tick: int
    records: tuple[StoredRecord, ...]
    unread: tuple[Unread, ...]
    packs: frozenset[str]
    foreign: tuple[str, ...]
    quarantined: tuple[str, ...]


def take_inventory(
    store: PrefixStore, on_progress: OnProgress | None = None, threads: int = 1
) -> Inventory:
    """Lists a store and reads every manifest.

    Args:
      store: which.
      on_progress: told ``("reading manifests", done, total)``.
      threads: how many manifests are read at once.

    Raises:
      StoreError: if the store fails.
    """
    records, unread = [], []
    used = last_used(store)
    for name, size, found in read_manifests(store, None, on_progress, threads):
        if isinstance(found, Manifest):
            records.append(summary(name, size, found))
        else:
            unread.append(found)
    # The tick is looked up last: no record that was read is of a later one.
    now = tick(store)
    records = [
        dataclasses.replace(record, used=_last_time(record, used, now))
        for record in records
    ]
    records.sort(key=lambda r: (str(r.identity.get("namespace")), r.start, r.name))
    names = list(store.names(""))
    return Inventory(
        now,
        tuple(records),
        tuple(sorted(unread, key=lambda each: each.name)),
        frozenset(name for name in names if is_pack_name(name)),
        tuple(sorted(name for name in names if is_foreign(name))),
        tuple(sorted(name for name in names if name.startswith(QUARANTINE + "/"))),
    )


def read_manifests(
    store: PrefixStore,
    names: Iterable[str] | None = None,
    on_progress: OnProgress | None = None,
    threads: int = 1,
) -> Iterator[tuple[str, int, Manifest | Unread]]:
    """Reads manifests, one after the other.

    Args:
      store: where from.
      names: of the objects; None for all among the records.
      on_progress: told ``("reading manifests", done, total)``.
      threads: how many are read at once; each may take ``MOST_BYTES``.

    Yields:
      Name, bytes, and the manifest or why it cannot be read.  What goes away
      meanwhile is left out.
    """
    # What cannot be the name of an object was written by no writer of records.
    chosen = list(store.names(RECORDS + "/") if names is None else names)
    chosen = [name for name in chosen if is_name(name)]
    found = in_order(lambda name: _read(store, name), chosen, threads)
    for done, (name, read) in enumerate(zip(chosen, found, strict=True)):
        if on_progress is not None:
            on_progress("reading manifests", done, len(chosen))
        if read is not None:
            yield name, *read


def _last_time(record: StoredRecord, used: Mapping[bytes, int], now: int) -> int:
    times = record.written, used.get(record.key, record.written)
    return max((time for time in times if time <= now), default=now)


def _read(store: PrefixStore, name: str) -> tuple[int, Manifest | Unread] | None:
    """Bytes of an object, and the manifest or why it cannot be read."""
    try:
        data = read_at_most(store, name, MOST_BYTES)
    except LargeObjectError as error:
        size = object_size(store, name) or 0
        return size, Unread(name, str(error), False, size)
    if data is None:
        return None
    try:
        return len(data), decode(data)
    except ManifestError as error:
        newer = isinstance(error, UnknownFormatError)
        return len(data), Unread(name, str(error), newer, len(data))


def record_name(name: str) -> RecordName | None:
    """What the name of a record says; None if no record is called so."""
    match = _RECORD.fullmatch(name)
    return RecordName(*map(bytes.fromhex, match.groups())) if match else None


def summary(name: str, size: int, manifest: Manifest) -> StoredRecord:
    """What house-keeping needs of a manifest.

    Args:
      name: of its object.
      size: of its object.
      manifest: as it was decoded.
    """
    forms: dict[str, int] = {}
    packs: dict[str, int] = {}
    for part in manifest.every_part:
        block = block_size(part) or 0
        forms[part.form] = forms.get(part.form, 0) + block * len(part.blocks)
        for place in part.blocks:
            # Whatever else a manifest names is no pack, and is not opened.
            if is_pack_name(place.pack):
                packs[place.pack] = max(packs.get(place.pack, 0), place.start + block)
    return StoredRecord(
        name=name,
        key=manifest.key,
        parent=manifest.parent,
        start=manifest.start,
        stop=manifest.stop,
        grid=manifest.grid,
        identity=manifest.identity,
        scope=manifest.scope,
        generation=manifest.generation,
        provenance=manifest.provenance,
        library=manifest.library,
        written=manifest.age,
        used=manifest.age,
        manifest_bytes=size,
        form_bytes=forms,
        packs=packs,
    )


def is_foreign(name: str) -> bool:
    """Whether nothing of this library is called so; among records, that is unread."""
    if not is_name(name) or name.split("/")[0] not in _OURS:
        return True
    return name.startswith(PACKS + "/") and not is_pack_name(name)
