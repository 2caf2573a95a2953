"""The four validation layers: reason codes, their order, and exact arithmetic."""

import dataclasses
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from hybridcache_jax.codes import Reason, Stage, Status, Verdict
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.forms import Form
from hybridcache_jax.layers import Entries, IndexKeys, LayerSpec, RecurrentState, Window
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import StateTable
from hybridcache_jax.validate import (
    alignment,
    boundary,
    facts,
    intersection,
    layout,
    readable,
    satisfied,
)
from pallas_kernels.contracts import XLA, ReadContract

ROW = Entry.kv(1, 2)
HERE = [np.array, jnp.array]


def ints(values, make=np.array):
    return make(np.array(values, np.int32))


# --- codes --------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [Reason, Status])
def test_every_code_explains_itself(codes):
    texts = [code.explanation for code in codes]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_codes_are_distinct_and_fit_into_the_graph():
    for codes in (Reason, Status, Stage, Verdict, Form):
        values = [int(code) for code in codes]
        assert len(set(values)) == len(values)
        assert max(values) < 2**31
    # The layers report in their order.
    layers = [Reason.NOT_A_RESUME_POINT, Reason.LAYOUT_MISMATCH, Reason.EVICTED]
    assert sorted([*layers, Reason.MISALIGNED]) == [*layers, Reason.MISALIGNED]


# --- layer 1 ------------------------------------------------------------------------


def verdicts(points, good):
    return [
        Reason.OK if point in good else Reason.NOT_A_RESUME_POINT
        for point in points.tolist()
    ]


@pytest.mark.parametrize("make", HERE)
def test_boundary_is_the_grid_or_a_checkpoints_own_position(make):
    points = ints([-8, -1, 0, 1, 7, 8, 9, 13, 16], make)
    good = {0, 8, 16}
    assert boundary(points, 8).tolist() == verdicts(points, good)
    got = boundary(points, 8, ints([13, -1, 99], make))
    good.add(13)
    assert got.tolist() == verdicts(points, good)
    assert boundary(points, 8, ints([], make)).tolist() == boundary(points, 8).tolist()


# --- layer 2 ------------------------------------------------------------------------


def spec_of(entry, block_tokens=4):
    return CacheSpec.from_layers(
        [LayerSpec(global_=Entries(entry))], block_tokens=block_tokens
    )


def test_layout_accepts_what_the_read_supports():
    for dtype in ("float32", "float16", "bfloat16"):
        assert layout(spec_of(Entry.kv(2, 128, dtype)), XLA) == ()
    shared = Entry((Plane("k", 1, 512, "bfloat16"),))
    assert layout(spec_of(shared), XLA) == ()


@pytest.mark.parametrize(
    ("entry", "planes", "message"),
    [
        (Entry.kv(2, 128, "float8_e8m0fnu"), ["k", "v"], "float8_e8m0fnu"),
        (Entry.kv(1, 1025), ["k", "v"], "1025 exceeds 1024"),
        (Entry((Plane("k", 1, 4), Plane("x", 1, 4))), ["x"], "neither key, value nor"),
        (Entry((Plane("k", 1, 4), Plane("v", 1, 4, "float64"))), ["v"], "float64"),
    ],
)
def test_layout_says_what_is_refused_and_where(entry, planes, message):
    refusals = layout(spec_of(entry), XLA)
    assert len(refusals) == len(planes)
    for plane, text in zip(planes, refusals, strict=True):
        assert f"full_kv.0, read 'xla', plane {plane}: " in text
        assert message in text


def test_layout_refuses_entries_without_a_key():
    (refusal,) = layout(spec_of(Entry((Plane("v", 1, 4),))), XLA)
    assert "nothing is the key of planes ['v']" in refusal


def test_layout_leaves_alone_what_no_attention_reads():
    raw = Entry((Plane("value", 1, 4096), Plane("gate", 1, 4096, "float64")))
    layers = [
        LayerSpec(global_=Entries(ROW, 4, raw=raw)),
        LayerSpec(recurrent=RecurrentState(raw)),
    ]
    assert layout(CacheSpec.from_layers(layers), XLA) == ()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float4_e2m1fn"])
def test_layout_refuses_coarse_planes_without_scales(dtype):
    for spec in (
        spec_of(Entry((Plane("k", 1, 4), Plane("v", 1, 4, dtype)))),
        CacheSpec.from_layers(
            [LayerSpec(recurrent=RecurrentState(Entry((Plane("state", 1, 4, dtype),))))]
        ),
    ):
        refusals = layout(spec, XLA)
        assert any(f"of dtype {dtype} has no scales" in text for text in refusals)


