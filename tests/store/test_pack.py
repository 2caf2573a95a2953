"""Blocks in packs: what was written comes back, anything else is a miss."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.store import pack
from hybridcache_jax.store.pack import read_blocks, write_blocks
from hybridcache_jax.testing.stores import MemoryStore as Memory

SIZE = 24


def blocks(count, seed=0):
    rng = np.random.default_rng(seed)
    return [(n, rng.bytes(SIZE)) for n in range(count)]


def test_many_blocks_are_one_object_and_one_read():
    store, some = Memory(), blocks(50)
    places = write_blocks(store, some)
    assert len(store.objects) == 1
    assert [place.number for place in places] == list(range(50))
    assert read_blocks(store, places, SIZE) == [block for _, block in some]
    assert store.reads == 1


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(0, 3), st.randoms())
def test_any_of_them_in_any_order(count, most, random):
    store, some = Memory(), blocks(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "_MOST", SIZE * (1 + most))
        places = write_blocks(store, iter(some))
        assert len(store.objects) == -(-count // (1 + most))
        chosen = random.choices(range(count), k=count)
        found = read_blocks(store, [places[n] for n in chosen], SIZE)
    assert found == [some[n][1] for n in chosen]


def test_equal_blocks_written_twice_are_there_once():
    store = Memory()
    first, second = (write_blocks(store, blocks(3)) for _ in range(2))
    assert first == second
    assert len(store.objects) == 1


@pytest.mark.kind("K14")
@settings(max_examples=100)
@given(st.integers(0, 5 * SIZE - 1), st.integers(0, 7))
def test_a_flipped_bit_costs_the_block_that_it_is_in(place, bit):
    store, some = Memory(), blocks(5)
    places = write_blocks(store, some)
    (name,) = store.objects
    data = bytearray(store.objects[name])
    data[place] ^= 1 << bit
    store.objects[name] = bytes(data)
    want = [None if n == place // SIZE else block for n, block in some]
    assert read_blocks(store, places, SIZE) == want


def test_a_pack_that_is_shorter_or_gone_is_a_miss():
    store, some = Memory(), blocks(2)
    places = write_blocks(store, some)
    (name,) = store.objects
    whole = store.objects[name]
    for length in range(len(whole)):
        store.objects[name] = whole[:length]
        assert None in read_blocks(store, places, SIZE)
    store.delete(name)
    assert read_blocks(store, places, SIZE) == [None, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pack": "../secret"},
        {"pack": "records/x"},
        {"pack": ""},
        {"start": -1},
        {"start": 2**63},
        {"start": 1},
        {"digest": b""},
    ],
    ids=str,
)
def test_a_place_that_is_none_is_a_miss_and_nothing_is_opened(wrong):
    store = Memory()
    (place,) = write_blocks(store, blocks(1))
    bad = msgspec.structs.replace(place, **wrong)
    assert read_blocks(store, [bad], SIZE) == [None]
    assert store.reads == ("digest" in wrong or wrong == {"start": 1})


def test_a_place_says_of_a_block_what_its_payload_says():
    k, v = np.arange(6, dtype=np.int16).reshape(1, 2, 3), np.ones((1, 2, 1), np.uint8)
    payload = Payload.sealed({"v": v, "k": k})
    assert payload.data() == k.tobytes() + v.tobytes()
    (place,) = write_blocks(Memory(), [(3, payload.data())])
    assert (place.number, place.digest) == (3, payload.digest)
