"""Records go from store to store in one file, whole or not at all."""

import dataclasses
import functools
import io
import json
import pathlib
import re
import tarfile
import tempfile
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_records import KEY, CutError, Watched, copied, cut, length_read, write
from test_manifest import sealed

from hybridcache_jax.store.archive import HEADER, ArchiveError
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.exports import export_records
from hybridcache_jax.store.imports import import_records
from hybridcache_jax.store.manifest import decode, encode
from hybridcache_jax.store.ticks import next_tick
from hybridcache_jax.store.trust import give_up
from hybridcache_jax.store.verification import verify
from hybridcache_jax.testing.stores import MemoryStore as Memory

LONG, OTHER = list(range(12)), [7] * 4


def filled():
    store = Watched()
    write(store, LONG[:8])
    write(store, LONG, 8)
    write(store, OTHER)
    return store


def ends(store):
    assert verify(store).problems == ()
    return length_read(store, LONG), length_read(store, OTHER)


@functools.cache
def exported():
    with tempfile.TemporaryDirectory() as folder:
        export_records(filled(), f"{folder}/all.tar")
        return pathlib.Path(folder, "all.tar").read_bytes()


@pytest.fixture
def archive():
    return exported()


def changed(tmp_path, archive, change=None, more=()):
    """An archive made anew, member by member."""
    file = tmp_path / "changed.tar"
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(file, "w") as new,
    ):
        for member in old:
            source = old.extractfile(member)
            data = source.read()
            if change is not None:
                data = change(member, data)
                if data is None:
                    continue
                member.size = len(data)
            new.addfile(member, io.BytesIO(data))
        for member, data in more:
            new.addfile(member, io.BytesIO(data))
    return file


def test_all_records_come_to_another_store(tmp_path):
    store, other = filled(), Watched()
    for _ in range(3):
        next_tick(store)
    done = export_records(store, tmp_path / "a.tar")
    assert sorted(done.records) == sorted(store.names("records/"))
    assert (done.packs, done.unread) == (3, ())
    assert done.nbytes == (tmp_path / "a.tar").stat().st_size
    taken = import_records(other, tmp_path / "a.tar")
    assert sorted(taken.records) == sorted(done.records)
    assert (taken.packs, taken.present, taken.refused) == (3, (), ())
    assert ends(other) == (12, 4)
    # They are as old as they are there, not as they were where they come from.
    ages = {decode(other.objects[name]).age for name in taken.records}
    assert ages == {0}


def test_it_may_be_done_again_and_changes_nothing(tmp_path, archive):
    file, store = tmp_path / "a.tar", Watched()
    file.write_bytes(archive)
    import_records(store, file)
    before, writes = dict(store.objects), store.cut
    again = import_records(store, file)
    assert (again.records, again.packs, len(again.present)) == ((), 0, 3)
    assert (store.objects, store.cut) == (before, writes)


def test_what_is_there_and_damaged_is_written_anew(tmp_path, archive):
    file = tmp_path / "a.tar"
    file.write_bytes(archive)
    for name in filled().objects:
        store = filled()
        store.objects[name] = store.objects[name][:-1]
        import_records(store, file)
        assert ends(store) == (12, 4)


