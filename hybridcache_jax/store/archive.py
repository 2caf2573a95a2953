"""Records in one file, to carry them from store to store.

The file is a plain tar archive: what it is, the packs, then the manifests, what leads
to a record before it.  It may come from anywhere: nothing is extracted to the file
system, no name is used as a path, and no size is believed.
"""

import io
import tarfile
from collections.abc import Iterator

import msgspec

from hybridcache_jax.errors import HybridCacheError
from hybridcache_jax.store.inventory import record_name
from hybridcache_jax.store.manifest import Manifest, ManifestError, decode
from hybridcache_jax.store.pack import is_pack_name
from hybridcache_jax.store.record_checks import record_problems

FORMAT = 1
"""Version of the archive, in its first member; another one is refused by its number."""

HEADER = "hybridcache-store.json"
"""Name of the first member: a :class:`Header` in JSON."""

_HEADER_BYTES = 4096
_PIECE = 2**20


class ArchiveError(HybridCacheError):
    """A file that is no archive of records, or records that cannot be put into one."""


# What Python says of files that are no archives, or damaged ones.
_BROKEN = (
    tarfile.TarError,
    EOFError,
    ValueError,
    OverflowError,
    RecursionError,
)


class Header(msgspec.Struct, frozen=True):
    """What an archive says of itself.

    Attributes:
      format: version.
      records: manifests in it.
      packs: packs in it.
    """

    format: int
    records: int = 0
    packs: int = 0


def plain_member(name: str, size: int) -> tarfile.TarInfo:
    """A file of no owner and no time, so that equal stores make equal archives."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    return member


class ArchiveReader:
    """The members of an archive that may be looked at.

    Attributes:
      packs: members by the names of packs.
      refused: names of others, each with why it is not looked at.
    """

    def __init__(self, raw: io.BufferedReader, largest: int):
        """Reads which members there are.

        Args:
          raw: the file.
          largest: bytes that one member may have.

        Raises:
          ArchiveError: if it is no archive of records, or not all of it.
        """
        self._largest = largest
        self.packs: dict[str, tarfile.TarInfo] = {}
        self._records: dict[str, tarfile.TarInfo] = {}
        self.refused: list[tuple[str, str]] = []
        try:
            # Not compressed, so what is read is never more than what is there.
            self._tar = tarfile.open(fileobj=_Bounded(raw), mode="r:")  # noqa: SIM115
            members = list(self._members())
        except _BROKEN as error:
            raise ArchiveError(
                f"{raw.name} is no archive of records, or not all of it: {error}."
            ) from error
        header = self._header(members, raw.name)
        for member in members[1:]:
            self._sort(member)
        if len(members) - 1 < header.records + header.packs:
            raise ArchiveError(
                f"{raw.name} was cut short: it has {len(members) - 1} objects of "
                f"{header.records} records and {header.packs} packs."
            )

    def read(self, member: tarfile.TarInfo) -> bytes:
        """All bytes of a member, taken piece by piece: its size is what it says."""
        source, data = self._tar.extractfile(member), bytearray()
        while source is not None and len(data) < member.size:
            piece = source.read(min(_PIECE, member.size - len(data)))
            if not piece:
                break
            data += piece
        return bytes(data)

    def manifests(self) -> Iterator[tuple[str, Manifest | None, str]]:
        """Names, manifests that may be believed, or what is wrong with them."""
        for name, member in self._records.items():
            try:
                manifest = decode(self.read(member))
            except ManifestError as error:
                yield name, None, str(error)
                continue
            wrong = record_problems(name, manifest)
            yield name, None if wrong else manifest, "; ".join(wrong)

    def manifest(self, name: str) -> Manifest:
        """One of the manifests that may be believed, once more."""
        return decode(self.read(self._records[name]))

    def _members(self) -> Iterator[tarfile.TarInfo]:
        before = -1
        for member in self._tar:
            # Sizes below zero would lead in circles.
            if member.size < 0 or member.offset <= before:
                raise tarfile.ReadError("its members do not follow one another")
            before = member.offset
            yield member

    def _header(self, members: list[tarfile.TarInfo], name: str) -> Header:
        first = members[0] if members else None
        if first is None or first.name != HEADER or first.size > _HEADER_BYTES:
            raise ArchiveError(f"{name} is a tar archive, but not one of records.")
        try:
            header = msgspec.json.decode(self.read(first), type=Header)
        except msgspec.MsgspecError as error:
            raise ArchiveError(f"{name} does not say what it is: {error}.") from error
        if header.format != FORMAT:
            raise ArchiveError(
                f"{name} has format {header.format}; this library reads {FORMAT}."
            )
        return header

    def _sort(self, member: tarfile.TarInfo) -> None:
        is_pack, is_record = is_pack_name(member.name), record_name(member.name)
        if not member.isreg() or member.issparse():
            why = "it is no plain file"
        elif not is_pack and is_record is None:
            why = "it is neither a record nor a pack"
        elif member.name in self.packs or member.name in self._records:
            why = "it is there twice"
        elif member.size > self._largest:
            why = f"it has more than {self._largest} bytes"
        else:
            (self.packs if is_pack else self._records)[member.name] = member
            return
        self.refused.append((member.name, why))


class _Bounded(io.RawIOBase):
    """A file of which no more is asked for than there is."""

    def __init__(self, raw: io.BufferedReader):
        self._raw = raw
        self._end = raw.seek(0, io.SEEK_END)
        raw.seek(0)

    def read(self, size: int = -1) -> bytes:
        left = max(self._end - self._raw.tell(), 0)
        return self._raw.read(left if size < 0 else min(size, left))

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET and not 0 <= place <= self._end:
            raise tarfile.ReadError(f"it has no byte {place}")
        return self._raw.seek(place, whence)

    def tell(self) -> int:
        return self._raw.tell()