def test_layout_refuses_index_keys_that_nothing_could_make():
    layers = [LayerSpec(global_=Entries(ROW), index=IndexKeys(ROW, 4))]
    (refusal,) = layout(CacheSpec.from_layers(layers), XLA)
    assert "keys of ratio 4 without raw rows" in refusal
    projected = LayerSpec(global_=Entries(ROW, 4, raw=ROW), index=IndexKeys(ROW, 4))
    assert layout(CacheSpec.from_layers([projected]), XLA) == ()


def test_layout_accepts_planes_of_scales():
    entry = Entry(
        (
            Plane("k", 1, 64, "float8_e4m3fn", scale="k_scale", run=32),
            Plane("k_scale", 1, 2, "float8_e8m0fnu"),
        )
    )
    assert layout(spec_of(entry), XLA) == ()


def test_layout_looks_at_every_pool():
    wide = Entry.kv(1, 2048)
    spec = CacheSpec.from_layers(
        [LayerSpec(global_=Entries(ROW)), LayerSpec(local=Window(4, wide))]
    )
    refusals = layout(spec, XLA)
    assert [text.split(",")[0] for text in refusals] == ["swa_window.1"] * 2
    tight = dataclasses.replace(XLA, name="tight", max_head_dim=1)
    assert len(layout(spec, tight)) == 4


# --- layer 3, block by block --------------------------------------------------------

GOOD = {
    "stage": int(Stage.SEALED),
    "form": int(Form.FULL_KV),
    "version": 3,
    "provenance": 0,
    "epoch": 9,
    "first": 8,
}


def table_of(rows, make=np.array):
    """A table with these rows; what a row leaves out is as it should be."""
    columns = {
        name: ints([{**GOOD, **row}[name] for row in rows], make) for name in GOOD
    }
    count = len(rows)
    return StateTable(
        **columns,
        pins=ints([0] * count, make),
        kept=make(np.zeros(count, bool)),
        used=ints([0] * count, make),
        free=ints([0] * count, make),
        num_free=ints(0, make),
    )


