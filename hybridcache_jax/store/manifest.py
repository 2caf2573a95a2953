"""What a stored record says of itself; written last, and trusted only as far as proved.

A record stands for one resume point: with those it names as its parents it has every
form that resuming there requires.  The file is a header, the digest of the body and the
body in MessagePack.  Nothing in it is run, and no number in it is believed before it is
compared with what the reader itself expects.  How much memory it takes is bounded by
the size of the file, and that by ``MOST_BYTES``.

How a store lives through changes of the format:

- Any change of what a body says, or of how records and packs are named, is a new
  number, ``FORMAT + 1``.  The header stays for ever, and manifests of every format lie
  under ``records/``, what they name under ``packs/``: so an older library sees that
  there is something it does not know.  Keys of a new format cover its number: so no
  record of one format has the name of another's.
- A reader reads what ``READABLE`` lists.  Every other format is refused by its number
  (:class:`UnknownFormatError`), and never deleted or moved; while one is there, no pack
  is swept, for it may be one that it names.
- A format is read by a release before a later one writes it, so that replicas of two
  releases can share a store.  The structs of an old format stay beside the new ones,
  with a function that makes today's :class:`Manifest` of them, and a file of each
  format stays in the tests.
- No record is rewritten in another format.  Those of an old one are read until they
  have been unused for long enough; a release that no longer reads them says so in the
  changelog.
"""

from typing import Annotated

import msgspec
from blake3 import blake3

FORMAT = 1
"""Version of the format.  A reader refuses every other one by name; a later version
that can still read this one says so in ``READABLE``."""

READABLE = (FORMAT,)

MOST_BYTES = 64 * 2**20
"""The most that a manifest may have: some 500,000 blocks and a million tokens."""

_MAGIC = b"hcjr"
_DIGEST_BYTES = 32

# Of what takes few bytes in the file and many in memory.
_MOST_FIELDS = msgspec.Meta(max_length=64)
_MOST_POOLS = msgspec.Meta(max_length=4096)
_MOST_CONTENTS = msgspec.Meta(max_length=2**20)
HEADER_BYTES = len(_MAGIC) + 2 + _DIGEST_BYTES


class ManifestError(Exception):
    """Bytes that are no manifest, with what is wrong with them."""


class UnknownFormatError(ManifestError):
    """A manifest that is whole, in a format that this library does not read."""


class PlaneLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plane of a block.

    Attributes:
      name: of the plane.
      dtype: logical dtype; what a backend holds it as is its own affair.
      shape: layers, entries of a block, elements of an entry as they are packed.
    """

    name: str
    dtype: str
    shape: tuple[int, int, int]


class BlockPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the bytes of one block lie, and what they must be.

    Attributes:
      number: which block of its pool; it begins at position ``number * block_tokens``.
      pack: name of the object.
      start: first byte in it.
      digest: ``Payload.digest`` of the block.
    """

    number: int
    pack: str
    start: int
    digest: bytes


class PoolPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a record has of one pool.

    Attributes:
      pool: its name.
      form: name of its form.
      block_tokens: tokens of a block.
      planes: their layout, in the order of the bytes.
      blocks: in ascending order.
    """

    pool: str
    form: str
    block_tokens: int
    planes: Annotated[tuple[PlaneLayout, ...], _MOST_FIELDS]
    blocks: tuple[BlockPlace, ...]


class Manifest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One record.

    Attributes:
      library: version of the library that wrote it.
      identity: fields of the producer's identity, by name.
      scope: ``rollout.Scope`` of those who may read it.
      owner: the session's id where the scope asks for one.
      generation: how often the producer's records were given up before.
      provenance: ``codes.Provenance`` of everything in it.
      grid: tokens of a grid unit.
      key: of the prefix that ends at ``stop`` (:mod:`keys`).
      parent: of the prefix that ends at ``start``; its record has what lies before.
      start: position from which on this record has tokens and history.
      stop: the resume point.
      tokens: ``[stop - start]`` int32 ids, little-endian.
      contents: what of those stands for content: offset, end, type and id.
      parts: per pool; of what grows with the history ``[start, stop)``, of every other
        form what is kept of that, and what resuming at ``stop`` requires.
      age: logical time of the store at which it was written.
      logits: of the token that follows, laid out like a pool with one block
        (:mod:`logits`); a record without them does not say so.
    """

    library: str
    identity: Annotated[dict[str, str | int | None], _MOST_FIELDS]
    scope: int
    owner: str
    generation: int
    provenance: int
    grid: int
    key: bytes
    parent: bytes
    start: int
    stop: int
    tokens: bytes
    contents: Annotated[tuple[tuple[int, int, str, str], ...], _MOST_CONTENTS]
    parts: Annotated[tuple[PoolPart, ...], _MOST_POOLS]
    age: int
    logits: PoolPart | None = None

    @property
    def every_part(self) -> tuple[PoolPart, ...]:
        """All that names bytes in packs: what it has of pools, and logits."""
        return self.parts if self.logits is None else (*self.parts, self.logits)


_DECODER = msgspec.msgpack.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """The file of a manifest."""
    body = msgspec.msgpack.encode(manifest)
    version = FORMAT.to_bytes(2, "little")
    digest = blake3(version + body).digest(length=_DIGEST_BYTES)
    return _MAGIC + version + digest + body


def decode(data: bytes) -> Manifest:
    """The manifest in a file, whole and as it was written.

    Args:
      data: the whole file.

    Raises:
      ManifestError: if one byte of it is not as it was written, or if it has too much
        of something.
      UnknownFormatError: if it was written in a format that cannot be read.
    """
    if len(data) > MOST_BYTES:
        raise ManifestError(f"it has more than {MOST_BYTES} bytes")
    if len(data) < HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise ManifestError("it does not begin like a manifest")
    place = len(_MAGIC) + 2
    version, body = data[len(_MAGIC) : place], data[HEADER_BYTES:]
    if blake3(version + body).digest(length=_DIGEST_BYTES) != data[place:HEADER_BYTES]:
        raise ManifestError("its bytes are not those that were written")
    number = int.from_bytes(version, "little")
    if number not in READABLE:
        raise UnknownFormatError(
            f"it has format {number}; this library reads {READABLE}"
        )
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"it cannot be decoded: {error}") from error
