"""Folders that may not be written and disks that are full: an error, and no harm."""

import errno
import os
import pathlib
import shutil
import tempfile

import pytest
from killing import files
from plain_folder import PlainFolder
from small_records import expected, look, save

from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.prefix_store import StoreError

FIVE, SEVEN = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]
NOBODY = 65534


@pytest.fixture
def root(tmp_path):
    save(ObjectStore(tmp_path / "store"), FIVE)
    return tmp_path / "store"


def test_files_that_may_not_grow(nursery, root):
    """The operating system writes what fits and refuses the rest, at any size."""
    before, sizes = files(root), set()
    for limit in (0, 1, 50, 300, 1300):
        action = {"kind": "save", "tokens": SEVEN, "no_files_beyond": limit}
        done = nursery.trial(root, action)
        assert done["end"] == "StoreError", limit
        assert "File too large" in done["text"]
        assert look(PlainFolder(root), SEVEN) == [expected(FIVE)]
        after = files(root)
        assert before.items() <= after.items()
        # A pack may have come through; nothing that was begun is left.
        assert all(name.startswith("packs/") for name in after.keys() - before.keys())
        assert not [name for name in after if "__lock" in name]
        sizes.add(len(after))
    assert len(sizes) > 1
    assert nursery.trial(root, {"kind": "save", "tokens": SEVEN})["end"] == "done"
    assert look(ObjectStore(root), SEVEN) == [expected(SEVEN)]


def test_files_that_cannot_be_opened(nursery, root):
    """Whoever looks is told so, or sees what is right; the next look finds it."""
    action = {"kind": "look", "tokens": FIVE, "memory": 2**30}
    plain = nursery.trial(root, action)
    assert plain["value"]["seen"] == [expected(FIVE)]
    told = 0
    for at, event in enumerate(plain["events"]):
        error = errno.EIO if at % 2 else errno.EACCES
        done = nursery.trial(root, action, fault="fail", at=at, error=error)
        if done["end"] == "StoreError":
            told += 1
            assert " could not be " in done["text"]
        else:
            assert done["value"]["seen"] == [expected(FIVE)], event
    assert told > 2
    assert look(ObjectStore(root), FIVE) == [expected(FIVE)]


def test_a_folder_that_may_only_be_read(nursery):
    """By another user than its owner; what is there is found."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    around = pathlib.Path(tempfile.mkdtemp())
    try:
        around.chmod(0o755)
        save(ObjectStore(around / "store"), FIVE)
        before = files(around)
        stranger = {"kind": "save", "tokens": SEVEN, "uid": NOBODY}
        done = nursery.trial(around / "store", stranger)
        assert done["end"] == "StoreError"
        assert "could not be written in" in done["text"]
        assert "Permission denied" in done["text"]
        done = nursery.trial(around / "new", stranger)
        assert done["end"] == "StoreError"
        assert files(around) == before
        found = nursery.trial(
            around / "store",
            {"kind": "look", "tokens": SEVEN, "uid": NOBODY, "memory": 2**30},
        )
        assert found["value"]["seen"] == [expected(FIVE)]
        # Who may write in the folder may also not be let into the one around it.
        around.chmod(0o711)
        for path in (around / "store").rglob("*"):
            os.chown(path, NOBODY, NOBODY)
        os.chown(around / "store", NOBODY, NOBODY)
        assert nursery.trial(around / "store", stranger)["end"] == "done"
        assert look(ObjectStore(around / "store"), SEVEN) == [expected(SEVEN)]
    finally:
        shutil.rmtree(around)


def test_a_disk_that_is_full_and_one_that_may_only_be_read(nursery, tmp_path):
    """Real ones, where the tests may mount them."""
    action = {"kind": "small disk", "tokens": [FIVE, SEVEN]}
    done = nursery.trial(tmp_path / "disk", action)
    assert done["end"] == "done", done
    if "skipped" in done["value"]:
        pytest.skip(f"no disk can be mounted: {done['value']['skipped']}")
    first, full, read_only, again = done["value"]["found"]
    assert first == ["done", [expected(FIVE)]]
    for (said, seen), why in (
        (full, "No space left on device"),
        (read_only, "Read-only file system"),
    ):
        assert "could not be written in" in said
        assert why in said
        assert seen == [expected(FIVE)]
    assert again == ["done", [expected(SEVEN)]]
    assert done["value"]["swept"] == 0


def test_an_error_names_the_object_the_folder_and_the_cause(nursery, root):
    done = nursery.trial(
        root, {"kind": "put", "name": "a/b", "data": "x"}, fault="fail", to=99, error=28
    )
    assert done["end"] == "StoreError"
    assert done["text"].startswith(f"a/b could not be written in {root}: ")
    with pytest.raises(StoreError) as caught:
        ObjectStore(root).put("packs", b"")
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in str(caught.value)
