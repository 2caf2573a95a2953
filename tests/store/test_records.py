"""Records are found by their tokens, compared whole, and never half written."""

import dataclasses
import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_records import GRID, HISTORY, KEY, WINDOW, block

from hybridcache_jax.contents import Contents
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.finding import find_records
from hybridcache_jax.store.keys import keyed_blake3
from hybridcache_jax.store.manifest import decode, encode
from hybridcache_jax.store.pack import read_blocks
from hybridcache_jax.store.records import (
    PoolBlocks,
    Prefix,
    layout_of,
    write_record,
)
from hybridcache_jax.testing.stores import MemoryStore as Memory

ME = KEY.identity


def prefix(tokens, spans=(), key=KEY, hash=keyed_blake3):
    ids = np.array(tokens, np.int32)
    contents = Contents.of(spans, len(ids))
    return Prefix(key, ids, contents, GRID, hash)


def write(store, tokens, start=0, **more):
    """A record at the end of ``tokens`` that goes on from ``start``."""
    last = len(tokens) // GRID - 1
    history = [
        (n, block(HISTORY, tokens[: (n + 1) * GRID]))
        for n in range(start // GRID, last + 1)
    ]
    parts = [
        PoolBlocks(WINDOW, [(last, block(WINDOW, tokens))]),
        PoolBlocks(HISTORY, history),
    ]
    return write_record(store, prefix(tokens, **more), start, parts, library="0", age=1)


def check(store, found, tokens):
    """Every block that is named holds what a record of these tokens must hold."""
    for record in found.records:
        for pool, part in zip((WINDOW, HISTORY), record.parts, strict=True):
            assert part.planes == layout_of(pool)
            data = read_blocks(store, part.blocks, pool.block_bytes)
            numbers = [place.number for place in part.blocks]
            if pool is HISTORY:
                assert numbers == list(range(record.start // GRID, record.stop // GRID))
            for number, got in zip(numbers, data, strict=True):
                end = (number + 1) * GRID
                if end <= found.length:
                    want = block(pool, tokens[:end]).planes
                    parts = [want[plane.name].tobytes() for plane in part.planes]
                    assert got == b"".join(parts)


def test_a_record_is_one_pack_and_one_manifest():
    store, tokens = Memory(), list(range(12))
    record = write(store, tokens)
    assert len(store.names("packs/")) == len(store.names("records/")) == 1
    found = find_records(store, prefix([*tokens, 99]))
    assert (found.records, found.length, found.problems) == ((record,), 12, ())
    check(store, found, tokens)


# Few grid units, so that prompts share them, and a rest.
UNITS = st.sampled_from([[0, 0, 0, 0], [0, 0, 0, 1], [1, 2, 3, 4]])
TOKENS = st.builds(
    lambda units, rest: [*itertools.chain(*units), *rest],
    st.lists(UNITS, min_size=1, max_size=6),
    st.lists(st.integers(0, 1), max_size=3),
)


@pytest.mark.kind("K09")
@settings(max_examples=150, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=6), TOKENS, st.booleans())
def test_the_furthest_records_are_found_and_are_the_prompts_own(all_stored, asked, cut):
    """Also with keys of 4 bits, where nearly all meet: then less, never wrong."""

    def four_bits(secret, data):
        return bytes([keyed_blake3(secret, data)[0] & 15]) * 16

    hash = four_bits if cut else keyed_blake3
    store, written = Memory(), []
    for tokens in all_stored:
        whole = tokens[: len(tokens) // GRID * GRID]
        found = find_records(store, prefix(whole, hash=hash))
        ends = [r.stop for r in found.records if r.stop <= found.length]
        start = max(ends, default=0)
        # Some go on from what is there, some do not.
        start = start if len(written) % 2 else 0
        if start < len(whole):
            write(store, whole, start, hash=hash)
        written.append(whole)
    found = find_records(store, prefix(asked, hash=hash))
    at = 0
    for record in found.records:
        assert record.start == at
        at = record.stop
    own = np.concatenate(
        [np.zeros(0, np.int32)]
        + [np.frombuffer(record.tokens, "<i4") for record in found.records]
    )
    assert own[: found.length].tolist() == asked[: found.length]
    best = max(
        next(
            n
            for n in range(0, len(asked) + GRID, GRID)
            if asked[: n + GRID] != whole[: n + GRID] or len(whole) < n + GRID
        )
        for whole in written
    )
    assert found.length == best if not cut else found.length <= best
    check(store, found, asked)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_record_that_is_cut_short_is_not_there(writes):
    store, tokens = Memory(), list(range(8))
    write(store, tokens[:4])
    store.cut = writes
    with pytest.raises(KeyboardInterrupt):
        write(store, tokens, 4)
    store.cut = 10**9
    found = find_records(store, prefix(tokens))
    assert (found.length, len(found.records)) == (4, 1)
    check(store, found, tokens)
    write(store, tokens, 4)
    assert find_records(store, prefix(tokens)).length == 8


def test_another_tenant_finds_nothing_and_opens_nothing():
    store, tokens = Memory(), list(range(8))
    write(store, tokens)
    for namespace in ("b", ""):
        reads = store.reads
        other = Key(ME.within(namespace))
        found = find_records(store, prefix(tokens, key=other))
        assert (found.length, found.problems, store.reads) == (0, (), reads)
    assert find_records(store, prefix(tokens)).length == 8


def test_a_record_that_was_put_under_another_producers_name_is_named():
    """No hash decides: the fields are compared, and the one that differs is said."""
    store, tokens = Memory(), list(range(4))
    write(store, tokens)
    (name,) = store.names("records/")
    for field in dataclasses.fields(ME):
        record = decode(store.objects[name])
        changed = {**record.identity, field.name: "other"}
        planted = Memory(dict(store.objects))
        planted.objects[name] = encode(
            msgspec.structs.replace(record, identity=changed)
        )
        found = find_records(planted, prefix(tokens))
        assert found.length == 0
        assert found.problems == ((name, f"another producer wrote it: {field.name}"),)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"start": 4, "stop": 8}, "does not go on"),
        ({"parent": b"x" * 16}, "does not go on"),
        ({"grid": 2}, "does not go on"),
        ({"provenance": 1}, "other readers"),
        ({"scope": 4}, "other readers"),
        ({"owner": "x"}, "other readers"),
        ({"generation": 1}, "other readers"),
        ({"stop": 8}, "tokens are not those"),
        ({"stop": 2**62}, "tokens are not those"),
        ({"stop": 0, "tokens": b""}, "tokens are not those"),
        ({"contents": ((0, 2**62, "str", "x"),)}, "contents lie outside"),
        ({"contents": ((2, 1, "str", "x"),)}, "contents lie outside"),
    ],
    ids=str,
)
def test_a_manifest_that_lies_is_passed_by(change, why):
    store, tokens = Memory(), list(range(4))
    write(store, tokens)
    (name,) = store.names("records/")
    lie = msgspec.structs.replace(decode(store.objects[name]), **change)
    store.objects[name] = encode(lie)
    found = find_records(store, prefix([*tokens, *tokens]))
    assert (found.length, found.records) == (0, ())
    ((_, said),) = found.problems
    assert why in said


def test_contents_part_prefixes_of_equal_tokens():
    store, tokens = Memory(), [1, 9, 9, 2, 5, 6, 7, 8]
    write(store, tokens, spans=[(5, 7, 0x10ABC)])
    assert find_records(store, prefix(tokens, [(5, 7, 0x10ABC)])).length == 8
    for other in (0x20ABC, "x", str(0x10ABC), b"\x0a"):
        assert find_records(store, prefix(tokens, [(5, 7, other)])).length == 4
    assert find_records(store, prefix(tokens)).length == 4


def test_positions_that_are_no_grid_units_are_refused():
    for tokens, start in (([1] * 5, 0), ([1] * 8, 2), ([1] * 8, 8), ([], 0)):
        with pytest.raises(ValueError, match="whole grid units"):
            write(Memory(), tokens, start)
