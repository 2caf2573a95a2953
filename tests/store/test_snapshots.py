"""Whole caches in a store: what is restored is what was saved, or it is refused.

Orbax gives back flipped bits and other dtypes without a word; every leaf is proved by
digests of ours before anything is built of it.
"""

import dataclasses
import functools
import gc
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from blake3 import blake3

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.store import orbax_store, trust
from hybridcache_jax.store.inventory import take_inventory
from hybridcache_jax.store.orbax_store import OrbaxPrefixStore
from hybridcache_jax.store.snapshot_arrays import (
    cache_leaves,
    claim_leaves,
    flat,
    nested,
)
from hybridcache_jax.store.snapshot_manifest import SnapshotError
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.audit import violations
from hybridcache_jax.testing.toy_models import fine

NAMESPACE = hc.ReusePolicy("namespace")
P = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
# Shares six tokens with the first, and has content at two places of its own.
Q, CONTENTS = [3, 1, 4, 1, 5, 9, 7, 7, 8, 2], [(6, 8, b"a picture")]
WORKER = pathlib.Path(__file__).with_name("snapshot_worker.py")


class Serving:
    """A toy's cache and its claims; ``store`` runs and publishes one prompt."""

    def __init__(self, policy=NAMESPACE, cache=None):
        self.model = fine()
        self.cache = self.model.empty if cache is None else cache
        self.prefixes = hc.PrefixCache(self.model.plan, policy=policy)

    def match(self, tokens, **asked):
        return self.prefixes.match(self.cache, tokens, self.model.identity, **asked)

    def admit(self, tokens, **asked):
        plan = self.match(tokens, **asked)
        self.cache, lease = self.prefixes.acquire(self.cache, plan)
        return lease

    def run(self, lease, tokens):
        for start in range(0, len(tokens), 8):
            inputs = lease.inputs(tokens[start : start + 8])
            self.cache, status, _ = self.model.step(self.cache, inputs)
            assert not np.asarray(status).any()

    def store(self, tokens, **asked):
        lease = self.admit(tokens, **asked)
        self.run(lease, tokens[lease.plan.start :])
        self.cache = self.prefixes.release(self.cache, lease)

    def adopt(self, cache, claims):
        self.cache = self.prefixes.adopt(cache, claims)
        assert violations(self.cache) == []
        return self


def restored(store, step=None, policy=NAMESPACE):
    cache, claims = store.restore_snapshot(fine().plan, step)
    return Serving(policy).adopt(cache, claims)


def arrays(cache):
    return {name: np.array(leaf) for name, leaf in cache_leaves(cache).items()}


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )


