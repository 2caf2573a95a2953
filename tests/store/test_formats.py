"""Files of every format that was ever written, and what becomes of unknown ones."""

import msgspec
import pytest
from kept_records import Watched, length_read, write
from test_manifest import RECORD, sealed

from hybridcache_jax.store import manifest as lib
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.manifest import (
    BlockPlace,
    ManifestError,
    PlaneLayout,
    PoolPart,
    UnknownFormatError,
    decode,
    encode,
)
from hybridcache_jax.store.verification import verify

FORMAT_1 = (
    "68636a72010036b39755fd44b6ae697bcaa5c17e747fbceea5ee423e291717e71c68dfde85c6"
    "de000fa76c696272617279a5302e312e30a86964656e7469747983a777656967687473a177a7"
    "61646170746572a0ae666f726d61745f76657273696f6e01a573636f706503a56f776e6572a0"
    "aa67656e65726174696f6e00aa70726f76656e616e636500a46772696404a36b6579c4106b6b"
    "6b6b6b6b6b6b6b6b6b6b6b6b6b6ba6706172656e74c410707070707070707070707070707070"
    "70a5737461727400a473746f7004a6746f6b656e73c410000000000000000000000000000000"
    "00a8636f6e74656e747391940002a3737472a770696374757265a570617274739185a4706f6f"
    "6ca966756c6c5f6b762e30a4666f726da746554c4c5f4b56ac626c6f636b5f746f6b656e7304"
    "a6706c616e65739183a46e616d65a16ba56474797065a862666c6f61743136a5736861706593"
    "020408a6626c6f636b739184a66e756d62657200a47061636bad7061636b732f61622f616263"
    "64a57374617274cc80a6646967657374c41064646464646464646464646464646464a3616765"
    "07"
)

# The same record with logits; a body does not speak of what a record may lack.
FORMAT_1_LOGITS = (
    "68636a7201006c523d46731615e2170733be00bbd17e739682249aebbdaa97f15a24702ae42c"
    "de0010a76c696272617279a5302e312e30a86964656e7469747983a777656967687473a177a7"
    "61646170746572a0ae666f726d61745f76657273696f6e01a573636f706503a56f776e6572a0"
    "aa67656e65726174696f6e00aa70726f76656e616e636500a46772696404a36b6579c4106b6b"
    "6b6b6b6b6b6b6b6b6b6b6b6b6b6ba6706172656e74c410707070707070707070707070707070"
    "70a5737461727400a473746f7004a6746f6b656e73c410000000000000000000000000000000"
    "00a8636f6e74656e747391940002a3737472a770696374757265a570617274739185a4706f6f"
    "6ca966756c6c5f6b762e30a4666f726da746554c4c5f4b56ac626c6f636b5f746f6b656e7304"
    "a6706c616e65739183a46e616d65a16ba56474797065a862666c6f61743136a5736861706593"
    "020408a6626c6f636b739184a66e756d62657200a47061636bad7061636b732f61622f616263"
    "64a57374617274cc80a6646967657374c41064646464646464646464646464646464a3616765"
    "07a66c6f6769747385a4706f6f6ca66c6f67697473a4666f726da64c4f47495453ac626c6f63"
    "6b5f746f6b656e7301a6706c616e65739183a46e616d65a66c6f67697473a56474797065a766"
    "6c6f61743332a573686170659301010ba6626c6f636b739184a66e756d62657203a47061636b"
    "ad7061636b732f63642f63646566a5737461727400a6646967657374c4106c6c6c6c6c6c6c6c"
    "6c6c6c6c6c6c6c6c"
)
LOGITS = PoolPart(
    pool="logits",
    form="LOGITS",
    block_tokens=1,
    planes=(PlaneLayout("logits", "float32", (1, 1, 11)),),
    blocks=(BlockPlace(3, "packs/cd/cdef", 0, b"l" * 16),),
)

# Files of each format as they were written, and what they say today.  Add to them; what
# is here changes only until the format is released.
WRITTEN = {
    1: [
        (FORMAT_1, RECORD),
        (FORMAT_1_LOGITS, msgspec.structs.replace(RECORD, logits=LOGITS)),
    ]
}


def test_every_format_that_can_be_read_has_a_file_here():
    assert lib.FORMAT in lib.READABLE
    assert sorted(WRITTEN) == sorted(lib.READABLE)


@pytest.mark.parametrize("number", WRITTEN)
def test_what_was_written_is_read_as_it_was_meant(number):
    for data, meant in WRITTEN[number]:
        assert decode(bytes.fromhex(data)) == meant


def test_what_is_written_is_of_the_format_that_it_says():
    """Other bytes for the same record are another format."""
    for data, meant in WRITTEN[lib.FORMAT]:
        assert encode(meant).hex() == data


@pytest.mark.parametrize("number", [0, 2, 3, 65535])
def test_an_unknown_format_is_refused_by_its_number_and_outlives_everything(number):
    store = Watched()
    tokens = list(range(8))
    record = write(store, tokens)
    before = dict(store.objects)
    # It lies where records lie, goes on from this one, and may need any pack.
    name = f"records/{record.key.hex()}/{'0' * 32}/{'1' * 32}"
    store.objects[name] = data = sealed(b"of a later library", version=number)
    with pytest.raises(UnknownFormatError, match=f"format {number}; this library"):
        decode(data)
    verify(store, quarantine=True)
    for _ in range(4):
        collect(store, keep_ticks=1, quota=1)
    assert store.objects[name] == data
    assert before.items() <= store.objects.items()
    assert length_read(store, tokens) == 8


def test_a_damaged_file_is_damaged_whatever_its_number_says():
    data = bytearray(sealed(b"of a later library", version=2))
    data[-1] ^= 1
    with pytest.raises(ManifestError, match="not those that were written") as caught:
        decode(bytes(data))
    assert not isinstance(caught.value, UnknownFormatError)
