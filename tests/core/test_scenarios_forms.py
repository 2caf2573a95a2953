"""Worked fault scenarios on small integers, through the solver and the report.

The prompt is ``P``; position ``p`` with token ``t`` leaves the entry ``10 p + t``, so
a wrong position or a foreign token shows in the number.  The last part deletes or
shortens one form at a time: the verdict must change and the report name the form.
"""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from hybridcache_jax.claims import NOTHING
from hybridcache_jax.codes import Reason, Stage, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import RULES, Form, Geometry, Remedy, required
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import (
    Chunk,
    Entries,
    IndexKeys,
    LayerSpec,
    RecurrentState,
    Window,
)
from hybridcache_jax.matching import make_cold_plan, make_plan
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.resume import Holdings, solve
from hybridcache_jax.rollout import Key
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import StateTable
from hybridcache_jax.validate import boundary

P = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
ENTRIES = [10 * position + token for position, token in enumerate(P)]
ROW = Entry.kv(1, 2)
ME = Identity("weights", "config", "layout")
VERSION = 7

FULL = LayerSpec(global_=Entries(ROW))
RATIO_4 = LayerSpec(global_=Entries(ROW, 4, raw=ROW))
OVERLAP_4 = LayerSpec(global_=Entries(ROW, 4, overlap=1, raw=ROW))
STATE = LayerSpec(recurrent=RecurrentState(ROW))


def window(size):
    return LayerSpec(local=Window(size, ROW))


def answer(spec, num_tokens, covered, points=(0, 4, 8, 12), checkpoints=None):
    """The solver's answer when the outer tier holds nothing more."""
    held = tuple(np.array(amounts) for amounts in covered)
    if checkpoints is not None:
        checkpoints = np.array(checkpoints, np.int32)
    return solve(
        spec,
        np.array(points, np.int32),
        np.int32(num_tokens),
        Holdings(held, held),
        checkpoints=checkpoints,
    )


def outcome(solution):
    return (
        Verdict(int(solution.verdict)),
        int(solution.start),
        int(solution.point),
    )


# --- a store by hand ----------------------------------------------------------------


@dataclasses.dataclass
class Store:
    """A prompt that was stored whole: claims in an index, facts in tables."""

    spec: CacheSpec
    index: PrefixIndex
    tables: tuple[StateTable, ...]

    @classmethod
    def of(cls, spec, tokens, identity=ME):
        tables, blocks, epochs = [], [], []
        for number, pool in enumerate(spec.pools):
            count = len(tokens) // pool.block_tokens
            size = count + 3
            # Blocks in no particular order, so that an id is not a position.
            ids = np.random.default_rng(number).permutation(size)[:count]
            table = StateTable(
                stage=np.full(size, int(Stage.FREE), np.int32),
                form=np.zeros(size, np.int32),
                version=np.zeros(size, np.int32),
                provenance=np.zeros(size, np.int32),
                epoch=np.full(size, 5, np.int32),
                pins=np.zeros(size, np.int32),
                kept=np.zeros(size, bool),
                first=np.full(size, -1, np.int32),
                used=np.zeros(size, np.int32),
                free=np.zeros(size, np.int32),
                num_free=np.int32(3),
            )
            table.stage[ids] = int(Stage.SEALED)
            table.form[ids] = int(pool.form)
            table.version[ids] = VERSION
            table.kept[ids] = True
            table.first[ids] = np.arange(count) * pool.block_tokens
            tables.append(table)
            blocks.append(ids.astype(np.int32))
            epochs.append(np.full(count, 5, np.int32))
        index = PrefixIndex(spec)
        index.insert(Key(identity), np.array(tokens, np.int32), blocks, epochs, never)
        return cls(spec, index, tuple(tables))

    def block(self, pool, number):
        """Id of the block that holds a pool's ``number``-th positions."""
        first = number * self.spec.pools[pool].block_tokens
        return int(np.flatnonzero(self.tables[pool].first == first)[0])

    def lose(self, pool, number):
        """Evicts one block: it is free, and its epoch has moved on."""
        table, block = self.tables[pool], self.block(pool, number)
        table.stage[block], table.form[block] = int(Stage.FREE), int(Form.NONE)
        table.first[block], table.kept[block] = -1, False
        table.epoch[block] += 1

    def match(self, tokens, identity=ME, cost=CostModel()):
        return make_plan(
            self.spec,
            HostFacts(self.spec, tuple(self.tables)),
            self.index,
            np.array(tokens, np.int32),
            Key(identity),
            VERSION,
            cost,
        )


