"""The resume solver against a slow oracle: sound, complete, the same everywhere."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_cases import (
    FAIR,
    FAR_LOADS,
    FREE_LOADS,
    ROW,
    SLOW_LOADS,
    Case,
    check_choice,
    check_levels,
    check_replay,
    chunk,
    compressed,
    full,
    prompt_of,
    recurrent,
    window,
)

from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.forms import Form
from hybridcache_jax.layers import (
    Chunk,
    Entries,
    IndexKeys,
    LayerSpec,
    Window,
)
from hybridcache_jax.replay import bases, replay_start, usable
from hybridcache_jax.resume import Holdings, solve, solve_batch
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.validate import boundary

TOTAL = 24  # token positions that the stored prefix of a random case spans


# --- random cases -------------------------------------------------------------------


@st.composite
def layer_lists(draw):
    """Up to four layers of any kind, also mixed within one layer."""
    layers: list[LayerSpec] = []
    for number in range(draw(st.sampled_from([1, 2, 3, 4]))):
        kinds = ["window", "chunk", "full", "compressed", "both", "index", "recurrent"]
        owners = [
            index
            for index, layer in enumerate(layers)
            if layer.kv_owner is None and (layer.local or layer.global_)
        ]
        if owners and number:
            kinds.append("reader")
        kind = draw(st.sampled_from(kinds))
        size = draw(st.integers(1, 6))
        ratio, overlap = draw(st.sampled_from([2, 4])), draw(st.integers(0, 1))
        local = draw(st.sampled_from([Window(size, ROW), Chunk(size, ROW)]))
        if kind == "window":
            layers.append(window(size))
        elif kind == "chunk":
            layers.append(chunk(size))
        elif kind == "full":
            layers.append(full())
        elif kind == "compressed":
            layers.append(compressed(ratio, overlap))
        elif kind == "both":
            layers.append(compressed(ratio, overlap, local=local))
        elif kind == "index":
            keys = draw(
                st.sampled_from(
                    [
                        IndexKeys(ROW),
                        IndexKeys(ROW, ratio),
                        IndexKeys(ROW, ratio, overlap, raw=ROW),
                    ]
                )
            )
            part = draw(st.sampled_from([Entries(ROW), Entries(ROW, 4, 1, raw=ROW)]))
            layers.append(LayerSpec(global_=part, index=keys))
        elif kind == "recurrent":
            layers.append(recurrent(local=draw(st.sampled_from([None, local]))))
        else:
            layers.append(LayerSpec(kv_owner=draw(st.sampled_from(owners))))
    return tuple(layers)


@st.composite
def cases(draw):
    layers = draw(layer_lists())
    sizes = {
        form: draw(st.sampled_from([4, 8]))
        for form in (Form.FULL_KV, Form.COMPRESSED_KV, Form.INDEXER_STATE)
    }
    sizes[Form.UNCOMPRESSED_TAIL] = 4
    sizes[Form.SWA_WINDOW] = draw(st.sampled_from([1, 2, 4]))
    sizes[Form.RECURRENT_STATE] = 4
    spec = CacheSpec.from_layers(layers, block_tokens=sizes)
    positions = st.sets(st.integers(1, TOTAL), max_size=6)
    common = draw(st.sets(st.integers(1, TOTAL), min_size=2, max_size=8))
    # Most pools are whole; a few lose blocks, or their end, or a part of either.
    losses = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(spec.pools) - 1),
                st.integers(0, TOTAL - 1),
                st.sampled_from([0, 0, 1, 2, 3]),
                st.sampled_from(["hole", "end", "all"]),
                st.booleans(),
            ),
            max_size=4,
        )
    )
    device, outer = [], []
    for number, pool in enumerate(spec.pools):
        size = pool.block_tokens
        if pool.form == Form.RECURRENT_STATE:
            own = common | draw(positions)
            device.append(sorted(own))
            outer.append(sorted(own | draw(positions)))
            continue
        here = [size] * (TOTAL // size)
        there = list(here)
        for loser, position, left, extent, loadable in losses:
            if loser != number:
                continue
            block = position // size
            first, last = {
                "hole": (block, block + 1),
                "end": (block, len(here)),
                "all": (0, len(here)),
            }[extent]
            for lost in range(first, last):
                here[lost] = min(here[lost], left if lost == first else 0)
                there[lost] = max(here[lost], size if loadable else 0)
        shorter = draw(st.sampled_from([0, 0, 0, 1]))
        device.append(here[: len(here) - shorter])
        outer.append(there[: len(here) - shorter])
    exact = [
        set(outer[number])
        for number, pool in enumerate(spec.pools)
        if pool.form == Form.RECURRENT_STATE
    ]
    checkpoints = set.intersection(*exact) if exact else set()
    # Layer 1 decides which candidates there are; one is padding.
    everywhere = np.arange(-1, TOTAL + 3, dtype=np.int32)
    legal = boundary(
        everywhere, spec.grid, np.array(sorted(checkpoints), np.int32)
    ) == int(Reason.OK)
    points = np.concatenate([everywhere[:1], everywhere[legal]])
    return Case(
        spec=spec,
        points=points,
        num_tokens=draw(st.sampled_from([TOTAL + 1, TOTAL, TOTAL - 3, 9, 1, 0])),
        device=tuple(device),
        near=tuple(
            draw(st.sampled_from(held)) for held in zip(outer, device, strict=True)
        ),
        outer=tuple(outer),
        cost=draw(st.sampled_from([FREE_LOADS, FAIR, SLOW_LOADS, FAR_LOADS])),
    )


@settings(max_examples=250)
@given(cases())
def test_levels_and_verdict_agree_with_the_oracle(case):
    solution = case.solve()
    check_levels(case, solution)
    check_choice(case, solution)


@settings(max_examples=250)
@given(cases())
def test_replay_agrees_with_the_oracle(case):
    check_replay(case, case.solve())


@settings(max_examples=120)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_pools_does_not_matter(case, random):
    order = list(range(len(case.spec.pools)))
    random.shuffle(order)
    shuffled = dataclasses.replace(
        case.spec, pools=tuple(case.spec.pools[number] for number in order)
    )
    one, other = case.solve(), case.solve(shuffled, order)
    for field in dataclasses.fields(one):
        if field.name == "per_pool":
            np.testing.assert_array_equal(one.per_pool[order], other.per_pool)
        elif field.name.endswith("base"):
            # The same pools, by the numbers that they have.
            pools = bases(case.spec)[int(getattr(one, field.name))]
            others = bases(shuffled)[int(getattr(other, field.name))]
            assert {*pools} == {order[number] for number in others}, field.name
        else:
            assert getattr(one, field.name) == getattr(other, field.name), field.name


@settings(max_examples=60)
@given(layer_lists(), st.integers(2, 20), st.integers(1, 19))
def test_what_a_replay_must_keep_is_one_set(layers, point, before):
    """Two oracles: all sets of pools tried, and what rows depend on, walked down."""
    start = max(point - before, 1)
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    prompt = prompt_of(spec)
    least = prompt.least(point, start)
    for count in range(len(prompt.bounded) + 1):
        for kept in map(frozenset, itertools.combinations(prompt.bounded, count)):
            assert prompt.exact(point, start, kept) == (least <= kept)
    needed = oracle.kept_by_dependencies(layers, point, start)
    pools = enumerate(prompt.pools)
    assert {n for n, p in pools for at in p.layers if (at, p.part) in needed} == least


# --- one answer in every namespace --------------------------------------------------

MODELS = {
    "windows and full": (window(3), full(), window(6), full()),
    "compressed, index, chunk": (
        chunk(6),
        compressed(4, 1, local=Window(3, ROW), index=IndexKeys(ROW, 4, 1, raw=ROW)),
        compressed(2, 0, local=Window(3, ROW)),
    ),
    "recurrent below windows": (recurrent(), window(4), full()),
}


@functools.cache
def batch_of_cases(name, seed=0, size=64):
    """Random holdings of one model, all of the same shapes, as keywords of solve."""
    layers = MODELS[name]
    rng = np.random.default_rng(seed)
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    points = np.arange(-1, TOTAL + 1, 1, dtype=np.int32)
    device, near, outer, states = [], [], [], {}
    for pool in spec.pools:
        if pool.form == Form.RECURRENT_STATE:
            here = rng.random((size, len(points))) < 0.15
            device.append(here)
            near.append(here | (rng.random(here.shape) < 0.15))
            outer.append(near[-1] | (rng.random(here.shape) < 0.15))
            at = rng.permuted(np.tile(points[2:], (size, 1)), axis=1)[:, :5]
            states["checkpoints"] = np.sort(at).astype(np.int32)
            away = rng.random((size, 1, 5)) < 0.5
            stored = away & (rng.random(away.shape) < 0.5)
            states |= {"checkpoints_away": away, "checkpoints_stored": stored}
        else:
            shape = (size, TOTAL // 4)
            lost = rng.random(shape) < 0.1
            here = np.where(lost, rng.integers(0, 4, shape), 4).astype(np.int32)
            loads = rng.random(shape) < 0.5
            device.append(here)
            outer.append(np.where(loads, 4, here).astype(np.int32))
            stored = rng.random(shape) < 0.5
            near.append(np.where(stored, here, outer[-1]))
    totals = rng.integers(0, TOTAL + 3, size).astype(np.int32)
    held = Holdings(tuple(device), tuple(outer), tuple(near))
    return spec, points, totals, held, states


@pytest.mark.parametrize("name", MODELS)
def test_numpy_jit_and_vmap_give_one_answer(name):
    """And changed rates are seen without another trace."""
    spec, points, *requests = batch_of_cases(name)
    traced = []

    @jax.jit
    def batched(cost, totals, holdings, states):
        traced.append("batched")
        return solve_batch(spec, points, totals, holdings, **states, cost=cost)

    @jax.jit
    def single(cost, total, holdings, states):
        traced.append("single")
        here = jax.numpy.asarray(points)
        return solve(spec, here, total, holdings, **states, cost=cost)

    seen = set()
    for cost in (FREE_LOADS, FAR_LOADS):
        together = jax.tree.map(np.asarray, batched(cost, *requests))
        for number in range(len(requests[0])):
            total, held, states = jax.tree.map(lambda a, at=number: a[at], requests)
            on_host = solve(spec, points, total, held, **states, cost=cost)
            seen.add((int(on_host.verdict), bool(on_host.start < on_host.point)))
            answers = [jax.tree.map(lambda a, at=number: a[at], together)]
            if number < 8:
                answers.append(single(cost, total, held, states))
            for answer in answers:
                for field in dataclasses.fields(on_host):
                    np.testing.assert_array_equal(
                        getattr(on_host, field.name), getattr(answer, field.name)
                    )
    assert traced == ["batched", "single"]
    assert len(seen) >= 4, "the cases are too much alike to tell anything"


def tied_case(num_tokens, cost):
    """A loadable window at 8, and a replay from 8 that reaches 12."""
    spec = CacheSpec.from_layers([full(), window(5)], block_tokens=4)
    here, lost = np.array([4, 4, 4], np.int32), np.array([0, 0, 0], np.int32)
    outer = np.array([4, 4, 0], np.int32)
    points = np.arange(0, 13, 4, dtype=np.int32)
    holdings = Holdings((here, lost), (here, outer))
    return spec, points, np.int32(num_tokens), holdings, cost


@pytest.mark.parametrize("num_tokens", [13, 100_000, 1_000_000])
def test_the_choice_does_not_depend_on_float_width(num_tokens):
    """Loading costs something, so the replay from the same position wins."""
    spec, points, total, holdings, cost = tied_case(num_tokens, CostModel())
    on_host = solve(spec, points, total, holdings, cost=cost)
    assert int(on_host.anywhere_point) == int(on_host.replay_start) == 8

    @jax.jit
    def run(points, total, holdings):
        return solve(spec, points, total, holdings, cost=cost)

    compiled = run(points, total, holdings)
    assert int(on_host.verdict) == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert int(compiled.verdict) == int(on_host.verdict)
    assert int(compiled.point) == int(on_host.point) == 12


# --- replay extents of real models --------------------------------------------------


def start_at(layers, point):
    spec = CacheSpec.from_layers(layers, block_tokens=128)
    return int(replay_start(spec, np.array([point], np.int32))[0])


def flash(layer_count, csa_first):
    """V4 layers: a window of 128 in each, ratio 4 and 128 in turn."""
    csa = compressed(4, 1, local=Window(128, ROW), index=IndexKeys(ROW, 4, 1, raw=ROW))
    hca = compressed(128, 0, local=Window(128, ROW))
    plain = window(128)
    if csa_first:
        return [plain, plain] + [csa, hca] * ((layer_count - 2) // 2) + [csa]
    return [hca, hca] + [csa, hca] * ((layer_count - 2) // 2) + [csa]


REAL = {
    "DeepSeek-V4-Flash": (flash(43, True), 8_192, 5_461),
    "DeepSeek-V4-Pro": (flash(61, False), 16_384, 7_747),
    "gpt-oss-120b": ([window(128), full()] * 18, 4_096, 2_286),
    "gemma-3-27b": (
        ([window(1024)] * 5 + [full()]) * 10 + [window(1024)] * 2,
        60_000,
        53_196,
    ),
    "MiMo-V2-Flash": (
        [
            full()
            if layer == 0 or layer % 6 == 5
            else LayerSpec(local=Window.from_lookback(128, ROW))
            for layer in range(48)
        ],
        8_192,
        4_992,
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_replay_extents_of_real_models(name):
    layers, point, extent = REAL[name]
    assert point - start_at(layers, point) == extent
    assert point - oracle.start_by_dependencies(layers, point) == extent
    # Close to the beginning there is nothing to replay from.
    assert start_at(layers, extent // 128 * 128) == 0


def tiny_v4(hca_ratio):
    csa = compressed(4, 1, local=Window(8, ROW), index=IndexKeys(ROW, 4, 1, raw=ROW))
    return [window(8), csa, compressed(hca_ratio, 0, local=Window(8, ROW)), csa]


@pytest.mark.parametrize(
    ("layers", "point", "extent"),
    [
        ([chunk(8), chunk(8), chunk(8), full()], 61, 5),
        ([chunk(8), chunk(8), chunk(8), full()], 64, 0),
        (tiny_v4(8), 64, 28),
        (tiny_v4(8), 61, 28),
        # 15 rows of open block behind two windows: longer than the windows alone.
        (tiny_v4(16), 63, 29),
        (tiny_v4(16), 62, 28),
        ([window(8), full(), window(8), full()], 64, 14),
        ([window(8)] * 5 + [full()], 64, 35),
        ([window(1)] * 3, 64, 0),
        ([full()] * 3, 64, 0),
        ([compressed(4, 1)], 64, 4),
        ([compressed(4, 1)], 63, 7),
        ([window(5), compressed(16)], 47, 15 + 4),
        ([chunk(8), window(4)], 64, 8),
        ([window(4), chunk(8)], 61, 5 + 3),
    ],
)
def test_replay_extents_by_hand(layers, point, extent):
    assert point - start_at(layers, point) == extent
    assert point - oracle.latest_start(tuple(layers), point) == extent
    assert point - oracle.start_by_dependencies(layers, point) == extent
    if extent:
        # Sharp: one token less is not enough.
        start = point - extent
        assert oracle.replay_is_exact(layers, point, start)
        assert not oracle.replay_is_exact(layers, point, start + 1)


@settings(max_examples=100)
@given(layer_lists(), st.integers(0, 30))
def test_replay_start_is_exact_at_any_point(layers, point):
    """Both oracles and the library, also off the grid."""
    if any(layer.recurrent for layer in layers):
        return
    latest = oracle.latest_start(layers, point)
    assert oracle.start_by_dependencies(layers, point) == latest
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    start = int(replay_start(spec, np.array([point], np.int32))[0])
    assert start == latest


def test_replay_starts_of_many_points_are_those_of_each():
    spec = CacheSpec.from_layers(tiny_v4(8), block_tokens=8)
    points = np.arange(0, 65, 8, dtype=np.int32)
    together = replay_start(spec, points).tolist()
    assert together == [start_at(tiny_v4(8), int(point)) for point in points]
    assert together[:4] == [0, 0, 0, 0]
    assert together[4:] == [4, 12, 20, 28, 36]


# --- recurrent layers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "point", "checkpoints", "start"),
    [
        # A checkpoint at the point itself: nothing to run but for the window.
        ([recurrent(), window(4)], 12, [4, 8, 12], 8),
        ([recurrent(), window(4)], 12, [4, 9, 12], 9),
        ([recurrent(), window(4)], 12, [10, 12], 0),
        ([recurrent(), full()], 12, [4, 8], 8),
        ([recurrent(), full()], 12, [], 0),
        # Rows from before the checkpoint are needed below: only a whole run.
        ([window(4), recurrent()], 12, [4, 8, 12], 0),
        ([window(1), recurrent()], 12, [4, 8], None),
    ],
)
def test_replay_over_recurrent_layers(layers, point, checkpoints, start):
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    got = replay_start(
        spec, np.array([point], np.int32), np.array(checkpoints, np.int32)
    )
    latest = oracle.latest_start(tuple(layers), point, frozenset(checkpoints))
    assert int(got[0]) <= latest
    if start is not None:
        assert int(got[0]) == start == latest
    assert int(got[0]) == 0 or oracle.replay_is_exact(
        layers, point, int(got[0]), frozenset(checkpoints)
    )


def test_a_window_beside_recurrent_state_widens_the_replay():
    """One layer with both: its output needs the state *and* older window rows."""
    layers = (recurrent(local=Window(5, ROW)), window(3))
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    checkpoints = np.arange(1, 13, dtype=np.int32)
    start = int(replay_start(spec, np.array([12], np.int32), checkpoints)[0])
    # The upper window needs rows 10 and 11, so layer 0 needs rows 6..11.
    assert oracle.latest_start(layers, 12, frozenset(range(1, 13))) == 6
    assert oracle.replay_is_exact(layers, 12, start, frozenset(range(1, 13)))


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param((compressed(4, 1), recurrent()), id="tail below the state"),
        pytest.param((recurrent(local=Window(4, ROW)),), id="window beside the state"),
    ],
)
def test_a_replay_starts_at_a_checkpoint(layers):
    """Running a recurrent layer from where it has no state rebuilds nothing."""
    spec = CacheSpec.from_layers(layers, block_tokens=4)
    checkpoints = np.array([2, 7, 12], np.int32)
    start = int(replay_start(spec, np.array([12], np.int32), checkpoints)[0])
    assert start in (0, 2, 7, 12)
    assert start == oracle.latest_start(layers, 12, frozenset({2, 7, 12}))


# --- corners ------------------------------------------------------------------------


def whole(spec, tokens):
    return tuple(
        np.full(tokens // pool.block_tokens, pool.block_tokens, np.int32)
        for pool in spec.pools
    )


@pytest.mark.parametrize(
    ("num_tokens", "point"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (99, 8)]
)
def test_one_position_at_least_is_run(num_tokens, point):
    """A prompt that is stored whole still runs its last token, for its logits."""
    spec = CacheSpec.from_layers([full(), window(3)], block_tokens=4)
    held = whole(spec, 8)
    points = np.arange(0, 9, 4, dtype=np.int32)
    solution = solve(spec, points, np.int32(num_tokens), Holdings(held, held))
    assert int(solution.point) == point
    assert Verdict(int(solution.verdict)) == (
        Verdict.RESUMABLE if point else Verdict.NEEDS_FULL_RECOMPUTE
    )


def test_positions_that_layer_1_refuses_do_not_count():
    """Everything is held, but half a block is no resume point."""
    spec = CacheSpec.from_layers([full(), window(3)], block_tokens=4)
    held = whole(spec, 12)
    points = np.arange(0, 12, dtype=np.int32)
    solution = solve(spec, points, np.int32(12), Holdings(held, held))
    assert int(solution.point) == int(solution.history_point) == 8


def test_a_checkpoint_in_the_outer_tier_is_a_resume_point():
    """Off the grid, on no device yet: provable once it is loaded."""
    spec = CacheSpec.from_layers([recurrent()], block_tokens=32)
    points = np.array([0, 5, 9], np.int32)
    here, there = np.array([False, True, False]), np.array([False, True, True])
    solution = solve(
        spec,
        points,
        np.int32(10),
        Holdings((here,), (there,)),
        checkpoints=np.array([5], np.int32),
        cost=FREE_LOADS,
    )
    assert int(solution.device_point) == 5
    assert int(solution.anywhere_point) == 9
    assert Verdict(int(solution.verdict)) == Verdict.NEEDS_IO


def test_padding_points_never_win():
    spec = CacheSpec.from_layers([full()], block_tokens=4)
    held = whole(spec, 8)
    points = np.array([-1, -4, 4, -8], np.int32)
    solution = solve(spec, points, np.int32(20), Holdings(held, held))
    assert int(solution.point) == 4
    assert solution.per_pool[0].tolist() == [False, False, True, False]


def test_no_points_no_blocks():
    spec = CacheSpec.from_layers([full(), window(3)], block_tokens=4)
    none = tuple(np.zeros(0, np.int32) for _ in spec.pools)
    for points in ([], [0]):
        solution = solve(
            spec, np.array(points, np.int32), np.int32(9), Holdings(none, none)
        )
        assert Verdict(int(solution.verdict)) == Verdict.NEEDS_FULL_RECOMPUTE
        assert int(solution.point) == int(solution.start) == 0


def test_usable_points_are_a_set_not_a_minimum_of_maxima():
    """8 works for one form, 4 for both: the smaller maximum would say 8."""
    spec = CacheSpec.from_layers(
        [window(3), full(), LayerSpec(local=Window(2, ROW))],
        block_tokens={Form.FULL_KV: 4, Form.SWA_WINDOW: 1},
    )
    rows = dict.fromkeys((2, 3, 6, 7), 1)
    first = np.array([rows.get(t, 0) for t in range(12)], np.int32)
    rows = dict.fromkeys((3, 11), 1)
    second = np.array([rows.get(t, 0) for t in range(12)], np.int32)
    held = (first, np.array([4, 4, 4], np.int32), second)
    points = np.arange(0, 13, 4, dtype=np.int32)
    solution = solve(spec, points, np.int32(13), Holdings(held, held))
    assert solution.per_pool.tolist() == [
        [True, True, True, False],
        [True, True, True, True],
        [True, True, False, True],
    ]
    assert int(solution.device_point) == 4
    assert int(solution.history_point) == 12


@pytest.mark.parametrize(
    ("cost", "verdict", "point"),
    [
        (FREE_LOADS, Verdict.NEEDS_IO, 8),
        (SLOW_LOADS, Verdict.RESUMABLE, 4),
        # One block of 4 entries of 16 bytes: 64 B for 4 tokens of work.
        (CostModel(1.0, 4.1 / 64), Verdict.RESUMABLE, 4),
        (CostModel(1.0, 3.9 / 64), Verdict.NEEDS_IO, 8),
    ],
)
def test_waiting_is_weighed_against_running(cost, verdict, point):
    spec = CacheSpec.from_layers([full()], block_tokens=4)
    assert spec.pools[0].block_bytes == 64
    here, there = np.array([4, 0], np.int32), np.array([4, 4], np.int32)
    points = np.arange(0, 9, 4, dtype=np.int32)
    solution = solve(spec, points, np.int32(9), Holdings((here,), (there,)), cost=cost)
    assert (Verdict(int(solution.verdict)), int(solution.point)) == (verdict, point)
    assert (int(solution.device_point), int(solution.anywhere_point)) == (4, 8)


def test_loading_the_history_and_replaying_the_window():
    """History away, window gone everywhere: load, then replay 8 - 4 - 4 .. 7."""
    spec = CacheSpec.from_layers([full(), window(5), window(5)], block_tokens=4)
    gone, whole_of_it = np.zeros(4, np.int32), np.full(4, 4, np.int32)
    here = np.array([4, 0, 0, 0], np.int32)
    points = np.arange(0, 17, 4, dtype=np.int32)
    holdings = Holdings((here, gone), (whole_of_it, gone))
    solution = solve(spec, points, np.int32(17), holdings, cost=FREE_LOADS)
    assert Verdict(int(solution.verdict)) == Verdict.NEEDS_IO
    assert (int(solution.start), int(solution.point)) == (8, 16)
    assert float(solution.bytes_to_load) == 3 * spec.pools[0].block_bytes
    # 192 bytes that cost more than the 8 tokens they save: a run of the whole prompt.
    dear = CostModel(1.0, 8.1 / 192)
    solution = solve(spec, points, np.int32(17), holdings, cost=dear)
    assert Verdict(int(solution.verdict)) == Verdict.NEEDS_FULL_RECOMPUTE
    assert int(solution.load_replay_start) == 8


def test_a_checkpoint_is_loaded_to_replay_from_it():
    """A nearer checkpoint away against a farther one at hand: the bytes decide."""
    spec = CacheSpec.from_layers([recurrent(), window(3)], block_tokens=4)
    points = np.array([0, 4, 8, 12], np.int32)
    none, gone = np.zeros(4, bool), np.zeros(3, np.int32)
    away = np.array([False, False, True, False])

    def answer(byte):
        return solve(
            spec,
            points,
            np.int32(13),
            Holdings((none, gone), (away, gone)),
            checkpoints=np.array([4, 8], np.int32),
            checkpoints_away=np.array([[False, True]]),
            cost=CostModel(1.0, byte / spec.pools[0].block_bytes),
        )

    for byte, verdict, start in [
        (3.9, Verdict.NEEDS_IO, 8),
        (4.1, Verdict.NEEDS_PARTIAL_RECOMPUTE, 4),
    ]:
        solution = answer(byte)
        assert Verdict(int(solution.verdict)) == verdict
        assert (int(solution.start), int(solution.point)) == (start, 12)


def test_checkpoints_away_need_an_outer_tier():
    spec = CacheSpec.from_layers([recurrent()], block_tokens=4)
    with pytest.raises(ValueError, match="lie in an outer tier"):
        solve(
            spec,
            np.array([0, 4], np.int32),
            np.int32(9),
            Holdings((np.array([False, False]),)),
            checkpoints=np.array([4], np.int32),
            checkpoints_away=np.array([[True]]),
        )


@pytest.mark.parametrize(
    ("token", "byte"),
    [(0.0, 1.0), (-1.0, 0.0), (1.0, -1e-9), (float("nan"), 0.0), (1.0, float("inf"))],
)
def test_costs_are_checked(token, byte):
    with pytest.raises(ValueError, match="seconds_per_token > 0"):
        CostModel(token, byte)


def test_measurements_fold_into_the_rates():
    """An exponential moving average; the model before it stays as it was."""
    cost = CostModel(1.0, 0.5)
    after = cost.after_run(100, 50.0).after_run(10, 20.0, weight=0.5)
    assert after.seconds_per_token == pytest.approx(((0.8 + 0.2 * 0.5) + 2.0) / 2)
    assert (after.seconds_per_byte, cost) == (0.5, CostModel(1.0, 0.5))
    steady = cost
    for _ in range(60):
        steady = steady.after_run(1000, 3.0).after_short_run(10, 5.03)
    assert steady.seconds_per_token == pytest.approx(0.003, rel=1e-2)
    assert steady.seconds_per_run == pytest.approx(5.0, rel=1e-2)
    assert steady.seconds(1000, 2) == pytest.approx(5.0 + 3.0 + 1.0, rel=1e-2)
    # A step that took less than its tokens have nothing besides them.
    assert cost.after_short_run(10, 5.0) == cost
    # Device scalars of a transformed model are as good.
    on_device = jax.jit(lambda model: model)(CostModel(1.0, 0.0))
    learned = on_device.after_load(MIB, 1.0, weight=1.0)
    assert learned.seconds_per_byte == pytest.approx(1 / MIB / 2)


@pytest.mark.parametrize(
    ("amount", "seconds", "weight"),
    [(0, 1.0, 0.2), (1, -1.0, 0.2), (1, float("nan"), 0.2), (1, 1.0, 0.0), (1, 1.0, 2)],
)
def test_measurements_are_checked(amount, seconds, weight):
    cost = CostModel()
    for fold in (cost.after_run, cost.after_short_run, cost.after_load):
        with pytest.raises(ValueError, match="amount >= 1"):
            fold(amount, seconds, weight=weight)


@pytest.mark.parametrize("from_store", [-1, 9])
def test_the_store_has_no_more_than_all_of_a_load(from_store):
    with pytest.raises(ValueError, match="0 to 8 from the store"):
        CostModel().after_load(8, 1.0, from_store=from_store)


MIB = 2**20


def test_loads_teach_what_is_fixed_and_what_grows():
    """Of each tier by loads of two sizes; the other tier is left as it was."""
    cost = CostModel()
    for _ in range(100):
        for size in (MIB // 4, 4 * MIB):
            cost = cost.after_load(size, 0.002 + size * 1e-9)
            whole = 0.050 + size * 2e-8
            cost = cost.after_load(size, whole, from_store=size)
    assert cost.seconds_per_load == pytest.approx(0.002, rel=1e-3)
    assert cost.seconds_per_byte == pytest.approx(1e-9, rel=1e-3)
    assert cost.store_seconds_per_load == pytest.approx(0.050, rel=1e-3)
    assert cost.store_seconds_per_byte == pytest.approx(2e-8, rel=1e-3)
    # A load of both tiers is the sum, and begins when the store does.
    assert cost.seconds(1, 3 * MIB, MIB) == pytest.approx(
        1e-4 + 0.050 + 2 * MIB * 1e-9 + MIB * 2e-8, rel=1e-3
    )


@pytest.mark.parametrize("from_store", [0, 5 * MIB, 8 * MIB])
@pytest.mark.parametrize("seconds", [0.9, 3.0])
def test_a_load_measured_with_all_weight_is_what_is_expected(from_store, seconds):
    """And with a fifth of it a fifth of the difference is made up for."""
    cost = CostModel(1e-4, 1e-7, 0.1, 1e-7, 0.2)

    def expected(cost):
        return cost.seconds(0, 8 * MIB, from_store)

    known = cost.after_load(8 * MIB, seconds, from_store=from_store, weight=1.0)
    assert expected(known) == pytest.approx(seconds)
    nearer = cost.after_load(8 * MIB, seconds, from_store=from_store)
    gone = expected(nearer) - expected(cost)
    assert gone == pytest.approx(0.2 * (seconds - expected(cost)))


def test_a_load_from_the_store_takes_no_less_than_one_from_memory():
    """Whatever was measured: else a plan could load more in order to wait less."""
    slow_memory = CostModel(1.0, 0.0, 3.0, 0.0, 2.0)
    slow_store = CostModel(1.0, 0.0, 3.0, 0.0, 4.0)
    for cost, seconds in ((slow_memory, 3.0), (slow_store, 4.0)):
        assert cost.seconds(0, 2, 1) == seconds
        assert cost.seconds(0, 2) == 3.0
        assert cost.seconds(0) == 0.0
    # What is learned of the store is its own all the same.
    learned = slow_memory.after_load(2, 2.0, from_store=2)
    assert learned == slow_memory


def test_no_measurement_makes_a_rate_negative():
    cost = CostModel().after_load(MIB, 5.0).after_load(64 * MIB, 0.0, weight=1.0)
    assert min(cost.seconds_per_byte, cost.seconds_per_load) == 0.0


def test_every_window_size_at_every_offset():
    """Whole and partial blocks, all small windows: 7 x 4 x 13 answers."""
    for size, block_size in itertools.product(range(1, 8), (1, 2, 3, 4)):
        layers = (window(size),)
        spec = CacheSpec.from_layers(layers, block_tokens=block_size)
        blocks = 12 // block_size
        points = np.arange(0, 13, dtype=np.int32)
        for hole in range(blocks):
            amounts = np.full(blocks, block_size, np.int32)
            amounts[hole] = hole % block_size
            held = {
                (0, "local"): {
                    block * block_size + offset
                    for block in range(blocks)
                    for offset in range(amounts[block])
                }
            }
            got = solve(
                spec, points, np.int32(99), Holdings((amounts,), (amounts,))
            ).per_pool[0]
            want = [oracle.provable(layers, held, int(p)) for p in points]
            assert got.tolist() == want, (size, block_size, hole)


def test_chunks_whose_starts_meet_beyond_int32_allow_no_start():
    """Their least common multiple is no position: only kept chunks help."""
    sizes = 65521, 65519
    spec = CacheSpec.from_layers([*map(chunk, sizes), recurrent()], block_tokens=1)
    points = np.array([0, 65519, 65521], np.int32)
    assert not usable(spec, points).any()
