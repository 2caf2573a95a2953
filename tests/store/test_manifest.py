"""Manifests: whole and as they were written, or refused with what is wrong."""

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hybridcache_jax.store import manifest as lib
from hybridcache_jax.store.manifest import (
    BlockPlace,
    Manifest,
    ManifestError,
    PlaneLayout,
    PoolPart,
    decode,
    encode,
)

PART = PoolPart(
    pool="full_kv.0",
    form="FULL_KV",
    block_tokens=4,
    planes=(PlaneLayout("k", "bfloat16", (2, 4, 8)),),
    blocks=(BlockPlace(0, "packs/ab/abcd", 128, b"d" * 16),),
)
RECORD = Manifest(
    library="0.1.0",
    identity={"weights": "w", "adapter": "", "format_version": 1},
    scope=3,
    owner="",
    generation=0,
    provenance=0,
    grid=4,
    key=b"k" * 16,
    parent=b"p" * 16,
    start=0,
    stop=4,
    tokens=bytes(16),
    contents=((0, 2, "str", "picture"),),
    parts=(PART,),
    age=7,
)


def sealed(body: bytes, version: int = lib.FORMAT) -> bytes:
    """A file whose digest is right, whatever its body says."""
    number = version.to_bytes(2, "little")
    return b"hcjr" + number + blake3(number + body).digest(length=32) + body


def test_it_comes_back_as_it_was():
    assert decode(encode(RECORD)) == RECORD


def test_every_flipped_bit_is_found():
    data = encode(RECORD)
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(ManifestError):
                decode(bytes(damaged))


def test_every_other_length_is_found():
    data = encode(RECORD)
    for length in range(len(data)):
        with pytest.raises(ManifestError):
            decode(data[:length])
    with pytest.raises(ManifestError):
        decode(data + b"\0")


@pytest.mark.kind("K14")
@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_nothing_else_is_raised(data):
    for given_bytes in (data, sealed(data)):
        with pytest.raises(ManifestError):
            decode(given_bytes)


def test_another_format_is_refused_by_its_number():
    body = msgspec.msgpack.encode(RECORD)
    with pytest.raises(ManifestError, match="format 2; this library reads"):
        decode(sealed(body, version=2))
    assert decode(sealed(body)) == RECORD


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop("grid"),
        lambda fields: fields.update(more=1),
        lambda fields: fields.update(start="0"),
        lambda fields: fields.update(start=None),
        lambda fields: fields.update(parts=[{"pool": "x"}]),
        lambda fields: fields.update(tokens=[1, 2]),
    ],
    ids=["missing", "unknown", "text", "nothing", "part", "list"],
)
def test_a_body_that_says_something_else_is_refused(change):
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(RECORD))
    change(fields)
    with pytest.raises(ManifestError, match="cannot be decoded"):
        decode(sealed(msgspec.msgpack.encode(fields)))