def judge(table, ids, make=np.array, writable=False):
    def ask(layer, ids, version):
        return layer(
            table,
            ints(ids, make),
            ints([GOOD["epoch"]] * len(ids), make),
            form=Form.FULL_KV,
            version=ints(version, make),
            first=ints([GOOD["first"]] * len(ids), make),
            writable=writable,
        )

    found = ask(facts, ids, GOOD["version"])
    good = (found == Reason.OK).tolist()
    # However it is asked: many claims that are alike, each for itself, one alone.
    many = [*ids] * (len(table.stage) // len(ids) + 1)
    same = ask(readable, many, GOOD["version"])[: len(ids)]
    apart = ask(readable, ids, [GOOD["version"]] * len(ids))
    assert same.tolist() == apart.tolist() == good
    for number in range(len(ids)):
        alone = ask(readable, [ids[number]], GOOD["version"])
        assert alone.tolist() == good[number : number + 1]
    return found


def test_ids_far_outside_the_pool_cost_no_more_than_those_inside():
    """A hole is claimed as the largest int32, and prompts may have many of them."""

    def seconds(ids):
        runs = []
        for _ in range(3):
            begin = time.perf_counter()
            judge(table, ids)
            runs.append(time.perf_counter() - begin)
        return min(runs)

    table = table_of([{}] * 4)
    assert seconds([2**31 - 1] * 50) < 20 * seconds([1] * 50)


# In this order: the first that is wrong is the reason.
WRONG = [
    (Reason.EVICTED, {"epoch": 10}),
    (Reason.VERSION_CHANGED, {"version": 4}),
    (Reason.APPROXIMATE, {"provenance": 1}),
    (Reason.WRONG_FORM, {"form": int(Form.SWA_WINDOW)}),
    (Reason.NOT_SEALED, {"stage": int(Stage.WRITING)}),
]


@pytest.mark.parametrize("make", HERE)
def test_the_first_thing_that_is_wrong_is_the_reason(make):
    cases = []
    for count in range(len(WRONG) + 1):
        for chosen in itertools.combinations(WRONG, count):
            row = {}
            for _, change in chosen:
                row |= change
            cases.append((row, chosen[0][0] if chosen else Reason.OK))
    table = table_of([row for row, _ in cases], make)
    got = judge(table, range(len(cases)), make)
    assert got.tolist() == [reason for _, reason in cases]


@pytest.mark.parametrize("make", HERE)
@pytest.mark.parametrize("block", [-1, -2, 2, 3, 2**31 - 1, -(2**31)])
def test_ids_outside_the_pool_are_no_claims(block, make):
    """Neither the last block by wrapping nor the nearest one by clipping."""
    table = table_of([{}, {}], make)
    assert judge(table, [block, 0], make).tolist() == [Reason.NOT_RETAINED, Reason.OK]


@pytest.mark.parametrize("make", HERE)
def test_a_block_at_another_position_is_another_block(make):
    rows = [{"first": 8}, {"first": 0}, {"first": -1}, {"first": 9}]
    assert judge(table_of(rows, make), range(4), make).tolist() == [
        Reason.OK,
        Reason.WRONG_FORM,
        Reason.WRONG_FORM,
        Reason.WRONG_FORM,
    ]


@pytest.mark.parametrize("make", HERE)
def test_only_the_writer_may_read_what_it_is_writing(make):
    rows = [{"stage": int(stage)} for stage in Stage]
    table = table_of(rows, make)
    ids = range(len(rows))
    closed = [Reason.OK if s == Stage.SEALED else Reason.NOT_SEALED for s in Stage]
    closed[Stage.QUARANTINED] = Reason.QUARANTINED
    assert judge(table, ids, make).tolist() == closed
    opened = [
        Reason.OK if s == Stage.WRITING else reason
        for s, reason in zip(Stage, closed, strict=True)
    ]
    assert judge(table, ids, make, writable=True).tolist() == opened


@pytest.mark.parametrize("make", HERE)
def test_moved_out_is_registered_but_not_in_place(make):
    """It waits for I/O, whatever form it was; all other checks still count."""
    moved = {"form": int(Form.ON_DISK_PREFIX), "stage": int(Stage.ON_DISK)}
    rows = [
        moved,
        {**moved, "stage": int(Stage.LOADING)},
        {**moved, "epoch": 10},
        {**moved, "version": 4},
        {**moved, "first": 0},
    ]
    for writable in (False, True):
        got = judge(table_of(rows, make), range(len(rows)), make, writable=writable)
        assert got.tolist() == [
            Reason.IN_OUTER_TIER,
            Reason.IN_OUTER_TIER,
            Reason.EVICTED,
            Reason.VERSION_CHANGED,
            Reason.WRONG_FORM,
        ]


@pytest.mark.parametrize("make", HERE)
def test_a_record_that_failed_verification_is_not_loadable(make):
    """Quarantined: loading it again would fail again."""
    row = {"form": int(Form.ON_DISK_PREFIX), "stage": int(Stage.QUARANTINED)}
    reason = Reason(int(judge(table_of([row], make), [0], make)[0]))
    assert reason == Reason.QUARANTINED


def test_facts_have_the_shape_of_the_ids():
    table = table_of([{}, {"epoch": 10}], jnp.array)
    ids = jnp.array([[0, 1, 5], [1, 1, 0]], jnp.int32)

    @jax.jit
    def run(ids):
        return facts(
            table,
            ids,
            jnp.full_like(ids, 9),
            form=Form.FULL_KV,
            version=jnp.int32(3),
            first=jnp.full_like(ids, 8),
        )

    assert run(ids).tolist() == [
        [Reason.OK, Reason.EVICTED, Reason.NOT_RETAINED],
        [Reason.EVICTED, Reason.EVICTED, Reason.OK],
    ]


# --- layer 3, form by form ----------------------------------------------------------


def test_satisfied_is_one_answer_in_every_namespace():
    """Every pool of a rich model, holes and parts of blocks, against the oracle."""
    layers = (
        LayerSpec(local=Window(6, ROW)),
        LayerSpec(
            global_=Entries(ROW, 4, 1, raw=ROW), index=IndexKeys(ROW, 2, 1, raw=ROW)
        ),
        LayerSpec(global_=Entries(ROW)),
    )
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    points = np.arange(-2, 30, dtype=np.int32)
    names = ["local", "global", "global_tail", "index", "index_tail", "global"]
    rng = np.random.default_rng(1)
    compiled = jax.jit(lambda points, covered: intersection(spec, points, covered))
    for _ in range(20):
        covered = tuple(
            np.where(rng.random(7) < 0.8, 4, rng.integers(0, 4, 7)).astype(np.int32)
            for _ in spec.pools
        )
        joint, each = intersection(spec, points, covered)
        for number, (pool, part) in enumerate(zip(spec.pools, names, strict=True)):
            held = {
                4 * block + offset
                for block in range(7)
                for offset in range(covered[number][block])
            }
            layer = pool.layers[0]
            want = [
                point >= 0
                and oracle.part_held(layers, {(layer, part): held}, layer, part, point)
                for point in points.tolist()
            ]
            assert each[number].tolist() == want, pool.name
        np.testing.assert_array_equal(joint, each.all(axis=0))
        for got, on_host in zip(compiled(points, covered), (joint, each), strict=True):
            np.testing.assert_array_equal(got, on_host)


@pytest.mark.parametrize("make", HERE)
def test_a_checkpoint_counts_at_its_own_point_only(make):
    pool = CacheSpec.from_layers([LayerSpec(recurrent=RecurrentState(ROW))]).pools[0]
    points = ints([-1, 0, 4, 8], make)
    taken = make(np.array([True, False, True, False]))
    assert satisfied(pool, points, taken).tolist() == [False, True, True, False]


def test_the_joint_answer_asks_every_pool():
    spec = CacheSpec.from_layers(
        [LayerSpec(global_=Entries(ROW)), LayerSpec(local=Window(3, ROW))],
        block_tokens=4,
    )
    points = ints([0, 4, 8])
    full, hole = ints([4, 4]), ints([4, 0])
    for covered, want in [
        ((full, full), [True, True, True]),
        ((hole, full), [True, True, False]),
        ((full, hole), [True, True, False]),
        ((ints([0, 4]), full), [True, False, False]),
        ((full, ints([0, 4])), [True, False, True]),
    ]:
        assert intersection(spec, points, covered)[0].tolist() == want


# --- layer 4 ------------------------------------------------------------------------


def contract(unit):
    return ReadContract("test", frozenset({"uint8"}), 2**20, unit)


def stride(nbytes, more=()):
    """A spec whose blocks are ``nbytes`` long in plane k, and so on."""
    planes = [Plane("k", 1, nbytes, "uint8")]
    planes += [Plane(f"p{n}", 1, size, "uint8") for n, size in enumerate(more)]
    return spec_of(Entry(tuple(planes)), block_tokens=1)


BIG = [0, 1, 131_072, 1_048_577, 2**31 - 1]


@pytest.mark.parametrize("make", HERE)
@pytest.mark.parametrize(
    ("length", "unit"),
    [
        (16_384, 4),
        (16_384, 16_384),
        (16_384, 512),
        (16_386, 6),
        (48, 48),
        (49_152, 48),
        (65_537, 1),
        (12, 8),
        (16_384, 16_385),
    ],
)
def test_alignment_is_exact_for_large_addresses(length, unit, make):
    """Page 1,048,577 times stride 16,384 wraps in 32 bits; 131,072 times it, too."""
    got = alignment(stride(length), 0, ints(BIG, make), contract(unit))
    want = [
        Reason.OK
        if (block * length) % unit == 0 and length % unit == 0
        else Reason.MISALIGNED
        for block in BIG
    ]
    assert got.tolist() == want


def test_alignment_in_numbers():
    assert 1_048_577 * 16_384 == 17_179_885_568
    assert (1_048_577 * 16_384) % 2**32 == 16_384
    assert 131_072 * 16_384 == 2**31


@pytest.mark.parametrize("make", HERE)
def test_every_plane_is_aligned_or_none_is(make):
    ids = ints([0, 1, 2, 3], make)
    for more, good in [
        ((), True),
        ((16,), True),
        ((20,), False),
        ((16, 4), False),
        ((20, 16), False),
    ]:
        got = alignment(stride(32, more), 0, ids, contract(16))
        assert got.tolist() == [Reason.OK if good else Reason.MISALIGNED] * 4


def test_alignment_looks_at_the_pool_that_is_asked():
    spec = CacheSpec.from_layers(
        [
            LayerSpec(local=Window(2, Entry((Plane("k", 1, 6, "uint8"),)))),
            LayerSpec(global_=Entries(Entry((Plane("k", 1, 8, "uint8"),)))),
        ],
        block_tokens=1,
    )
    ids = ints([0, 1])
    assert alignment(spec, 0, ids, contract(4)).tolist() == [Reason.MISALIGNED] * 2
    assert alignment(spec, 1, ids, contract(4)).tolist() == [Reason.OK] * 2


def test_alignment_counts_entries_not_tokens():
    """A block of 8 tokens with ratio 4 has two entries."""
    row = Entry((Plane("k", 1, 6, "uint8"),))
    spec = CacheSpec.from_layers(
        [LayerSpec(global_=Entries(row, 4, raw=row))], block_tokens=8
    )
    ids = ints([0, 1, 5])
    assert alignment(spec, 0, ids, contract(12)).tolist() == [Reason.OK] * 3
    assert alignment(spec, 0, ids, contract(24)).tolist() == [Reason.MISALIGNED] * 3
    assert alignment(spec, 1, ids, contract(24)).tolist() == [Reason.OK] * 3


def test_alignment_inside_a_compiled_step():
    spec = stride(16_386)
    ids = ints(BIG, jnp.array)
    got = jax.jit(lambda ids: alignment(spec, 0, ids, contract(6)))(ids)
    assert got.tolist() == [Reason.OK] * len(BIG)
