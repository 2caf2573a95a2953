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


def cut_at(stored, nursery, events, where, name, places):
    """Kills a save before these events; at which of them it is there."""
    there = []
    for at in places:
        new, done = cut(stored, nursery, where, name, fault="kill", at=at)
        assert done["end"] == "killed"
        assert len(done["events"]) == at + 1
        there += [at] * new
    # Killed at the rename of the manifest it is not there; a call later it is.
    last = [n for n, event in enumerate(events[name]) if event[0] == "rename"][-1]
    assert there == [at for at in places if at > last]
    return there


CHANGES = {"mkdir", "create", "write", "fsync", "rename"}


@pytest.mark.on_disk("B52")
def test_b52_a_save_that_is_killed_leaves_the_five_the_seven_or_nothing(
    stored, nursery, events, tmp_path
):
    """Before every call that changes something; the others are for the slow run."""
    places = [n for n, event in enumerate(events["longer"]) if event[0] in CHANGES]
    there = cut_at(stored, nursery, events, tmp_path, "longer", places)
    assert 0 < len(there) < len(places)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVES)
def test_b52_before_any_call_of_any_save(stored, nursery, events, tmp_path, name):
    places = range(len(events[name]))
    assert cut_at(stored, nursery, events, tmp_path, name, places)


ERRORS = ("ENOSPC", "EIO", "EROFS", "EACCES", "EDQUOT", "EMFILE", "EINTR")
ONCE, FROM_THEN_ON = 1, 1000
FAULTS = st.one_of(
    st.builds(lambda: {}),
    st.builds(lambda at: {"fault": "kill", "at": at}, st.integers(0, 50)),
    # Of writes only; the first one from there on.
    st.builds(
        lambda fault, at, part: {"fault": fault, "at": at, "to": 1000, "part": part},
        st.sampled_from(["torn", "short"]),
        st.integers(0, 50),
        st.integers(1, 200),
    ),
    # One call, or all of them, as on a disk that is full.
    st.builds(
        lambda error, at, more: {
            "fault": "fail",
            "error": getattr(errno, error),
            "at": at,
            "to": at + more,
        },
        st.sampled_from(ERRORS),
        st.integers(0, 50),
        st.sampled_from([ONCE, FROM_THEN_ON]),
    ),
)


def along(there):
    """What is found along FIVE and SEVEN if these are there, by the salts of both."""
    found = {
        size: [expected(tokens, salt=there[size])]
        for size, tokens in ((5, FIVE), (7, SEVEN))
        if there[size] is not None
    }
    short, long = found.get(5), found.get(7)
    return [short or long or [], long or short or []]


@pytest.mark.kind("K13")
@settings(max_examples=8)
@given(st.lists(st.tuples(st.sampled_from([5, 7]), FAULTS), min_size=1, max_size=4))
@pytest.mark.on_disk("K13")
def test_saves_one_after_the_other_are_whole_or_not_there(
    nursery, tmp_path_factory, saves
):
    """Nothing that an earlier one left comes back with a later one."""
    root = tmp_path_factory.mktemp("cut") / "store"
    save(ObjectStore(root), OTHER)
    there = {5: None, 7: None}
    for salt, (size, fault) in enumerate(saves):
        # Each manifest is shorter than the one before.
        more = {"salt": salt, "library": "x" * (40 - 8 * salt)}
        action = {"kind": "save", "tokens": SEVEN[:size], "more": more}
        done = nursery.trial(root, action, **fault)
        assert done["end"] in {"killed", "StoreError", "done"}, done
        old, new = there, {**there, size: salt}
        store = PlainFolder(root)
        now = [look(store, [*FIVE, 99]), look(store, SEVEN)]
        # With OTHER a prompt has its first token in common.
        allowed = [
            [one or [expected(OTHER)] for one in along(state)] for state in (old, new)
        ]
        assert now in allowed
        there = new if now == allowed[1] else old
        assert there == new or done["end"] != "done"
        assert look(store, OTHER) == [expected(OTHER)]
    store = ObjectStore(root)
    store.sweep()
    assert [look(store, [*FIVE, 99]), look(store, SEVEN)] == now
    assert not [path for path in files(root) if "__lock" in path]


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


def test_an_object_that_is_deleted_is_whole_or_gone(stored, nursery, tmp_path):
    (name,) = [name for name in files(stored) if "packs" in name][:1]
    for at in range(20):
        root = tmp_path / str(at)
        shutil.copytree(stored, root)
        fault = {"fault": "kill" if at % 2 else "fail", "at": at, "error": errno.EIO}
        done = nursery.trial(root, {"kind": "delete", "name": name}, **fault)
        assert files(root).get(name) in (None, files(stored)[name])
        if done["end"] == "done" and len(done["events"]) <= at:
            break
        ObjectStore(root).delete(name)
        assert files(root).keys() == files(stored).keys() - {name}
    assert name not in files(root)
    assert at >= 4


def test_a_sweep_that_is_cut_harms_nothing_and_is_done_by_the_next(
    stored, nursery, tmp_path
):
    ends = set()
    for at in range(0, 60, 3):
        root = tmp_path / str(at)
        shutil.copytree(stored, root)
        for name in files(stored):
            (root / f"{name}_0.__lock").write_bytes(b"half")
        fault = {"fault": "kill" if at % 2 else "fail", "at": at, "error": errno.EIO}
        done = nursery.trial(root, {"kind": "sweep"}, **fault)
        ends.add(done["end"])
        store = ObjectStore(root)
        assert look(store, FIVE) == [expected(FIVE)]
        store.sweep()
        assert files(root) == files(stored)
        if done["end"] == "done" and len(done["events"]) <= at:
            break
    assert ends == {"killed", "StoreError", "done"}
    assert at > 15


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
