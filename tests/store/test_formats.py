"""Files of every format that was ever written, and what becomes of unknown ones."""

import pytest
from kept_records import Watched, length_read, write
from test_manifest import RECORD, sealed

from hybridcache_jax.store import manifest as lib
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.manifest import (
    ManifestError,
    UnknownFormatError,
    decode,
    encode,
)
from hybridcache_jax.store.verification import verify

FORMAT_1 = (
    "68636a7201000972096da654e35d175a7c15e84964c9f34b8f94258c919cafa7a32de220d4f2"
    "8fa76c696272617279a5302e312e30a86964656e7469747983a777656967687473a177a76164"
    "6170746572a0ae666f726d61745f76657273696f6e01a573636f706503a56f776e6572a0aa67"
    "656e65726174696f6e00aa70726f76656e616e636500a46772696404a36b6579c4106b6b6b6b"
    "6b6b6b6b6b6b6b6b6b6b6b6ba6706172656e74c41070707070707070707070707070707070a5"
    "737461727400a473746f7004a6746f6b656e73c41000000000000000000000000000000000a8"
    "636f6e74656e747391940002a3737472a770696374757265a570617274739185a4706f6f6ca9"
    "66756c6c5f6b762e30a4666f726da746554c4c5f4b56ac626c6f636b5f746f6b656e7304a670"
    "6c616e65739183a46e616d65a16ba56474797065a862666c6f61743136a57368617065930204"
    "08a6626c6f636b739184a66e756d62657200a47061636bad7061636b732f61622f61626364a5"
    "7374617274cc80a6646967657374c41064646464646464646464646464646464a361676507"
)

# A file of each format as it was written, and what it says today.  Add to it; what is
# here changes only until the format is released.
WRITTEN = {1: (FORMAT_1, RECORD)}


def test_every_format_that_can_be_read_has_a_file_here():
    assert lib.FORMAT in lib.READABLE
    assert sorted(WRITTEN) == sorted(lib.READABLE)


@pytest.mark.parametrize("number", WRITTEN)
def test_what_was_written_is_read_as_it_was_meant(number):
    data, meant = WRITTEN[number]
    assert decode(bytes.fromhex(data)) == meant


def test_what_is_written_is_of_the_format_that_it_says():
    """Other bytes for the same record are another format."""
    assert encode(RECORD).hex() == WRITTEN[lib.FORMAT][0]


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
