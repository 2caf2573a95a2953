"""Writing records and what they need into an archive."""

import dataclasses
import io
import os
import pathlib
import tarfile
from collections.abc import Iterable

import msgspec
from blake3 import blake3

from hybridcache_jax.identity import Identity
from hybridcache_jax.offload.payload import DIGEST_BYTES
from hybridcache_jax.store.archive import (
    FORMAT,
    HEADER,
    ArchiveError,
    Header,
    plain_member,
)
from hybridcache_jax.store.inventory import StoredRecord, take_inventory
from hybridcache_jax.store.pack import digest_in
from hybridcache_jax.store.prefix_store import PrefixStore, ShortObjectError
from hybridcache_jax.store.selection import ancestors
from hybridcache_jax.store.sizes import OnProgress, pack_sizes
from hybridcache_jax.store.trust import generation

_BUFFER = 8 * 2**20


@dataclasses.dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
      records: names of the records.
      packs: how many packs they name.
      nbytes: of the file.
      unread: names of what lies among the records and cannot be read.
      given_up: names of records that nobody finds any more; they are left out.
    """

    records: tuple[str, ...]
    packs: int
    nbytes: int
    unread: tuple[str, ...]
    given_up: tuple[str, ...]


def export_records(
    store: PrefixStore,
    file: str | os.PathLike,
    keys: Iterable[bytes] | None = None,
    *,
    on_progress: OnProgress | None = None,
    threads: int = 1,
) -> Export:
    """Writes records and all that they need into one file.

    Args:
      store: where from.
      file: which is made, or replaced when all of it is written.
      keys: of the records, which come with what leads to them; None for all.
      on_progress: told ``(what, done, total)``.
      threads: how many manifests are read at once.

    Raises:
      ArchiveError: if there is no record with one of the keys, or if a pack is damaged
        or goes away meanwhile.
      StoreError: if the store fails.
      OSError: if the file cannot be written.
    """
    inventory = take_inventory(store, on_progress, threads)
    records = list(inventory.records)
    if keys is not None:
        chosen = list(keys)
        there = {record.key for record in records}
        for key in chosen:
            if key not in there:
                raise ArchiveError(f"There is no record with the key {key.hex()}.")
        names = ancestors(records, chosen)
        records = [record for record in records if record.name in names]
    given_up = _given_up(store, records)
    records = [record for record in records if record.name not in given_up]
    records.sort(key=lambda record: (record.start, record.name))
    least = [record.packs for record in records]
    packs = pack_sizes(store, least, on_progress, threads)
    path = pathlib.Path(file)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as out:
            _write(store, out, records, packs, on_progress)
            out.flush()
            os.fsync(out.fileno())
            nbytes = out.tell()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    unread = tuple(each.name for each in inventory.unread)
    names = tuple(record.name for record in records)
    return Export(names, len(packs), nbytes, unread, tuple(sorted(given_up)))


def _given_up(store: PrefixStore, records: list[StoredRecord]) -> set[str]:
    """Names of records that were given up, or whose producer is none."""
    now: dict[Identity, int] = {}
    found = set()
    for record in records:
        try:
            identity = Identity(**record.identity)  # type: ignore[arg-type]
            if identity not in now:
                now[identity] = generation(store, identity)
        except TypeError:
            found.add(record.name)
            continue
        if record.generation != now[identity]:
            found.add(record.name)
    return found


def _write(
    store: PrefixStore,
    out: io.BufferedWriter,
    records: list[StoredRecord],
    packs: dict[str, int],
    on_progress: OnProgress | None,
) -> None:
    with tarfile.open(fileobj=out, mode="w:") as tar:
        said = Header(FORMAT, records=len(records), packs=len(packs))
        header = msgspec.json.encode(said)
        tar.addfile(plain_member(HEADER, len(header)), io.BytesIO(header))
        for done, (name, size) in enumerate(packs.items()):
            if on_progress is not None:
                on_progress("writing packs", done, len(packs))
            pack = _PackReader(store, name, size)
            try:
                tar.addfile(plain_member(name, size), io.BufferedReader(pack, _BUFFER))
            except OSError as error:
                if pack.gone:
                    raise ArchiveError(f"{name} is gone; start again.") from error
                raise
            if pack.digest != digest_in(name):
                raise ArchiveError(
                    f"{name} is damaged; hybridcache store verify says which records "
                    "need it."
                )
        for done, record in enumerate(records):
            if on_progress is not None:
                on_progress("writing manifests", done, len(records))
            data = store.get(record.name)
            if data is None:
                raise ArchiveError(f"{record.name} is gone; start again.")
            tar.addfile(plain_member(record.name, len(data)), io.BytesIO(data))


class _PackReader(io.RawIOBase):
    """A pack as a file that is read once, from its beginning, and hashed meanwhile."""

    def __init__(self, store: PrefixStore, name: str, size: int):
        self._store, self._name, self._size = store, name, size
        self._at, self._hash, self.gone = 0, blake3(), False

    @property
    def digest(self) -> str:
        return self._hash.hexdigest(length=DIGEST_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        stop = min(self._at + len(buffer), self._size)
        try:
            data = self._store.get(self._name, self._at, stop)
        except ShortObjectError:
            data = None
        if data is None:
            self.gone = True
            return 0
        self._hash.update(data)
        buffer[: len(data)] = data
        self._at = stop
        return len(data)
