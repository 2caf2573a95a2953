"""What is in a store, counted without believing anybody."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_records import HISTORY, WINDOW, Watched, write

from hybridcache_jax.store.inventory import take_inventory
from hybridcache_jax.store.manifest import PlaneLayout, PoolPart, decode, encode
from hybridcache_jax.store.records import layout_of
from hybridcache_jax.store.sizes import block_size, object_size
from hybridcache_jax.store.ticks import mark_used, next_tick
from hybridcache_jax.store.usage import measure
from hybridcache_jax.testing.stores import MemoryStore as Memory


@given(st.integers(0, 300), st.integers(-1, 400))
def test_the_size_of_an_object_is_found_from_any_hint(size, hint):
    store = Watched({"packs/x": bytes(size)})
    assert object_size(store, "packs/x", hint) == size
    assert object_size(store, "packs/y", hint) is None


def test_a_right_hint_takes_few_reads_of_a_byte():
    store = Memory({"x": bytes(5000)})
    assert object_size(store, "x", 5000) == 5000
    assert store.reads == 2


def test_a_blocks_size_is_that_of_its_pool():
    for pool in (WINDOW, HISTORY):
        part = PoolPart("p", "f", 4, layout_of(pool), ())
        assert block_size(part) == pool.block_bytes


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("float4_e2m1fn", (1, 2, 3), 6),
        ("bfloat16", (2, 4, 8), 128),
        ("float8_e4m3fn", (1, 1, 1), 1),
        ("nothing", (1, 1, 1), None),
        ("float32", (0, 1, 1), None),
        ("float32", (-1, -1, 1), None),
        ("float32", (2**40, 2**40, 1), None),
        ("O", (1, 1, 1), None),
        ("i4,i4", (1, 1, 1), None),
        ("f4,(", (1, 1, 1), None),
        ("M8[x", (1, 1, 1), None),
        ("V9999999999", (1, 1, 1), None),
        ("", (1, 1, 1), None),
    ],
)
def test_a_layout_that_is_none_has_no_size(dtype, shape, size):
    part = PoolPart("p", "f", 4, (PlaneLayout("k", dtype, shape),), ())
    assert block_size(part) == size


def test_everything_is_listed_and_nothing_of_it_is_believed():
    store = Memory()
    first = write(store, range(8))
    write(store, range(12), 8)
    next_tick(store)
    next_tick(store)
    mark_used(store, [first.key])
    (name,) = [n for n in store.names("records/") if n.endswith(first.key.hex())]
    lie = msgspec.structs.replace(
        decode(store.objects[name]), age=2**40, key=b"x", stop=2**60, start=-(2**60)
    )
    store.objects["records/" + "/".join([32 * "0"] * 3)] = encode(lie)
    store.objects["records/odd"] = b"?"
    store.objects["packs/README"] = b""
    store.objects["what/else"] = b""
    store.objects["quarantine/packs/x"] = b"12"
    found = take_inventory(store)
    assert found.tick == 2
    by_key = {record.key: record for record in found.records}
    assert by_key[first.key].used == 2
    assert by_key[first.key].written == 0
    assert by_key[b"x"].used == 2
    assert by_key[first.key].identity["namespace"] == "a"
    blocks = {"FULL_KV": 2 * HISTORY.block_bytes, "SWA_WINDOW": WINDOW.block_bytes}
    assert by_key[first.key].form_bytes == blocks
    assert [each.name for each in found.unread] == ["records/odd"]
    assert found.foreign == ("packs/README", "what/else")
    assert found.quarantined == ("quarantine/packs/x",)
    assert len(found.packs) == 2


def test_bytes_are_counted_as_the_store_has_them_and_once():
    store = Memory()
    first = write(store, range(8))
    places = {place.number: place for place in first.parts[1].blocks}
    # Another way to the same prefix and beyond, with the history that is there already.
    write(store, range(12), known=places)
    store.objects["packs/00/" + "0" * 32] = bytes(70)
    store.objects["quarantine/records/x"] = bytes(5)
    store.objects["else"] = bytes(3)
    store.objects["records/odd"] = b"?"
    store.objects["snapshots/7/cache/d/0a"] = bytes(11)
    store.objects["snapshots/8.orbax-checkpoint-tmp/cache/d/0b"] = bytes(2)
    usage = measure(store)
    packs = [n for n in store.names("packs/") if n != "packs/00/" + "0" * 32]
    assert usage.pack_bytes == sum(len(store.objects[name]) for name in packs)
    manifests = [n for n in store.names("records/") if n != "records/odd"]
    assert usage.manifest_bytes == sum(len(store.objects[name]) for name in manifests)
    assert usage.form_bytes == {
        "FULL_KV": 3 * HISTORY.block_bytes,
        "SWA_WINDOW": 2 * WINDOW.block_bytes,
    }
    assert sum(usage.form_bytes.values()) == usage.pack_bytes
    assert usage.shared_bytes == 2 * HISTORY.block_bytes
    assert (usage.leftovers, usage.quarantined, usage.foreign) == (
        (1, 70),
        (1, 5),
        (1, 3),
    )
    assert (usage.unread, usage.snapshots) == ((1, 1), (2, 13))
    assert usage.total_bytes == sum(map(len, store.objects.values()))
