"""Two writers of one store, in every order: readers see whole records at every moment.

Each writer is a process that stops before every call on the folder; the test says who
goes on.  After every call a plain reader looks at what is there.
"""

import itertools
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import files
from small_records import expected, look, save

from hybridcache_jax.store.objects import ObjectStore

FIVE, SEVEN, OTHER = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [1, 9, 9]


def writer(tokens, **more):
    return {"kind": "save", "tokens": tokens, "more": more}


# Two saves, and what a reader along SEVEN may see of them: nothing, one or the other.
PAIRS = {
    "the same": ((writer(SEVEN), writer(SEVEN)), ([expected(SEVEN)],)),
    "of equal worth": (
        (writer(SEVEN), writer(SEVEN, salt=1, library="0.1.0", age=9)),
        ([expected(SEVEN)], [expected(SEVEN, salt=1)]),
    ),
    "shorter and longer": (
        (writer(FIVE), writer(SEVEN)),
        ([expected(FIVE)], [expected(SEVEN)]),
    ),
    "one on the other": (
        (writer(FIVE), writer(SEVEN, start=5)),
        ([expected(FIVE)], [expected(FIVE), expected(SEVEN, 5)]),
    ),
}


def run(nursery, root, pair, schedule, stops=()):
    """Both saves, and what must hold whatever the schedule; who ended first."""
    shutil.rmtree(root, ignore_errors=True)
    store = ObjectStore(root)
    save(store, OTHER)
    actions, allowed = PAIRS[pair]
    done = nursery.together(root, actions, schedule, SEVEN, stops)
    assert [end["end"] for end in done["ends"]] == ["done", "done"]
    # What is there is whole, and what was there stays or is replaced: never gone.
    assert done["seen"][0] == [expected(OTHER)]
    assert all(seen in allowed for seen in done["seen"][1:]), done["seen"]
    assert look(store, SEVEN) == done["seen"][-1]
    if pair not in {"the same", "of equal worth"}:
        assert done["seen"][-1] == allowed[1]
    assert look(store, OTHER) == [expected(OTHER)]
    assert not [path for path in files(root) if "__lock" in path]
    assert store.sweep() == 0
    return done["finished"]


def orders(first, second):
    """Every order of so many turns of one and of the other."""
    for chosen in itertools.combinations(range(first + second), first):
        yield [0 if n in chosen else 1 for n in range(first + second)]


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=() if pair == "of equal worth" else pytest.mark.slow)
        for pair in PAIRS
    ],
)
@pytest.mark.on_disk("B53")
def test_b53_whole_objects_in_every_order(nursery, tmp_path, pair):
    """Objects are written one after the other: a pack and a manifest of each."""
    ends = set()
    for schedule in orders(2, 2):
        # A turn ends before the next object is begun.
        stops = ["create"]
        finished = run(nursery, tmp_path / "s", pair, [0, 1, *schedule], stops)
        ends.add(tuple(finished))
    assert ends == {(0, 1), (1, 0)}


@pytest.mark.kind("K13")
@settings(max_examples=6)
@given(
    st.sampled_from(sorted(PAIRS)),
    st.lists(st.integers(0, 1), min_size=20, max_size=90),
)
def test_two_writers_in_any_order(nursery, tmp_path_factory, pair, schedule):
    run(nursery, tmp_path_factory.mktemp("two") / "s", pair, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["the same", "of equal worth"])
def test_b53_open_write_and_rename_in_every_order(nursery, tmp_path, pair):
    """Of the manifest, which both write under one name."""
    stops = ["create", "write", "rename"]
    # Up to where the manifest is begun: the pack is three turns, and one before it.
    begin = [0] * 4 + [1] * 4
    for schedule in orders(3, 3):
        run(nursery, tmp_path / "s", pair, [*begin, *schedule], stops)


@pytest.mark.slow
def test_b53_a_writer_stops_before_any_call_while_the_other_one_saves(
    nursery, tmp_path
):
    """So a save on a slow disk blocks nobody, and nobody sees a part of it."""
    calls = 0
    for at in itertools.count():
        schedule = [0] * at + [1] * 200
        finished = run(nursery, tmp_path / "s", "of equal worth", schedule)
        if finished[0] == 0:
            break
        calls = at
    assert calls > 30