def never(pool, ids, epochs, first):
    return np.zeros(len(ids), bool)


def report_of(plan, pool):
    return next(report for report in plan.forms if report.pool == pool)


# --- B18, B19: compression boundary, tail, halo -------------------------------------


@pytest.mark.parametrize(
    ("length", "rows"), [(3, []), (4, [69]), (5, [69]), (8, [69, 242])]
)
def test_b18_rows_and_tail_split_at_the_last_complete_block(length, rows):
    geometry = Geometry(ratio=4)
    lo, hi = required(Form.COMPRESSED_KV, geometry, length)
    assert [sum(ENTRIES[at : at + 4]) for at in range(lo, hi, 4)] == rows
    lo, hi = required(Form.UNCOMPRESSED_TAIL, geometry, length)
    tails = {3: [3, 11, 24], 4: [], 5: [45], 8: []}
    assert ENTRIES[lo:hi] == tails[length]


def test_b19_an_overlapping_compressor_needs_the_block_before():
    """Saved at 4, it holds raw {3, 11, 24, 31} besides the row; at 8, raw 4..7."""
    geometry = Geometry(ratio=4, halo=4)
    tail = Form.UNCOMPRESSED_TAIL
    lo, hi = required(tail, geometry, 4)
    assert ENTRIES[lo:hi] == [3, 11, 24, 31]
    # Row 1 pools blocks 0 and 1; without the earlier block it would be 242.
    assert sum(ENTRIES[lo:8]) == 311
    assert required(tail, geometry, 8) == (4, 8)

    spec = CacheSpec.from_layers([OVERLAP_4], block_tokens=4)
    assert [pool.form for pool in spec.pools] == [Form.COMPRESSED_KV, tail]
    # The record made at 8: both rows, raw 4..7.
    whole = answer(spec, 9, ([4, 4], [0, 4]), points=(0, 4, 8))
    assert outcome(whole) == (Verdict.RESUMABLE, 8, 8)
    # Without raw 4..7 it is a replay of 4..7, not a resume.
    without = answer(spec, 9, ([4, 4], [0, 0]), points=(0, 4, 8))
    assert outcome(without) == (Verdict.NEEDS_PARTIAL_RECOMPUTE, 4, 8)
    # And where the record at 4 is whole, that one is as cheap and needs no replay.
    earlier = answer(spec, 9, ([4, 4], [4, 0]), points=(0, 4, 8))
    assert outcome(earlier) == (Verdict.RESUMABLE, 4, 4)


def test_b19_without_overlap_nothing_is_needed_at_the_boundary():
    spec = CacheSpec.from_layers([RATIO_4], block_tokens=4)
    bare = answer(spec, 9, ([4, 4], [0, 0]), points=(0, 4, 8))
    assert outcome(bare) == (Verdict.RESUMABLE, 8, 8)


def test_b19_in_the_report():
    spec = CacheSpec.from_layers([OVERLAP_4], block_tokens=4)
    store = Store.of(spec, P[:8])
    assert store.match(P[:9]).verdict == Verdict.RESUMABLE
    store.lose(1, 0)
    assert store.match(P[:9]).length == 8  # raw 0..3 is not needed at 8
    store.lose(1, 1)
    plan = store.match(P[:9])
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.start, plan.length, plan.tokens_to_run) == (4, 8, 5)
    tail = report_of(plan, "uncompressed_tail.0")
    assert (tail.required, tail.position, tail.reason) == ((4, 8), 4, Reason.EVICTED)
    assert [report.pool for report in plan.limiting] == ["uncompressed_tail.0"]


