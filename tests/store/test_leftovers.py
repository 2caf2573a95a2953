"""What killed writers leave: no object, nobody's harm, and swept while others write."""

import fcntl
import os
import pathlib
import threading

import pytest

from hybridcache_jax.store import folder as lib
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.prefix_store import StoreError

NAMES = ("top", "packs/0f/0f3a", "records/k/n/r")


def leave(root, name, data=b"half"):
    """A file as a writer leaves it that is killed while it writes an object."""
    path = root / f"{name}_0123456789abcdef{lib.LEFTOVER}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_leftovers_are_no_objects_and_are_swept(tmp_path):
    store = ObjectStore(tmp_path)
    for name in NAMES:
        store.put(name, name.encode())
    left = [leave(tmp_path, name) for name in (*NAMES, "records/k/m/r", "new")]
    # Of a writer that locks: other programs on TensorStore do.
    left.append(tmp_path / "packs/0f/0f3a.__lock")
    left[-1].write_bytes(b"x" * 5000)
    assert set(store.names("")) == set(NAMES)
    assert store.get("new") is None
    assert store.sweep() == len(left)
    assert store.sweep() == 0
    assert not any(path.exists() for path in left)
    assert {name: store.get(name) for name in NAMES} == {
        name: name.encode() for name in NAMES
    }


def test_what_was_begun_is_no_part_of_what_is_written_next(tmp_path):
    """Whoever began it, this library or TensorStore with its locks: 99 bytes."""
    store = ObjectStore(tmp_path)
    for path in (leave(tmp_path, "a", b"L" * 99), tmp_path / "a.__lock"):
        path.write_bytes(b"L" * 99)
    store.put("a", b"new")
    assert store.get("a") == b"new"


def test_a_sweep_leaves_alone_what_is_being_written(tmp_path):
    """A shared lock of the folder says so; other folders are swept."""
    store = ObjectStore(tmp_path)
    busy, idle = leave(tmp_path, "a/x"), leave(tmp_path, "b/x")
    with lib.Folder(tmp_path).writing("a/y"):
        assert store.sweep() == 1
        assert (busy.exists(), idle.exists()) == (True, False)
    assert store.sweep() == 1
    assert not busy.exists()


def test_a_writer_waits_for_the_sweep_of_its_folder_and_for_no_other(tmp_path):
    store = ObjectStore(tmp_path)
    store.put("a/x", b"1")
    place = os.open(tmp_path / "a", os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    writer = threading.Thread(target=store.put, args=("a/x", b"2"))
    writer.start()
    store.put("b/x", b"3")
    writer.join(0.1)
    assert writer.is_alive()
    assert store.get("a/x") == b"1"
    os.close(place)
    writer.join()
    assert store.get("a/x") == b"2"


def test_what_is_not_ours_is_neither_listed_nor_swept(tmp_path):
    store = ObjectStore(tmp_path)
    store.put("a/x", b"1")
    strange = [".nfs0001", "README", "x~", "a b", "a/.hidden", "a/X"]
    for name in strange:
        (tmp_path / name).write_bytes(b"")
    pathlib.Path(os.fsdecode(bytes(tmp_path / "a") + b"/\xff")).write_bytes(b"")
    (tmp_path / "a" / f"folder{lib.LEFTOVER}").mkdir()
    outside = leave(tmp_path.parent / "outside", "kept")
    (tmp_path / "Elsewhere").symlink_to(outside.parent)
    assert list(store.names("")) == ["a/x"]
    assert store.sweep() == 0
    assert outside.exists()
    assert all((tmp_path / name).exists() for name in strange)


def test_a_store_that_is_not_there_yet_is_clean(tmp_path):
    assert ObjectStore(tmp_path / "none").sweep() == 0
    assert not (tmp_path / "none").exists()


def test_a_sweep_that_cannot_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"could not be swept: .*file/store"):
        ObjectStore(tmp_path / "file" / "store").sweep()