def test_one_record_comes_with_what_leads_to_it(tmp_path):
    store, other = filled(), Watched()
    key = write(Memory(), LONG, 8).key
    export_records(store, tmp_path / "a.tar", [key])
    import_records(other, tmp_path / "a.tar")
    assert ends(other) == (12, 0)
    assert len(other.names("packs/")) == 2
    with pytest.raises(ArchiveError, match="no record with the key"):
        export_records(store, tmp_path / "b.tar", [b"x" * 16])
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_equal_stores_make_equal_archives(tmp_path, archive):
    store = Watched(dict(reversed(filled().objects.items())))
    export_records(store, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == archive


def test_damage_is_not_exported(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"before")
    for name in filled().names("packs/"):
        store = filled()
        store.objects[name] = bytes(len(store.objects[name]))
        with pytest.raises(ArchiveError, match="is damaged"):
            export_records(store, tmp_path / "a.tar")
        store.delete(name)
        with pytest.raises(ArchiveError, match=r"is gone|is damaged"):
            export_records(store, tmp_path / "a.tar")
    store = filled()
    store.objects["records/odd"] = b"?"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    assert (tmp_path / "a.tar").read_bytes() == b"before"
    assert export_records(store, tmp_path / "a.tar").unread == ("records/odd",)


def test_what_is_collected_meanwhile_ends_an_export(tmp_path):
    for at in range(100):
        store = filled()

        def then(store=store):
            for name in list(store.objects):
                del store.objects[name]

        store.at, store.then = at, then
        try:
            export_records(store, tmp_path / "a.tar")
        except ArchiveError:
            continue
        if store.objects:
            return
    raise AssertionError("it never ends")


def test_an_import_that_is_cut_anywhere_goes_on(tmp_path, archive):
    file, calls = tmp_path / "a.tar", 0
    file.write_bytes(archive)
    whole = False
    while not whole:
        store = copied(Memory(), at=calls, then=cut)
        try:
            import_records(store, file)
            whole = True
        except CutError:
            assert ends(store)[0] in (0, 8, 12)
            import_records(store, file)
        store.at = -1
        assert ends(store) == (12, 4)
        calls += 1
    assert calls > 20


def test_a_pack_that_is_about_to_be_swept_comes_under_another_name(tmp_path, archive):
    file, store = tmp_path / "a.tar", filled()
    file.write_bytes(archive)
    for name in store.names("records/"):
        store.delete(name)
    left = set(collect(store).noted)
    assert len(left) == 3
    import_records(store, file)
    assert set(collect(store).swept) == left
    assert ends(store) == (12, 4)


@pytest.mark.kind("K14")
@settings(max_examples=60)
@given(st.data())
def test_no_flip_and_no_cut_lets_anything_wrong_in(tmp_path_factory, data):
    archive = exported()
    file = tmp_path_factory.getbasetemp() / "flipped.tar"
    place = data.draw(st.integers(0, len(archive) - 1))
    damaged = bytearray(archive)
    if data.draw(st.booleans()):
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del damaged[place:]
    file.write_bytes(damaged)
    store = Watched()
    try:
        import_records(store, file)
    except ArchiveError:
        assert store.objects == {}
    ends(store)


@pytest.mark.kind("K14")
@settings(max_examples=30)
@given(st.binary(max_size=3000), st.integers(0, 20))
def test_whatever_a_file_holds_nothing_else_is_raised(tmp_path_factory, data, blocks):
    archive = exported()
    file = tmp_path_factory.getbasetemp() / "random.tar"
    for begin in (b"", archive[: 512 * blocks]):
        file.write_bytes(begin + data)
        store = Watched()
        with pytest.raises(ArchiveError):
            import_records(store, file)
        assert store.objects == {}


def member(name, size=1, **more):
    found = tarfile.TarInfo(name)
    found.size = size
    for key, value in more.items():
        setattr(found, key, value)
    return found


PACK = "packs/00/" + "0" * 32
HOSTILE = [
    (member("../../escape"), b"x", "neither a record nor a pack"),
    (member("/etc/x"), b"x", "neither a record nor a pack"),
    (member("packs/../x"), b"x", "neither a record nor a pack"),
    (member("ticks/000000000009"), b"x", "neither a record nor a pack"),
    (member(PACK, 0, type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"", "plain file"),
    (member(PACK, 0, type=tarfile.LNKTYPE, linkname=HEADER), b"", "plain file"),
    (member(PACK, 0, type=tarfile.DIRTYPE), b"", "plain file"),
    (member(PACK, 0, type=tarfile.CHRTYPE), b"", "plain file"),
    (member(PACK, 2000), bytes(2000), "more than 1000 bytes"),
]


@pytest.mark.parametrize(("what", "data", "why"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_does_not_belong_there_is_refused(tmp_path, archive, what, data, why):
    file = changed(tmp_path, archive, more=[(what, data)])
    store = Watched()
    done = import_records(store, file, largest=1000)
    ((name, reason),) = done.refused
    assert name == what.name.lstrip("/") or name == what.name
    assert why in reason
    assert ends(store) == (12, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"changed.tar"}


def rewritten(change):
    """Changes manifests, and makes their digests right."""

    def one(member, data):
        if not member.name.startswith("records/"):
            return data
        return encode(msgspec.structs.replace(decode(data), **change))

    return one


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (rewritten({"tokens": bytes(16)}), "tokens|key"),
        (rewritten({"generation": 3}), "producer|generation"),
        (rewritten({"stop": 2**50}), "tokens"),
        (
            lambda m, data: sealed(b"x", version=3) if "records" in m.name else data,
            "format 3",
        ),
        (lambda m, data: bytes(len(data)) if "packs" in m.name else data, "digest|not"),
    ],
    ids=["tokens", "generation", "stop", "format", "packs"],
)
def test_records_that_lie_are_refused(tmp_path, archive, change, why):
    store = Watched()
    done = import_records(store, changed(tmp_path, archive, change))
    assert done.records == ()
    assert len(done.refused) >= 3
    assert all(re.search(why, reason) for _, reason in done.refused), done.refused
    assert store.names("records/") == []


def test_a_record_whose_parent_is_not_there_is_refused(tmp_path, archive):
    def without_first(member, data):
        if member.name.startswith("records/") and decode(data).stop == 8:
            data = b"damaged"
        return data

    file, store = changed(tmp_path, archive, without_first), Watched()
    done = import_records(store, file)
    assert len(done.refused) == 2
    assert ends(store) == (0, 4)
    write(store, LONG[:8])
    import_records(store, file)
    assert ends(store) == (12, 4)


def test_what_was_given_up_comes_back_through_no_archive(tmp_path, archive):
    """Nor what was not: it would be found when the store gives up as often itself."""
    file, other = tmp_path / "a.tar", tmp_path / "b.tar"
    file.write_bytes(archive)
    store = Watched()
    give_up(store, KEY.identity)
    done = import_records(store, file)
    assert done.records == ()
    assert {why for _, why in done.refused} == {"its generation is 0, the store's 1"}
    write(store, OTHER, key=dataclasses.replace(KEY, generation=1))
    write(store, LONG)
    done = export_records(store, other)
    assert (len(done.records), len(done.given_up)) == (1, 1)
    fresh = Watched()
    ((_, why),) = import_records(fresh, other).refused
    assert why == "its generation is 1, the store's 0"
    assert verify(store).problems == verify(fresh).problems == ()


def test_a_record_of_a_later_format_is_not_replaced(tmp_path, archive):
    file, store = tmp_path / "a.tar", filled()
    file.write_bytes(archive)
    name = store.names("records/")[0]
    store.objects[name] = later = sealed(b"x", version=3)
    done = import_records(store, file)
    assert [each for each, _ in done.refused] == [name]
    assert store.objects[name] == later


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"format": 2}, "has format 2; this library reads 1"),
        ({"format": "1"}, "does not say what it is"),
        ({}, "does not say what it is"),
        ({"format": 1, "records": 99, "packs": 0}, "was cut short"),
    ],
    ids=str,
)
def test_another_archive_is_refused(tmp_path, archive, header, why):
    def other(member, data):
        return json.dumps(header).encode() if member.name == HEADER else data

    store = Watched()
    with pytest.raises(ArchiveError, match=why):
        import_records(store, changed(tmp_path, archive, other))
    assert store.objects == {}


def test_a_tar_of_something_else_is_refused(tmp_path):
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w") as tar:
        tar.addfile(member("x", 1), io.BytesIO(b"x"))
    with pytest.raises(ArchiveError, match="not one of records"):
        import_records(Watched(), file)


SIZES = {
    "8 GiB": b"\x80" + (2**33).to_bytes(11, "big"),
    "huge": b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7,
    "negative": b"\xff" * 12,
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L"], ids=str)
def test_no_size_in_an_archive_is_believed(tmp_path, archive, size, kind):
    """Of the first member and the second, as a file and as what comes before one."""
    file = tmp_path / "a.tar"
    for at in (0, 1024):
        header = bytearray(archive[at : at + 512])
        header[124:136], header[156:157] = size, kind
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        file.write_bytes(archive[:at] + header + archive[at + 512 :])
        store = Watched()
        tracemalloc.start()
        try:
            with pytest.raises(ArchiveError):
                import_records(store, file)
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()
        assert store.objects == {}