# --- B22: the window lived in a ring that is gone ------------------------------------


@pytest.mark.parametrize(
    ("layers", "start"),
    [
        ([RATIO_4, FULL, window(3)], 6),
        # Two windows: the lower one must be right from further back.
        ([window(3), RATIO_4, FULL, window(3)], 4),
        ([window(6), window(6), FULL], None),
    ],
)
def test_b22_a_lost_window_is_never_a_resume(layers, start):
    """Rows {62, 76} are gone with their ring: a long enough replay, or a full run."""
    assert ENTRIES[6:8] == [62, 76]
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    store = Store.of(spec, P[:8])
    assert store.match(P[:9]).length == 8
    windows = [
        number for number, pool in enumerate(spec.pools) if pool.form == Form.SWA_WINDOW
    ]
    for number, block in itertools.product(windows, (0, 1)):
        store.lose(number, block)
    plan = store.match(P[:9])
    if start is None:
        assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
        assert plan.length == plan.start == 0
    else:
        assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
        assert (plan.start, plan.length) == (start, 8)
    assert {report.form for report in plan.limiting} == {Form.SWA_WINDOW}
    assert plan.history_length == 8
    assert all(report.reason == Reason.EVICTED for report in plan.limiting)


def test_b22_a_block_that_went_to_another_request_is_not_read():
    """The slot is in use again, by other tokens of the same producer."""
    spec = CacheSpec.from_layers([FULL, window(3)], block_tokens=4)
    store = Store.of(spec, P[:8])
    store.tables[1].epoch[store.block(1, 1)] += 2  # freed and handed out again
    plan = store.match(P[:9])
    assert (plan.verdict, plan.start, plan.length) == (
        Verdict.NEEDS_PARTIAL_RECOMPUTE,
        6,
        8,
    )
    assert plan.limiting[0].reason == Reason.EVICTED


# --- B23: every form has its own points ---------------------------------------------

B23 = {"full": FULL, "window 3": window(3), "window 6": window(6)}


def states_at(size, points):
    """Rows of a window that has its state at these points, one position per block."""
    rows = {at for point in points for at in range(max(0, point - size + 1), point)}
    return [int(position in rows) for position in range(12)]


@pytest.mark.parametrize("names", list(itertools.permutations(B23)))
def test_b23_the_joint_point_does_not_depend_on_the_order(names):
    spec = CacheSpec.from_layers(
        [B23[name] for name in names],
        block_tokens={Form.SWA_WINDOW: 1, Form.FULL_KV: 4},
    )
    held = {
        "full": [4, 4, 4],
        "window 3": states_at(3, [4, 8, 12]),
        "window 6": states_at(6, [4]),
    }
    solution = answer(spec, 13, [held[name] for name in names])
    assert int(solution.device_point) == 4
    assert int(solution.history_point) == 12
    usable = solution.per_pool[names.index("window 6")]
    assert usable.tolist() == [True, True, False, False]
    # The lost window can be rebuilt: 5 + 2 rows back, whichever window is the lower.
    assert outcome(solution) == (Verdict.NEEDS_PARTIAL_RECOMPUTE, 5, 12)


def test_b23_without_the_deep_stack_the_joint_point_is_resumed():
    """With a third window a replay would start at 3 or before: resume at 4."""
    layers = [FULL, window(3), window(6), window(3)]
    spec = CacheSpec.from_layers(
        layers, block_tokens={Form.SWA_WINDOW: 1, Form.FULL_KV: 4}
    )
    assert len(spec.pools) == 3
    held = [[4, 4, 4], states_at(3, [4, 8, 12]), states_at(6, [4])]
    assert outcome(answer(spec, 13, held)) == (Verdict.RESUMABLE, 4, 4)


def test_b23_without_the_large_window():
    spec = CacheSpec.from_layers(
        [FULL, window(3)], block_tokens={Form.SWA_WINDOW: 1, Form.FULL_KV: 4}
    )
    solution = answer(spec, 13, [[4, 4, 4], states_at(3, [4, 8, 12])])
    assert outcome(solution) == (Verdict.RESUMABLE, 12, 12)


