"""A save that is cut at any of its calls leaves the old record, the new one or none.

Every open, write, wait, rename, lock and close that a save makes under its folder is
counted, and cut in turn: killed at, failed, done by halves.  A test compares the count
with what the operating system saw.
"""

import errno
import json
import re
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import HERE, environment, files
from plain_folder import PlainFolder
from small_records import expected, look, save

from hybridcache_jax.store.objects import ObjectStore

FIVE, SEVEN, OTHER = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [1, 9, 9]
# Saves over a store that has FIVE and OTHER, and what is there before and after each.
SAVES = {
    "longer": (
        {"tokens": SEVEN, "more": {"library": "0.1.0 with a long name"}},
        [expected(FIVE)],
        [expected(SEVEN)],
    ),
    "going on": (
        {"tokens": SEVEN, "more": {"start": 5}},
        [expected(FIVE)],
        [expected(FIVE), expected(SEVEN, 5)],
    ),
    # Under the name of the old one, and shorter than it.
    "again": (
        {"tokens": FIVE, "more": {"salt": 1, "library": ""}},
        [expected(FIVE)],
        [expected(FIVE, salt=1)],
    ),
    "first": ({"tokens": [8, 8]}, [], [expected([8, 8])]),
}
CALLS = {"create", "write", "fsync", "rename", "close", "opendir", "lock"}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with two records; tests work on copies."""
    root = tmp_path_factory.mktemp("stored") / "store"
    for tokens in (FIVE, OTHER):
        save(ObjectStore(root), tokens, library="0.1.0")
    return root


@pytest.fixture(scope="module")
def events(stored, nursery, tmp_path_factory):
    """What each save does when nothing happens to it."""
    found = {}
    for name in SAVES:
        root = tmp_path_factory.mktemp("plain") / "store"
        shutil.copytree(stored, root)
        done = nursery.trial(root, {"kind": "save", **SAVES[name][0]})
        assert done["end"] == "done"
        assert {event[0] for event in done["events"]} >= CALLS
        found[name] = done["events"]
    return found


def cut(stored, nursery, where, name, **fault):
    """One save with a fault, and all that must hold afterwards; whether it is there."""
    root = where / "store"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(stored, root)
    action, old, new = SAVES[name]
    done = nursery.trial(root, {"kind": "save", **action}, **fault)
    assert done["end"] in {"killed", "StoreError", "done"}, done
    if done["end"] == "StoreError":
        assert re.search(r" could not be (written|listed) in ", done["text"])
    # As a plain reader sees it, and then as the library does.
    now = look(PlainFolder(root), action["tokens"])
    assert now in (old, new)
    assert now == new or done["end"] != "done"
    store = ObjectStore(root)
    assert look(store, action["tokens"]) == now
    assert look(store, OTHER) == [expected(OTHER)]
    before, after = files(stored), files(root)
    assert all(
        after[path] == data for path, data in before.items() if path in after
    ) or (name == "again" and now == new)
    assert before.keys() <= after.keys()
    # What was begun is no object, is not in the way of the next save, though that one
    # is shorter, and goes away.
    left = [path for path in after if "__lock" in path]
    assert set(store.names("")) == after.keys() - set(left)
    save(store, action["tokens"], **{**action.get("more", {}), "library": ""})
    assert look(store, action["tokens"]) == new
    assert store.sweep() == len(left)
    assert not [path for path in files(root) if "__lock" in path]
    assert look(store, action["tokens"]) == new
    return now == new, done


def cut_everywhere(stored, nursery, events, where, name, **fault):
    """Cuts at every event; where the record is there and where it is not."""
    there = []
    for at in range(len(events[name])):
        new, done = cut(stored, nursery, where, name, at=at, **fault)
        there.append(new)
        if fault["fault"] == "kill":
            assert done["end"] == "killed"
            assert len(done["events"]) == at + 1
    # Up to one event there is the old one, from then on the new one.
    return there


def renames(events):
    return [n for n, event in enumerate(events) if event[0] == "rename"]


def test_b52_a_save_that_is_killed_leaves_the_five_the_seven_or_nothing(
    stored, nursery, events, tmp_path
):
    there = cut_everywhere(stored, nursery, events, tmp_path, "longer", fault="kill")
    last = renames(events["longer"])[-1]
    # Killed at the rename of the manifest it is not there; a call later it is.
    assert there == [at > last for at in range(len(there))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["going on", "again", "first"])
def test_b52_and_so_does_every_other_save(stored, nursery, events, tmp_path, name):
    there = cut_everywhere(stored, nursery, events, tmp_path, name, fault="kill")
    last = renames(events[name])[-1]
    assert there == [at > last for at in range(len(there))]


ERRORS = ("ENOSPC", "EIO", "EROFS", "EACCES", "EDQUOT", "EMFILE", "EINTR")


@pytest.mark.kind("K13")
@settings(max_examples=15)
@given(
    st.sampled_from(sorted(SAVES)),
    st.integers(0, 60),
    st.sampled_from(["kill", "fail", "torn", "short"]),
    st.sampled_from(ERRORS),
    st.booleans(),
    st.integers(0, 200),
)
def test_a_save_is_whole_or_not_there(
    stored, nursery, tmp_path_factory, name, at, fault, error, lasting, part
):
    """A single call meets the fault, or all from then on, as on a disk that is full."""
    if fault in {"torn", "short"}:
        # Only writes can be done by halves: the first of them from here on is.
        to = 1000
    else:
        to = 1000 if lasting and fault == "fail" else at + 1
    cut(
        stored,
        nursery,
        tmp_path_factory.mktemp("cut"),
        name,
        fault=fault,
        at=at,
        to=to,
        error=getattr(errno, error),
        part=max(1, part) if fault == "short" else part,
    )


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EACCES"])
def test_every_call_of_a_save_may_fail(stored, nursery, events, tmp_path, error):
    """It is reported with its cause, or makes no difference."""
    for at, event in enumerate(events["longer"]):
        _, done = cut(
            stored,
            nursery,
            tmp_path,
            "longer",
            fault="fail",
            at=at,
            error=getattr(errno, error),
        )
        if event[0] in {"create", "write", "fsync", "rename", "lock"}:
            assert done["end"] == "StoreError", event
        if done["end"] == "StoreError":
            code = getattr(errno, error)
            assert re.search(rf"errno {code}\b|code='{code}'", done["text"], re.I), done


@pytest.mark.slow
def test_a_write_is_torn_after_any_of_its_bytes(stored, nursery, events, tmp_path):
    for at, event in enumerate(events["longer"]):
        if event[0] == "write":
            for part in range(0, event[3] + 1, 37):
                new, _ = cut(
                    stored, nursery, tmp_path, "longer", fault="torn", at=at, part=part
                )
                assert not new


@pytest.mark.slow
def test_no_call_of_a_save_is_missed(stored, shim_path, tmp_path):
    """The operating system saw the same calls on the folder, in the same order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace shows what the operating system saw")
    root = tmp_path / "store"
    shutil.copytree(stored, root)
    code = (
        "import json, nursery;"
        f"r = nursery.trial({str(root)!r}, {{'kind': 'save', 'tokens': {SEVEN}}},"
        " dry=False); print(json.dumps(r))"
    )
    done = subprocess.run(
        [
            *(strace, "-f", "-y", "-o", tmp_path / "calls", "-e", "trace=%file,%desc"),
            *("-E", f"LD_PRELOAD={shim_path}", sys.executable),
            *("-W", "ignore", "-c", code),
        ],
        env={**environment(shim_path), "LD_PRELOAD": ""},
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not look: {done.stderr[:200]}")
    counted = json.loads(done.stdout)
    assert counted["end"] == "done"
    kinds, looks = [], set()
    for line in (tmp_path / "calls").read_text().splitlines():
        # A call that is shown on two lines counts where it begins.
        call = re.match(r"\d+ +(\w+)\(", line)
        if not call or (str(root) not in line and f"<{tmp_path}>" not in line):
            continue
        call = call[1]
        kind = KINDS.get(call)
        if kind is None:
            looks.add(call)
        elif call == "openat" and "O_CREAT" in line:
            kinds.append("create")
        elif call == "openat" and "O_DIRECTORY" not in line:
            kinds.append("open")
        else:
            kinds.append(kind)
    assert kinds == [event[0] for event in counted["events"]]
    looking = {"newfstatat", "fstat", "stat", "statx", "execve", "readlink"}
    assert looks <= {*looking, "getdents64", "getdents"}


KINDS = {
    "openat": "opendir",
    "mkdir": "mkdir",
    "write": "write",
    "writev": "write",
    "pwrite64": "write",
    "fsync": "fsync",
    "fdatasync": "fsync",
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "unlink": "unlink",
    "unlinkat": "unlink",
    "link": "link",
    "linkat": "link",
    "close": "close",
    "flock": "lock",
    "ftruncate": "truncate",
}
