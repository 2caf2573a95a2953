"""Verification finds every damage, and takes nothing from a manifest for granted."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_records import CutError, Watched, copied, cut, length_read, write
from test_manifest import sealed

from hybridcache_jax.store import verification
from hybridcache_jax.store.manifest import decode, encode
from hybridcache_jax.store.verification import verify
from hybridcache_jax.testing.stores import MemoryStore as Memory

TOKENS = list(range(12))
SPANS = [(1, 3, 0x10ABC), (5, 6, b"x"), (9, 10, "7")]


def filled():
    """Two records on one prefix, the second with contents, and another of its own."""
    store = Watched()
    write(store, TOKENS[:8], spans=SPANS)
    write(store, TOKENS, 8, spans=SPANS)
    write(store, [7] * 4)
    return store


def ends(store):
    """How far each prompt is found, whole."""
    found = length_read(store, TOKENS, spans=SPANS), length_read(store, [7] * 4)
    return found


def test_a_whole_store_has_no_problems():
    store = filled()
    before = dict(store.objects)
    found = verify(store, quarantine=True)
    assert (found.problems, found.moved, found.sound) == ((), (), True)
    assert (found.records, found.packs) == (3, 3)
    packs = store.names("packs/")
    assert found.nbytes == sum(len(store.objects[name]) for name in packs)
    assert store.objects == before


def test_what_is_not_the_librarys_is_listed_and_stays():
    store = filled()
    others = {"readme": b"", "packs/readme": b"", "x/y": b""}
    store.objects.update(others)
    found = verify(store, quarantine=True)
    assert {each.name for each in found.problems} == set(others)
    assert found.sound
    assert others.items() <= store.objects.items()


def test_an_empty_store_is_sound():
    assert verify(Memory()).sound


@pytest.mark.kind("K14")
@settings(max_examples=60)
@given(st.data())
def test_any_flip_or_cut_is_found_and_does_not_come_back(data):
    store = filled()
    name = data.draw(st.sampled_from(sorted(store.objects)))
    whole = store.objects[name]
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = whole[:place]
    store.objects[name] = bytes(damaged)
    found = verify(store)
    assert not found.sound
    assert any(name in f"{each.name} {each.reason}" for each in found.problems)
    moved = verify(store, quarantine=True).moved
    assert moved
    for each in moved:
        assert each not in store.objects
        assert f"quarantine/{each}" in store.objects
    # What is found now is whole, and what is damaged no more than gone.
    assert verify(store).sound
    lost = ends(store)
    assert lost != (12, 4)
    # Whoever computes it again writes it anew.
    write(store, TOKENS[:8], spans=SPANS)
    write(store, TOKENS, 8, spans=SPANS)
    write(store, [7] * 4)
    assert ends(store) == (12, 4)
    assert verify(store).problems == ()


def test_a_pack_that_is_gone_is_a_damage_of_its_record():
    store = filled()
    record = write(store, [9] * 8)
    (pack,) = {place.pack for part in record.parts for place in part.blocks}
    store.delete(pack)
    found = verify(store)
    assert {problem.reason for problem in found.problems} == {f"{pack} is gone"}
    assert not found.sound


def test_a_damaged_block_does_not_take_a_record_along_that_needs_others():
    store = Watched()
    first = write(store, TOKENS[:8])
    places = {place.number: place for place in first.parts[1].blocks}
    # The second record has the first one's history and a window of its own.
    write(store, TOKENS, known=places)
    window = first.parts[0].blocks[0]
    data = bytearray(store.objects[window.pack])
    data[window.start] ^= 1
    store.objects[window.pack] = bytes(data)
    found = verify(store, quarantine=True)
    (name,) = found.moved
    assert name.endswith(first.key.hex())
    assert length_read(store, TOKENS) == 12
    assert window.pack in store.objects
    # The pack is still not as it was; that is said for as long as somebody needs it.
    assert [each.name for each in verify(store).problems] == [window.pack]


def test_what_waits_for_its_record_is_no_damage_and_stays():
    store = filled()
    (first,) = [
        name
        for name in store.names("records/")
        if decode(store.objects[name]).stop == 8
    ]
    store.delete(first)
    found = verify(store, quarantine=True)
    assert found.sound
    assert found.moved == ()
    (problem,) = found.problems
    assert "goes on from is not there" in problem.reason
    assert ends(store) == (0, 4)
    write(store, TOKENS[:8], spans=SPANS)
    assert ends(store) == (12, 4)


def test_what_goes_on_from_the_records_of_others_waits():
    """The key of the record before it says who they are, but cannot be turned round."""
    store = filled()
    (name,) = [n for n in store.names("records/") if decode(store.objects[n]).start]
    lie = msgspec.structs.replace(decode(store.objects[name]), generation=3)
    store.objects[name] = encode(lie)
    ((said, reason),) = [(each.name, each.reason) for each in verify(store).problems]
    assert said == name
    assert "goes on from is not there" in reason


def test_a_later_format_stays_and_is_named():
    store = filled()
    name = "records/" + "/".join(["0" * 32] * 3)
    store.objects[name] = sealed(b"whatever", version=9)
    found = verify(store, quarantine=True)
    assert found.sound
    assert found.moved == ()
    ((said, reason),) = [(each.name, each.reason) for each in found.problems]
    assert said == name
    assert "format 9" in reason
    assert name in store.objects


CHANGES = [
    ({"start": 4}, "range"),
    ({"stop": 2**62}, "tokens are not those"),
    ({"grid": 0}, "whole grid units"),
    ({"grid": -4}, "whole grid units"),
    ({"tokens": b""}, "tokens are not those"),
    ({"tokens": bytes(32)}, "key is not that of its tokens"),
    ({"key": b"k" * 16}, "key is not that of its tokens"),
    ({"parent": b"k" * 16}, "begins at is not its producer's"),
    ({"provenance": 1}, "begins at is not its producer's"),
    ({"provenance": 7}, "producer or readers are none"),
    ({"scope": 2}, "producer or readers are none"),
    ({"generation": 5}, "begins at is not its producer's"),
    ({"age": -1}, "before the first tick"),
    ({"identity": {"weights": "w"}}, "producer or readers are none"),
    ({"contents": ((0, 1, "str", "y"),)}, "key is not that of its tokens"),
    ({"contents": ((0, 1, "float", "1"),)}, "contents are none"),
    ({"contents": ((0, 1, "bytes", "zz"),)}, "contents are none"),
    ({"contents": ((0, 1, "int", "9" * 9999),)}, "contents are none"),
    ({"contents": ((0, 2**62, "str", "x"),)}, "contents are none"),
]
PLACES = [
    ({"pack": "../../secret"}, "lies nowhere"),
    ({"pack": "records/x"}, "lies nowhere"),
    ({"start": -1}, "lies nowhere"),
    ({"start": 2**62}, "ends before byte"),
    ({"start": 1}, "are damaged"),
    ({"digest": b""}, "has no digest"),
    ({"number": -1}, "ascending order"),
]


def planted(change, place=None):
    """A store with a manifest that is whole and lies."""
    store = Watched()
    write(store, TOKENS[:8])
    (name,) = store.names("records/")
    record = decode(store.objects[name])
    if place is not None:
        part = record.parts[1]
        first = msgspec.structs.replace(part.blocks[0], **place)
        part = msgspec.structs.replace(part, blocks=(first, *part.blocks[1:]))
        change = {"parts": (record.parts[0], part)}
    lie = msgspec.structs.replace(record, **change)
    store.objects[name] = encode(lie)
    return store, name


@pytest.mark.parametrize(("change", "why"), CHANGES, ids=str)
def test_a_manifest_that_lies_is_found(change, why):
    store, name = planted(change)
    found = verify(store)
    assert not found.sound
    assert any(why in each.reason for each in found.problems), found.problems
    assert {each.name for each in found.problems} == {name}


@pytest.mark.parametrize(("place", "why"), PLACES, ids=str)
def test_a_place_that_lies_is_found_and_nothing_else_is_opened(place, why):
    store, name = planted({}, place)
    found = verify(store, quarantine=True)
    assert any(why in each.reason for each in found.problems), found.problems
    assert found.moved == (name,)


@pytest.mark.parametrize("planes", ["dtype", "shape"])
def test_a_layout_that_is_none_is_found(planes):
    wrong = {"dtype": "f4,("} if planes == "dtype" else {"shape": (2**40, 2**40, 1)}
    store, _ = planted({})
    (name,) = store.names("records/")
    record = decode(store.objects[name])
    part = record.parts[0]
    plane = msgspec.structs.replace(part.planes[0], **wrong)
    part = msgspec.structs.replace(part, planes=(plane,))
    store.objects[name] = encode(
        msgspec.structs.replace(record, parts=(part, record.parts[1]))
    )
    assert any("layout of pool" in each.reason for each in verify(store).problems)


def test_a_record_under_another_name_is_found():
    store, name = planted({})
    other = "records/" + "/".join(["0" * 32] * 3)
    store.objects[other] = store.objects[name]
    found = verify(store, quarantine=True)
    assert found.moved == (other,)
    assert length_read(store, TOKENS[:8]) == 8


@pytest.mark.parametrize("window", [1, 7, 64, 100])
def test_packs_that_are_larger_than_what_is_read_at_once(window, monkeypatch):
    monkeypatch.setattr(verification, "_WINDOW", window)
    assert verify(filled()).sound
    store = filled()
    record = write(store, [9] * 8)
    place = record.parts[1].blocks[1]
    data = bytearray(store.objects[place.pack])
    data[-1] ^= 1
    store.objects[place.pack] = bytes(data)
    reasons = [each.reason for each in verify(store).problems]
    assert len(reasons) == 2
    assert any("are damaged" in reason for reason in reasons)


def test_a_quarantine_that_is_cut_short_loses_nothing_that_is_whole():
    whole = filled()
    damaged = copied(whole)
    (name,) = [n for n in whole.names("records/") if decode(whole.objects[n]).stop == 4]
    data = whole.objects[name]
    damaged.objects[name] = data[:-1]
    calls = 0
    while True:
        store = copied(damaged, at=calls, then=cut)
        try:
            verify(store, quarantine=True)
            break
        except CutError:
            pass
        store.at = -1
        assert ends(store) == (12, 0)
        assert verify(store, quarantine=True).records == 2
        assert f"quarantine/{name}" in store.objects
        calls += 1
    assert calls > 10


def test_what_goes_away_meanwhile_is_no_damage():
    for at in range(40):
        store = filled()

        def collected(store=store):
            for name in store.names(""):
                store.objects.pop(name)

        store.at, store.then = at, collected
        assert verify(store, quarantine=True).sound


@pytest.mark.parametrize("folder", ["records/", "packs/"])
def test_what_was_written_anew_since_it_was_found_damaged_stays(folder):
    store = Watched()
    write(store, TOKENS)
    (name,) = store.names(folder)
    whole = dict(store.objects)
    store.objects[name] = whole[name][:-1] + bytes([whole[name][-1] ^ 1])
    # After the last look at both: whether what is named there is there.
    plain = copied(store)
    assert verify(plain).problems
    store.at, store.then = -1 - plain.at, lambda: store.objects.update(whole)
    found = verify(store, quarantine=True)
    assert (found.sound, found.moved) == (False, ())
    assert store.objects == whole