# --- B27: a state is good at one position only --------------------------------------


def fold(state, tokens):
    for token in tokens:
        state = (2 * state + token) % 1000
    return state


def test_b27_a_snapshot_is_used_at_its_own_position_only():
    """Snapshots at 4 and 8; the new prompt shares 6 tokens: start from 4."""
    prompt, shared = (3, 1, 4, 1, 5, 9, 0, 0), 6
    snapshots = {4: fold(0, P[:4]), 8: fold(0, P[:8])}
    assert snapshots == {4: 37, 8: 678}
    spec = CacheSpec.from_layers([STATE], block_tokens=8)
    positions = np.arange(0, shared + 1, dtype=np.int32)
    legal = boundary(positions, spec.grid, np.array([4, 8], np.int32))
    points = positions[legal == int(Reason.OK)]
    assert points.tolist() == [0, 4]
    taken = np.isin(points, list(snapshots))
    solution = answer(spec, len(prompt), [taken], points, checkpoints=[4, 8])
    assert outcome(solution) == (Verdict.RESUMABLE, 4, 4)
    assert fold(snapshots[4], prompt[4:]) == 668 == fold(0, prompt)


@pytest.mark.parametrize(("point", "held"), [(4, True), (6, False), (8, True)])
def test_b27_no_trimming_of_a_snapshot(point, held):
    spec = CacheSpec.from_layers([STATE], block_tokens=8)
    points = np.array([point], np.int32)
    taken = np.isin(points, [4, 8])
    solution = answer(spec, 12, [taken], points, checkpoints=[4, 8])
    assert bool(solution.per_pool[0, 0]) is held
    # 6 is no resume point at all: neither on the grid nor a checkpoint's position.
    want = {
        4: (Verdict.RESUMABLE, 4, 4),
        6: (Verdict.NEEDS_FULL_RECOMPUTE, 0, 0),
        8: (Verdict.RESUMABLE, 8, 8),
    }
    assert outcome(solution) == want[point]


# --- B30: nothing counts behind a hole ----------------------------------------------


@pytest.mark.parametrize("prompt", [P, (*P, 7)])
def test_b30_blocks_behind_a_hole_are_not_joined_on(prompt):
    spec = CacheSpec.from_layers([FULL], block_tokens=4)
    assert outcome(answer(spec, len(prompt), [[4, 0, 4]])) == (Verdict.RESUMABLE, 4, 4)
    store = Store.of(spec, P)
    store.lose(0, 1)
    plan = store.match(prompt)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 4)
    assert plan.tokens_to_run == len(prompt) - 4
    assert plan.history_length == 4
    assert ENTRIES[: plan.length] == [3, 11, 24, 31]
    report = plan.limiting[0]
    assert (report.pool, report.position, report.reason) == (
        "full_kv.0",
        4,
        Reason.EVICTED,
    )


def test_b30_a_part_of_a_block_is_no_block():
    spec = CacheSpec.from_layers([FULL], block_tokens=4)
    for part in range(4):
        solution = answer(spec, 13, [[4, part, 4]])
        assert outcome(solution) == (Verdict.RESUMABLE, 4, 4)


# --- K05: delete or shorten any one form --------------------------------------------

MIXTURES = {
    "gpt-oss": [window(5), FULL, window(5), FULL],
    "llama-4": [LayerSpec(local=Chunk(16, ROW)), FULL],
    "v3.2": [LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW))],
    "v4": [
        window(5),
        LayerSpec(
            local=Window(5, ROW),
            global_=Entries(ROW, 4, 1, raw=ROW),
            index=IndexKeys(ROW, 4, 1, raw=ROW),
        ),
        LayerSpec(local=Window(5, ROW), global_=Entries(ROW, 8, raw=ROW)),
    ],
    "pooled index": [
        LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW, 4)),
        LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW, 8, 1, raw=ROW)),
        window(10),
    ],
    "shared": [window(5), FULL, LayerSpec(kv_owner=0), LayerSpec(kv_owner=1)],
}
PROMPT = tuple(np.random.default_rng(0).integers(0, 10, 25).tolist())