def test_a_slow_save_blocks_nobody(nursery, tmp_path):
    """As above, before those calls that a disk makes slow."""
    for turns in range(1, 7, 2):
        finished = run(
            nursery,
            tmp_path / "s",
            "the same",
            [0] * turns + [1] * 50,
            stops=["write", "fsync", "rename"],
        )
        assert finished == [1, 0]


def test_a_writer_that_is_killed_does_not_hold_up_the_next(nursery, tmp_path):
    root = tmp_path / "s"
    save(ObjectStore(root), OTHER)
    plain = nursery.trial(tmp_path / "plain", writer(SEVEN))["events"]
    for at, event in enumerate(plain):
        if event[0] in {"lock", "write", "rename"}:
            done = nursery.trial(root, writer(SEVEN), fault="kill", at=at)
            assert done["end"] == "killed"
    done = nursery.trial(root, writer(SEVEN, salt=1))
    assert done["end"] == "done"
    assert look(ObjectStore(root), SEVEN) == [expected(SEVEN, salt=1)]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["save", "sweep"])
def test_a_sweep_between_any_two_calls_of_a_save_harms_neither(
    nursery, tmp_path, first
):
    """And the other way round.  What is left where the save writes goes next time."""
    root, now, later = tmp_path / "s", 0, 0
    for at in range(0, 60, 2):
        shutil.rmtree(root, ignore_errors=True)
        store = ObjectStore(root)
        save(store, OTHER)
        left = [path for path in root.rglob("*") if path.is_file()]
        left = [path.with_name(f"{path.name}_0.__lock") for path in left]
        for path in left:
            path.write_bytes(b"half")
        who = 0 if first == "save" else 1
        actions = [writer(SEVEN), {"kind": "sweep"}]
        schedule = [who] * at + [1 - who] * 100
        done = nursery.together(root, actions, schedule, SEVEN)
        assert [end["end"] for end in done["ends"]] == ["done", "done"]
        assert done["seen"][-1] == [expected(SEVEN)]
        swept = done["ends"][1]["value"]
        assert sum(not path.exists() for path in left) == swept
        assert store.sweep() == len(left) - swept
        assert not [path for path in files(root) if "__lock" in path]
        now, later = now + (swept == len(left)), later + (swept < len(left))
    assert now
    assert later or first == "sweep"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["save", "collector"])
def test_a_save_and_the_collector_in_any_order(nursery, tmp_path, first):
    """A pack whose manifest is not there yet is noted, and not taken."""
    root = tmp_path / "s"
    save(ObjectStore(tmp_path / "plain"), OTHER)
    plain = nursery.trial(tmp_path / "plain", writer(SEVEN))["events"]
    # It lies there whole, and is not in its place yet.
    pack, manifest = (at for at, event in enumerate(plain) if event[0] == "rename")
    assert pack < manifest
    for at in range(0, 130, 13):
        shutil.rmtree(root, ignore_errors=True)
        save(ObjectStore(root), OTHER)
        # A pack that is in nobody's record, and noted.
        killed = nursery.trial(root, writer(SEVEN), fault="kill", at=manifest)
        assert killed["end"] == "killed"
        collector = {"kind": "collect", "keep_ticks": None}
        assert nursery.trial(root, collector)["end"] == "done"
        who = 0 if first == "save" else 1
        done = nursery.together(
            root,
            [writer(SEVEN), collector],
            [who] * at + [1 - who] * 300,
            SEVEN,
        )
        assert [end["end"] for end in done["ends"]] == ["done", "done"]
        for seen in done["seen"]:
            assert seen in ([expected(OTHER)], [expected(SEVEN)])
        assert done["seen"][-1] == [expected(SEVEN)]
        # Nor does the next run take it.
        assert nursery.trial(root, collector)["end"] == "done"
        assert look(ObjectStore(root), SEVEN) == [expected(SEVEN)]
        assert look(ObjectStore(root), OTHER) == [expected(OTHER)]