@functools.cache
def served():
    """A cache with two stored prompts and a row that runs a third."""
    some = Serving()
    some.store(P)
    some.store(Q, contents=CONTENTS)
    some.run(some.admit([8, 8, 8]), [8, 8, 8])
    return some


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with one snapshot of ``served``; tests work on copies."""
    root = tmp_path_factory.mktemp("saved") / "store"
    some = served()
    OrbaxPrefixStore(root).save_snapshot(7, some.cache, some.prefixes)
    return root


@pytest.fixture
def copy(saved, tmp_path):
    return OrbaxPrefixStore(shutil.copytree(saved, tmp_path / "copy"))


def test_what_was_resumable_is_resumable_at_once_with_equal_state(saved):
    before = served()
    after = restored(OrbaxPrefixStore(saved))
    assert not np.asarray(after.cache.rows.live).any()
    for tokens, asked in ((P, {}), (Q, {"contents": CONTENTS})):
        old, plan = (each.match([*tokens, 0], **asked) for each in (before, after))
        assert plan.verdict == old.verdict == Verdict.RESUMABLE
        assert plan.length == old.length == len(tokens)
        lease = after.admit([*tokens, 0], **asked)
        state = toy.held(after.model, after.cache, lease.row)
        assert toy.differences(state, toy.cold(after.model, tokens)) == []
        after.run(lease, [0, 5])
        state = toy.held(after.model, after.cache, lease.row)
        want = toy.cold(after.model, [*tokens, 0, 5])
        assert toy.differences(state, want) == []
        after.cache = after.prefixes.release(after.cache, lease)
        assert violations(after.cache) == []
    # Without its content it is another prompt.
    assert after.match([*Q, 0]).length == 6
    # Only what the stored prompts hold is still in use.
    for table in after.cache.tables:
        used = np.asarray(table.stage) != 0
        assert np.array_equal(used, np.asarray(table.kept))
    assert after.match([8, 8, 8, 8]).verdict == Verdict.NEEDS_FULL_RECOMPUTE


def test_what_is_restored_is_the_value_that_was_saved(saved):
    cache, _ = OrbaxPrefixStore(saved).restore_snapshot(fine().plan)
    assert same(arrays(cache), arrays(served().cache))
    # Steps that are compiled for caches of ``init`` take it as it is.
    empty = fine().empty
    assert jax.tree.map(lambda x: x.aval, cache) == jax.tree.map(
        lambda x: x.aval, empty
    )


def test_a_cache_that_is_donated_while_it_is_written_is_saved_whole(tmp_path):
    some = Serving()
    some.store(P)
    some.cache = jax.tree.map(lambda leaf: leaf.copy(), some.cache)
    want = arrays(some.cache)
    store = OrbaxPrefixStore(tmp_path)
    step = jax.jit(
        lambda c: jax.tree.map(lambda x: x + 1 if x.dtype != bool else ~x, c),
        donate_argnums=0,
    )

    def donating(what, done, total):
        if what == "writing" and done == 0:
            step(some.cache)

    store.save_snapshot(1, some.cache, some.prefixes, on_progress=donating)
    assert some.cache.clock.is_deleted()
    with pytest.raises(hc.StaleCacheError, match="donated"):
        store.save_snapshot(2, some.cache, some.prefixes)
    cache, _ = store.restore_snapshot(fine().plan)
    assert same(arrays(cache), want)
    # What is restored can be donated as well.
    step(cache)
    assert cache.clock.is_deleted()


def test_an_empty_cache(tmp_path):
    some, store = Serving(), OrbaxPrefixStore(tmp_path)
    store.save_snapshot(0, some.cache, some.prefixes)
    assert store.snapshots()[0].tokens == 0
    after = restored(store)
    after.store(P)
    assert after.match([*P, 0]).length == len(P)


def test_tools_of_orbax_open_it(saved):
    folder = saved / "snapshots"
    want = arrays(served().cache)
    with ocp.CheckpointManager(folder) as manager:
        assert manager.latest_step() == 7
        args = ocp.args.Composite(
            cache=ocp.args.StandardRestore(), metadata=ocp.args.JsonRestore()
        )
        found = manager.restore(7, args=args)
    assert same(flat(found.cache), want)
    assert found.metadata["format"] == 1
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(folder / "7" / "cache")
        assert same(flat(tree), want)
        assert flat(checkpointer.metadata(folder / "7" / "cache").item_metadata.tree)


def test_inspection_says_what_there_is(copy):
    (found,) = copy.snapshots()
    assert (found.step, found.problem, found.tokens) == (7, "", 6 + 4 + 4)
    assert found.plan["blocks"] == list(fine().plan.blocks)
    assert found.plan["spec"] == fine().plan.spec.fingerprint
    assert found.library == hc.__version__
    assert found.nbytes > sum(leaf.nbytes for leaf in arrays(served().cache).values())
    flip(pathlib.Path(copy.snapshots_path) / "7/metadata/metadata", 0.5)
    assert copy.snapshots()[0].problem
    with pytest.raises(SnapshotError, match="Snapshot 7"):
        copy.restore_snapshot(fine().plan)


def rewritten(store, change):
    """Changes the JSON of the metadata, and nothing else."""
    path = pathlib.Path(store.snapshots_path) / "7/metadata/metadata"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_metadata_that_were_changed_are_refused(copy):
    rewritten(copy, lambda data: data["body"]["versions"][0].append(0))
    with pytest.raises(SnapshotError, match="not those that were written"):
        copy.restore_snapshot(fine().plan)
    rewritten(copy, lambda data: data.pop("blake3"))
    with pytest.raises(SnapshotError, match="none of a snapshot of this library"):
        copy.restore_snapshot(fine().plan)


def test_another_format_is_refused_by_its_number(copy):
    def later(data):
        data["format"] = 2
        text = json.dumps([2, data["body"]], sort_keys=True)
        data["blake3"] = blake3(text.encode()).hexdigest()

    rewritten(copy, later)
    with pytest.raises(SnapshotError, match="has format 2; this library reads 1"):
        copy.restore_snapshot(fine().plan)
    assert "format 2" in copy.snapshots()[0].problem


# Damage.


def flip(path, share):
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1
    path.write_bytes(data)


def rewrite(store, change, item="cache"):
    """Lets Orbax itself write another tree in the place of an item."""
    folder = pathlib.Path(store.snapshots_path) / "7" / item
    with ocp.StandardCheckpointer() as checkpointer:
        leaves = flat(checkpointer.restore(folder))
        change(leaves)
        checkpointer.save(folder, nested(leaves), force=True)
        checkpointer.wait_until_finished()


def flipped(name):
    def change(leaves):
        array = np.array(leaves[name], ndmin=1)
        array.view(np.uint8).reshape(-1)[array.nbytes // 2] ^= 1
        leaves[name] = array.reshape(leaves[name].shape)

    return change


def retyped(name):
    def change(leaves):
        leaves[name] = leaves[name].astype(np.float32)

    return change


def reshaped(name):
    def change(leaves):
        leaves[name] = leaves[name].reshape(-1)

    return change


def exchanged(one, other):
    def change(leaves):
        leaves[one], leaves[other] = leaves[other], leaves[one]

    return change


KEYS = "pools/swa_window.0/k"


@pytest.mark.parametrize(
    ("item", "change", "named"),
    [
        ("cache", flipped(KEYS), "swa_window.0/k: its bytes"),
        ("cache", flipped("clock"), "cache/clock: its bytes"),
        ("cache", retyped("rows/length"), "rows/length: its dtype is float32"),
        ("cache", reshaped("rows/tokens"), r"rows/tokens: its shape is \[72\]"),
        ("cache", exchanged("stamp", "clock"), "cache/(stamp|clock): its bytes"),
        ("cache", lambda leaves: leaves.pop("rows/known"), "rows/known is missing"),
        ("cache", lambda leaves: leaves.update(x=np.ones(2)), "cache/x is not exp"),
        ("prefixes", flipped("tokens"), "prefixes/tokens: its bytes"),
    ],
)
def test_a_leaf_that_differs_is_named(copy, item, change, named):
    rewrite(copy, change, item)
    with pytest.raises(SnapshotError, match=named):
        copy.restore_snapshot(fine().plan)


@pytest.mark.slow
def test_every_leaf_that_was_flipped_is_named(saved, tmp_path):
    said = json.loads((saved / "snapshots/7/metadata/metadata").read_text())
    for item, records in said["body"]["leaves"].items():
        for name, each in records.items():
            if 0 in each["shape"]:
                continue
            store = OrbaxPrefixStore(shutil.copytree(saved, tmp_path / "leaf"))
            rewrite(store, flipped(name), item)
            with pytest.raises(SnapshotError, match=f"{item}/{name}: its bytes"):
                store.restore_snapshot(fine().plan)
            shutil.rmtree(tmp_path / "leaf")


def damaged(store, path, damage):
    """Whether the snapshot is refused; if not, it must be what was saved."""
    whole = path.read_bytes()
    damage(path)
    try:
        cache, claims = store.restore_snapshot(fine().plan)
    except SnapshotError:
        return True
    finally:
        path.write_bytes(whole)
    assert same(arrays(cache), arrays(served().cache))
    found = Serving().adopt(cache, claims).match([*P, 0])
    assert found.length == len(P)
    return False


def files_of(store):
    root = pathlib.Path(store.snapshots_path)
    return sorted(path for path in root.rglob("*") if path.is_file())


# Orbax stops at the first array that cannot be read, and closes the event loop that the
# reads of the others still tell their end to.
untold_ends = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def reads_end():
    """Lets the last of them end in the test that began them."""
    yield
    time.sleep(0.3)
    gc.collect()


@untold_ends
@pytest.mark.usefixtures("reads_end")
def test_a_flipped_bit_in_what_holds_the_arrays_is_found(copy):
    found = [p for p in files_of(copy) if p.parent.name == "d" and "cache" in str(p)]
    largest = max(found, key=lambda path: path.stat().st_size)
    # Whatever is used of the file: a part of it may be an older index of Orbax's.
    refused = [
        damaged(copy, largest, lambda path, share=share: flip(path, share))
        for share in (0.1, 0.3, 0.5, 0.7)
    ]
    assert any(refused)


@untold_ends
@pytest.mark.slow
@pytest.mark.usefixtures("reads_end")
def test_every_file_flipped_cut_short_or_gone(copy):
    refused = {}
    for path in files_of(copy):
        for name, damage in {
            **{f"{n}": functools.partial(flip, share=n / 3) for n in range(3)},
            "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "gone": lambda path: path.unlink(),
        }.items():
            refused[path.parent.name, path.name, name] = damaged(copy, path, damage)
    assert sum(refused.values()) > len(refused) / 4


# Claims that are what somebody wrote, and that no index has.


def of_leaf(name, change):
    def changed(leaves):
        leaves[name] = change(leaves[name])

    return changed


def put(place, value):
    def change(leaf):
        leaf = leaf.copy()
        leaf[place] = value
        return leaf

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda leaves: leaves.update(tokens=np.zeros(10**6, np.int32)), "1000000 tok"),
        (of_leaf("key", lambda leaf: np.resize(leaf, 400)), "on 400 edges"),
        (of_leaf("epochs/full_kv.2", lambda leaf: leaf[:-1]), "epochs/.*its shape is"),
        (of_leaf("parent", put(1, 1)), "parent: it is no earlier edge"),
        (of_leaf("parent", put(0, -2)), "parent: it is no earlier edge"),
        (of_leaf("key", put(0, 1)), "key: there is no such key"),
        (of_leaf("length", put(0, -2)), "length: it is no whole grid units"),
        (of_leaf("length", put(0, 2)), "length: they are not those of the tokens"),
        (of_leaf("content_keys", put(0, -9)), "content_keys: one stands for nothing"),
        (of_leaf("blocks/full_kv.2", put(0, 10**6)), "there is no such block"),
    ],
)
def test_claims_that_no_index_has_are_refused(tmp_path, monkeypatch, change, why):
    some, store = served(), OrbaxPrefixStore(tmp_path)

    def hostile(plan, claims):
        leaves = claim_leaves(plan, claims)
        change(leaves)
        return leaves

    monkeypatch.setattr(orbax_store, "claim_leaves", hostile)
    store.save_snapshot(1, some.cache, some.prefixes)
    with pytest.raises(SnapshotError, match=why):
        store.restore_snapshot(fine().plan)


# Other plans, other policies.


def test_a_plan_of_other_capacity_is_refused_by_the_fields_that_differ(saved):
    plan = fine().plan
    other = dataclasses.replace(
        plan, blocks=tuple(n + 1 for n in plan.blocks), staging_blocks=9
    )
    with pytest.raises(SnapshotError, match=r"blocks is .*; staging_blocks is 9, "):
        OrbaxPrefixStore(saved).restore_snapshot(other)
    kept = dataclasses.replace(plan, backend="tpu")
    with pytest.raises(SnapshotError, match=r"backend is 'tpu'.* has 'cpu'"):
        OrbaxPrefixStore(saved).restore_snapshot(kept)


@pytest.mark.parametrize("scope", ["off", "request", "session", "global"])
def test_claims_count_in_the_scope_they_were_made_in_alone(saved, scope):
    after = restored(OrbaxPrefixStore(saved), policy=hc.ReusePolicy(scope))
    assert after.prefixes.stored_tokens == 0
    free = [int(table.num_free) for table in after.cache.tables]
    assert free == list(after.model.plan.blocks)


def test_claims_of_a_producer_that_was_given_up_since_are_left_out(copy):
    trust.give_up(copy, fine().identity)
    assert restored(copy).prefixes.stored_tokens == 0


def test_a_change_of_scope_in_the_old_process_does_not_hide_claims(tmp_path):
    some, store = Serving(), OrbaxPrefixStore(tmp_path)
    some.store(P)
    some.prefixes.set_scope(some.model.identity, "session")
    some.store(Q, session="s")
    store.save_snapshot(1, some.cache, some.prefixes)
    after = restored(store, policy=hc.ReusePolicy("session"))
    assert after.match([*Q, 0], session="s").length == len(Q)
    assert after.match([*Q, 0], session="t").length == 0
    assert after.match([*P, 0], session="s").length == 6


def test_another_producer_gets_a_version_of_its_own(saved):
    after = restored(OrbaxPrefixStore(saved))
    other = dataclasses.replace(after.model.identity, weights="other")
    plan = after.prefixes.match(after.cache, [*P, 0], other)
    assert plan.length == 0
    after.cache, lease = after.prefixes.acquire(after.cache, plan)
    taken = set(served().prefixes._versions.known().values())
    assert int(after.cache.rows.version[lease.row]) not in taken


def test_adopting_needs_a_prefix_cache_that_follows_none(saved):
    cache, claims = OrbaxPrefixStore(saved).restore_snapshot(fine().plan)
    with pytest.raises(hc.LeaseError, match="make a new PrefixCache"):
        served().prefixes.adopt(cache, claims)
    after = Serving().adopt(cache, claims)
    # What was granted before the restart is of use nowhere.
    lease = served().match([*P, 0])
    with pytest.raises(hc.LeaseError, match="another PrefixCache"):
        after.prefixes.acquire(after.cache, lease)


# Steps.


def test_steps_go_up_and_the_latest_stay(tmp_path):
    some, store = Serving(), OrbaxPrefixStore(tmp_path, max_to_keep=2)
    with pytest.raises(SnapshotError, match=r"no snapshot .* it has the steps \[\]"):
        store.restore_snapshot(some.model.plan)
    for step in (1, 3, 4):
        store.save_snapshot(step, some.cache, some.prefixes)
        some.store(P[: 4 + step])
    for step in (2, 4):
        with pytest.raises(SnapshotError, match="has step 4 already"):
            store.save_snapshot(step, some.cache, some.prefixes)
    assert [each.step for each in store.snapshots()] == [3, 4]
    assert store.latest_step() == 4
    assert restored(store, 3).match([*P, 0]).length == 5
    assert restored(store).match([*P, 0]).length == 7
    store.delete_snapshot(4)
    assert store.latest_step() == 3
    with pytest.raises(SnapshotError, match="no snapshot 4"):
        store.delete_snapshot(4)


def test_a_save_that_fails_leaves_the_older_step(copy, monkeypatch):
    some, rename = Serving(), os.rename
    some.store(P[:3])

    def failing(source, target, *rest, **more):
        if pathlib.Path(target).name == "8":
            raise OSError("no space left")
        return rename(source, target, *rest, **more)

    copy.max_to_keep = 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(SnapshotError, match="no space left"):
            copy.save_snapshot(8, some.cache, some.prefixes)
    assert [each.step for each in copy.snapshots()] == [7]
    assert restored(copy).match([*P, 0]).length == len(P)
    copy.save_snapshot(8, some.cache, some.prefixes)
    assert [each.step for each in copy.snapshots()] == [8]


def test_who_saves_a_step_that_is_being_written_waits_and_is_refused(tmp_path):
    """As two processes do: the lock of a folder keeps threads apart as well."""
    some, other, ends = Serving(), Serving(), []
    some.store(P)
    other.store([7, 7, 7])

    def save():
        try:
            OrbaxPrefixStore(tmp_path).save_snapshot(5, other.cache, other.prefixes)
            ends.append("saved")
        except SnapshotError as error:
            ends.append(str(error))

    rival = threading.Thread(target=save)

    def together(what, done, total):
        if what == "writing" and done == 0:
            rival.start()
            rival.join(timeout=1.5)

    OrbaxPrefixStore(tmp_path).save_snapshot(
        5, some.cache, some.prefixes, on_progress=together
    )
    rival.join()
    assert len(ends) == 1
    assert "has step 5 already" in ends[0]
    assert restored(OrbaxPrefixStore(tmp_path)).match([*P, 0]).length == len(P)


def test_a_step_that_another_machine_wrote_over_is_not_called_saved(copy, monkeypatch):
    some, read = Serving(), ocp.CheckpointManager.restore
    some.store(P[:3])

    def of_another(manager, step, **asked):
        return read(manager, 7 if step == 8 else step, **asked)

    monkeypatch.setattr(ocp.CheckpointManager, "restore", of_another)
    with pytest.raises(SnapshotError, match="another machine wrote this step"):
        copy.save_snapshot(8, some.cache, some.prefixes)


def test_progress_counts_bytes(copy):
    told = []
    some = served()
    copy.save_snapshot(
        9, some.cache, some.prefixes, on_progress=lambda *said: told.append(said)
    )
    assert [what for what, _, _ in told[-2:]] == ["writing", "writing"]
    copying = [said for said in told if said[0] == "copying"]
    assert copying[-1][1] == copying[-1][2] > copying[0][1] > 0
    told.clear()
    copy.restore_snapshot(fine().plan, on_progress=lambda *said: told.append(said))
    assert {said[0] for said in told} == {"verifying"}
    assert told[-1][1] == told[-1][2]


def test_house_keeping_leaves_snapshots_alone(copy):
    left = pathlib.Path(copy.snapshots_path) / "x.__lock"
    left.write_bytes(b"another process is writing")
    copy.put("packs/x.y", b"not ours")
    found = take_inventory(copy)
    assert found.foreign == ("packs/x.y",)
    assert found.unread == ()
    assert copy.sweep() == 0
    assert left.exists()


def test_what_killed_saves_left_is_swept_while_nobody_writes(copy):
    folder = pathlib.Path(copy.snapshots_path)
    left = folder / "8.orbax-checkpoint-tmp" / "cache"
    left.mkdir(parents=True)
    (left / "d").write_bytes(b"half")
    some, swept = served(), []
    copy.save_snapshot(
        9,
        some.cache,
        some.prefixes,
        on_progress=lambda what, done, total: (
            swept.append(OrbaxPrefixStore(copy.path).sweep())
            if what == "writing"
            else None
        ),
    )
    # Told before the first byte is written, and when the last one is.
    assert swept[0] == 0
    left.mkdir(parents=True, exist_ok=True)
    (left / "d").write_bytes(b"half")
    assert OrbaxPrefixStore(copy.path).sweep() == 1
    assert [path.name for path in sorted(folder.iterdir())] == ["7", "9"]


def test_a_bucket_that_orbax_cannot_reach_says_so(tmp_path):
    some = Serving()
    store = OrbaxPrefixStore(tmp_path, snapshots="gs://bucket/prefix")
    with pytest.raises(SnapshotError, match="gcsfs"):
        store.save_snapshot(1, some.cache, some.prefixes)
    with pytest.raises(ValueError, match="max_to_keep"):
        OrbaxPrefixStore(tmp_path, max_to_keep=0)


# Other processes.


def worker(devices, *arguments, **more):
    root = pathlib.Path(hc.__file__).parents[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        **more,
    )


def answer(devices, *arguments):
    with worker(devices, *arguments) as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.slow
def test_heads_saved_on_four_devices_are_restored_on_two_and_on_one(tmp_path):
    heads = answer(4, "save", tmp_path)
    assert len(heads["devices"]) == 4
    for devices in (2, 1):
        found = answer(devices, "restore", tmp_path)
        assert len(found["devices"]) == devices
        # In order on each device, and all of them together.
        parts = [head for part in found["devices"] for head in part]
        assert parts == list(range(8))
        assert found["values"] == heads["values"]
        assert found["verdict"] == "RESUMABLE"
    assert OrbaxPrefixStore(tmp_path).snapshots()[0].problem == ""


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_whole_steps(tmp_path):
    for wait in (0.02, 0.05, 0.09):
        with worker(1, "save-on", tmp_path) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
        found = OrbaxPrefixStore(tmp_path).snapshots()
        assert found
        assert [each.problem for each in found] == [""] * len(found)
    OrbaxPrefixStore(tmp_path).sweep()
    left = {path.name for path in (tmp_path / "snapshots").iterdir()}
    assert left == {str(each.step) for each in found}
    after = answer(1, "restore", tmp_path)
    assert after["verdict"] == "RESUMABLE"


@pytest.mark.slow
def test_of_two_processes_that_save_one_step_one_is_told_saved(tmp_path):
    names = ("race-1", "race-2")
    both = [worker(1, name, tmp_path, stdin=subprocess.PIPE) for name in names]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=120)[0] for process in both]
    assert sorted(json.loads(end)["saved"] for end in ends) == [False, True]
    won = next(n for n, end in enumerate(ends) if json.loads(end)["saved"])
    after = answer(1, "restore", tmp_path)
    assert after["values"] == json.loads(ends[won])["values"]
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["5"]