def needed_blocks(pool, point):
    lo, hi = required(pool.form, pool.geometry, point)
    if lo >= hi:
        return []
    return list(range(lo // pool.block_tokens, -(-hi // pool.block_tokens)))


@pytest.mark.parametrize("name", MIXTURES)
def test_k05_losing_any_block_of_any_form_changes_the_verdict(name):
    spec = CacheSpec.from_layers(MIXTURES[name], block_tokens=8)
    whole = Store.of(spec, PROMPT[:24]).match(PROMPT)
    assert (whole.verdict, whole.length, whole.reason) == (
        Verdict.RESUMABLE,
        24,
        Reason.OK,
    )
    assert not whole.limiting
    tried = 0
    for number, pool in enumerate(spec.pools):
        needed = needed_blocks(pool, 24)
        for block in range(3):
            store = Store.of(spec, PROMPT[:24])
            store.lose(number, block)
            plan = store.match(PROMPT)
            if block not in needed:
                assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 24)
                continue
            tried += 1
            assert (plan.verdict, plan.length, plan.start) != (
                Verdict.RESUMABLE,
                24,
                24,
            )
            assert [report.pool for report in plan.limiting] == [pool.name]
            report = plan.limiting[0]
            lo, _ = required(pool.form, pool.geometry, 24)
            assert report.form == pool.form
            assert report.reason == plan.reason == Reason.EVICTED
            assert report.position == max(lo, block * 8)
            assert report.remedy is RULES[pool.form].remedy
            line = f"{pool.name}: needs positions"
            assert f"missing from position {report.position}" in plan.explain()
            assert line in plan.explain()
            assert plan.to_dict()["forms"][number]["reason"] == "EVICTED"
    assert tried >= len(spec.pools)


CHANGES = {
    Reason.EVICTED: ("epoch", 6),
    Reason.VERSION_CHANGED: ("version", VERSION + 1),
    Reason.WRONG_FORM: ("form", int(Form.RECURRENT_STATE)),
    Reason.NOT_SEALED: ("stage", int(Stage.WRITING)),
    Reason.IN_OUTER_TIER: ("form", int(Form.ON_DISK_PREFIX)),
}


@pytest.mark.parametrize("reason", CHANGES)
@pytest.mark.parametrize("name", ["gpt-oss", "v4"])
def test_k05_every_reason_reaches_the_report(name, reason):
    spec = CacheSpec.from_layers(MIXTURES[name], block_tokens=8)
    column, value = CHANGES[reason]
    for number, pool in enumerate(spec.pools):
        needed = needed_blocks(pool, 24)
        if not needed:
            continue
        store = Store.of(spec, PROMPT[:24])
        getattr(store.tables[number], column)[store.block(number, needed[-1])] = value
        plan = store.match(PROMPT, cost=CostModel(1.0, 0.0))
        assert [report.pool for report in plan.limiting] == [pool.name]
        assert plan.limiting[0].reason == plan.reason == reason
        if reason == Reason.IN_OUTER_TIER:
            assert (plan.verdict, plan.length) == (Verdict.NEEDS_IO, 24)
        else:
            assert (plan.verdict, plan.length) != (Verdict.RESUMABLE, 24)


def test_k05_a_form_that_was_never_stored_is_named():
    """Claims with nothing in one pool: the tier cannot hold that form."""
    spec = CacheSpec.from_layers(MIXTURES["gpt-oss"], block_tokens=8)
    for number, pool in enumerate(spec.pools):
        store = Store.of(spec, PROMPT[:24])
        claims = store.index.lookup(Key(ME), np.array(PROMPT, np.int32))
        blocks = list(claims.blocks)
        blocks[number] = np.full(3, NOTHING)
        index = PrefixIndex(spec)
        index.insert(Key(ME), claims.tokens, blocks, claims.epochs, never)
        plan = dataclasses.replace(store, index=index).match(PROMPT)
        assert (plan.verdict, plan.length) != (Verdict.RESUMABLE, 24)
        assert [report.pool for report in plan.limiting] == [pool.name]
        assert plan.limiting[0].reason == Reason.NOT_RETAINED


def test_k05_a_lost_checkpoint_is_not_a_resume():
    """Recurrent state has no claims yet, so the solver alone is asked."""
    layers = [STATE, window(3), FULL]
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    points = np.array([0, 4, 8], np.int32)
    for taken, want in [
        ([4, 8], (Verdict.RESUMABLE, 8, 8)),
        ([4], (Verdict.NEEDS_PARTIAL_RECOMPUTE, 4, 8)),
        ([], (Verdict.NEEDS_FULL_RECOMPUTE, 0, 0)),
    ]:
        held = [np.isin(points, taken), np.array([0, 4]), np.array([4, 4])]
        solution = answer(spec, 9, held, points, checkpoints=taken)
        assert outcome(solution) == want
        assert bool(solution.per_pool[0, 2]) is (8 in taken)
        assert solution.per_pool[1:, 2].all()


@pytest.mark.parametrize("field", ["weights", "config"])
def test_b35_a_reader_without_identity_finds_nothing(field):
    """Even where claims of the same unknown producer lie in the index."""
    nobody = dataclasses.replace(ME, **{field: None})
    spec = CacheSpec.from_layers(MIXTURES["gpt-oss"], block_tokens=8)
    plan = Store.of(spec, PROMPT[:24], nobody).match(PROMPT, nobody)
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert (plan.length, plan.claimed_length, plan.shared_length) == (0, 0, 0)
    assert plan.reason == Reason.IDENTITY_UNKNOWN


def test_alternatives_are_cheapest_first():
    """A load that costs more than it saves is no better than resuming earlier."""
    spec = CacheSpec.from_layers([FULL], block_tokens=4)
    store = Store.of(spec, P)
    for block in (1, 2):
        store.tables[0].form[store.block(0, block)] = int(Form.ON_DISK_PREFIX)
    quick = store.match((*P, 7), cost=CostModel(1.0, 0.0))
    assert [way.verdict for way in quick.alternatives] == [
        Verdict.NEEDS_IO,
        Verdict.RESUMABLE,
        Verdict.NEEDS_FULL_RECOMPUTE,
    ]
    slow = store.match((*P, 7), cost=CostModel(1.0, 1.0))
    assert (slow.verdict, slow.length) == (Verdict.RESUMABLE, 4)
    assert slow.alternatives[0].verdict == Verdict.RESUMABLE


def test_a_plan_names_what_to_load_and_what_it_costs():
    """History away, windows lost: load blocks 1 and 2, replay from 12 - 2."""
    spec = CacheSpec.from_layers([FULL, window(3)], block_tokens=4)
    store = Store.of(spec, P)
    for block in (1, 2):
        store.tables[0].form[store.block(0, block)] = int(Form.ON_DISK_PREFIX)
    for block in range(3):
        store.lose(1, block)
    prompt, byte = (*P, 7), 2.0**-7
    plan = store.match(prompt, cost=CostModel(0.5, byte))
    assert (plan.verdict, plan.start, plan.length) == (Verdict.NEEDS_IO, 10, 12)
    assert [blocks.tolist() for blocks in plan.loads] == [[1, 2], []]
    assert plan.bytes_to_load == 2 * spec.pools[0].block_bytes == 128
    assert plan.seconds == 3 * 0.5 + 128 * byte
    full, swa = plan.forms
    assert (full.found, full.loadable, full.position) == (4, 8, 4)
    assert (full.reason, full.remedy) == (Reason.IN_OUTER_TIER, Remedy.LOAD)
    assert (swa.found, swa.loadable, swa.reason) == (0, 0, Reason.EVICTED)
    assert (plan.history_length, plan.limiting_history) == (12, ())
    assert plan.checkpoint_would_help
    assert plan.checkpoint_position == 12
    text = plan.explain()
    for part in (
        "resume at 12 once 2 blocks (128 B from host memory) are loaded after "
        "replaying 10..11, 3 of 13",
        "needs positions 0..11 to resume at 12; 4 of 12 held, 8 in an outer tier",
        "held up to 12; keeping the other forms there would have saved 2 tokens",
        "weighed: NEEDS_IO at 12, 128 B from host memory to load, 3 tokens to run, "
        "2.5 s",
        "weighed: NEEDS_FULL_RECOMPUTE at 0, 13 tokens to run, 6.5 s",
    ):
        assert part in text, text
    # The window's last block alone lies away.
    store = Store.of(spec, P)
    store.tables[1].form[store.block(1, 2)] = int(Form.ON_DISK_PREFIX)
    plan = store.match(prompt, cost=CostModel(0.5, 0.0))
    assert [blocks.tolist() for blocks in plan.loads] == [[], [2]]
    assert not plan.checkpoint_would_help


def test_a_plan_says_which_form_limits_the_history():
    spec = CacheSpec.from_layers([*MIXTURES["v3.2"], window(3)], block_tokens=4)
    store = Store.of(spec, P)
    (number,) = [
        n for n, pool in enumerate(spec.pools) if pool.form == Form.INDEXER_STATE
    ]
    store.lose(number, 2)
    store.tables[0].form[store.block(0, 2)] = int(Form.ON_DISK_PREFIX)
    plan = store.match((*P, 7))
    assert (plan.claimed_length, plan.history_length) == (12, 8)
    name = spec.pools[number].name
    assert [report.pool for report in plan.limiting_history] == [name]
    assert f"the history alone reaches 8, limited by {name}" in plan.explain()
    assert not plan.checkpoint_would_help


def test_a_plan_is_plain_data():
    """Through JSON and back, for a plan of each verdict and for a cold one."""
    spec = CacheSpec.from_layers([FULL, window(5), window(5)], block_tokens=4)
    lost = {
        Verdict.RESUMABLE: [],
        Verdict.NEEDS_PARTIAL_RECOMPUTE: [(1, 0), (1, 1), (1, 2)],
        Verdict.NEEDS_FULL_RECOMPUTE: [(0, 0)],
    }
    for verdict, blocks in lost.items():
        store = Store.of(spec, P)
        for pool, block in blocks:
            store.lose(pool, block)
        plan = store.match((*P, 7))
        assert plan.verdict == verdict
        data = plan.to_dict()
        assert json.loads(json.dumps(data)) == data
        assert data["loads"] == {}
    store = Store.of(spec, P)
    store.tables[0].form[store.block(0, 1)] = int(Form.ON_DISK_PREFIX)
    data = store.match((*P, 7), cost=CostModel(1.0, 2.0**-10)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["loads"] == {"full_kv.0": [1]}
    assert (data["bytes_to_load"], data["bytes_from_store"]) == (64, 0)
    assert data["alternatives"][0]["seconds"] == data["seconds"] == 1 + 64 / 1024
    cold = make_cold_plan(spec, 9, Key(ME), CostModel(0.5, 0.0))
    data = cold.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["seconds"], data["tokens_to_run"]) == (4.5, 9)


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
def test_k24_lookup_is_pure_and_repeatable(lost):
    spec = CacheSpec.from_layers(MIXTURES["gpt-oss"], block_tokens=8)
    store = Store.of(spec, PROMPT[:24])
    if lost is not None:
        store.lose(0, lost)
    before = [
        {field: np.array(value) for field, value in vars(table).items()}
        for table in store.tables
    ]
    first, second = store.match(PROMPT), store.match(PROMPT)
    assert first.to_dict() == second.to_dict()
    assert first.tokens_to_run == len(PROMPT) - first.start
    for table, old in zip(store.tables, before, strict=True):
        for field, value in old.items():
            np.testing.assert_array_equal(getattr(table, field), value)
