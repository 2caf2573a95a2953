"""Objects in folders: what any store must do, and what a folder says when it cannot."""

import fcntl
import os
import stat

import numpy as np
import pytest

from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.prefix_store import ShortObjectError, StoreError
from hybridcache_jax.testing.stores import check_store


def test_a_folder_keeps_what_a_store_promises(tmp_path):
    check_store(ObjectStore(tmp_path / "new"), ObjectStore(str(tmp_path / "new")))
    # Locks and temporary files are gone with what they were for.
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


def test_large_parts_of_objects_are_read_like_small_ones(tmp_path):
    store, size = ObjectStore(tmp_path, timeout=0.2), 2**18
    data = np.random.default_rng(0).bytes(3 * size)
    store.put("a/large", data)
    assert store.get("a/large") == data
    for start, stop in ((0, size), (5, size + 5), (2 * size, 3 * size), (0, 3 * size)):
        assert store.get("a/large", start, stop) == data[start:stop]
    for start, stop in ((2 * size + 1, 3 * size + 1), (4 * size, 6 * size), (0, 2**60)):
        with pytest.raises(ShortObjectError, match=f"ends before byte {stop}"):
            store.get("a/large", start, stop)
    for name in ("none", "none/at/all", "a", "a/large/none"):
        assert store.get(name, 0, size) is None
    os.mkfifo(tmp_path / "slow")
    with pytest.raises(StoreError, match=r"read .* no answer in 0\.2 seconds"):
        store.get("slow", 0, size)
    os.close(os.open(tmp_path / "slow", os.O_RDWR))


class Dict:
    """A store in a dictionary, with one promise broken."""

    def __init__(self, broken):
        self.objects, self.broken = {}, broken

    def put(self, name, data):
        if ".." in name or name in {"", "A"} or not name.islower() or name[0] in "./":
            raise StoreError(name)
        if self.broken != "lost":
            self.objects[name] = data

    def get(self, name, start=0, stop=None):
        data = self.objects.get(name)
        if data is None:
            return None
        if self.broken != "short" and stop is not None and stop > len(data):
            raise ShortObjectError(name)
        return data[start:stop]

    def names(self, prefix):
        return [] if self.broken == "names" else list(self.objects)

    def delete(self, name):
        self.objects.pop(name, None)


@pytest.mark.parametrize("broken", ["lost", "short", "names", ""])
def test_the_check_can_fail(broken):
    store = Dict(broken)
    with pytest.raises(AssertionError):
        check_store(store, store)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_says_so(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    store = ObjectStore(tmp_path / "no")
    with pytest.raises(StoreError, match="could not be written"):
        store.put("a", b"1")
    tmp_path.chmod(stat.S_IRWXU)


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = ObjectStore(tmp_path / "file" / "store")
    with pytest.raises(StoreError, match=r"a could not be written in .*file/store"):
        store.put("a", b"1")


def test_a_disk_that_hangs_is_given_up(tmp_path):
    """A pipe that nobody writes to is a file that cannot be opened."""
    os.mkfifo(tmp_path / "slow")
    store = ObjectStore(tmp_path, timeout=0.2)
    with pytest.raises(StoreError, match=r"no answer in 0\.2 seconds, 1 times"):
        store.get("slow")
    other = ObjectStore(tmp_path)
    other.put("fast", b"1")
    assert other.get("fast") == b"1"
    os.close(os.open(tmp_path / "slow", os.O_RDWR))


def test_a_put_that_waits_for_a_lock_for_ever_is_given_up(tmp_path):
    ObjectStore(tmp_path).put("a/x", b"1")
    place = os.open(tmp_path / "a", os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match=r"a/y could not be written .* no answer in"):
        ObjectStore(tmp_path, timeout=0.2).put("a/y", b"2")
    os.close(place)
    assert ObjectStore(tmp_path).get("a/x") == b"1"
