"""Retention policies: which points keep, what that costs, what a plan sets aside."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import Chunk, Entries, Entry, Form, LayerSpec, Retention, Window
from hybridcache_jax.retention import Keep, point_blocks

ROW = Entry.kv(1, 2)
WINDOW = LayerSpec(local=Window(10, ROW))
CHUNK = LayerSpec(local=Chunk(10, ROW))
TAIL = LayerSpec(global_=Entries(ROW, 4, 1, raw=ROW))
FULL = LayerSpec(global_=Entries(ROW))
BLOCKS = {Form.SWA_WINDOW: 2, Form.UNCOMPRESSED_TAIL: 2, Form.COMPRESSED_KV: 8}
SPEC = hc.CacheSpec.from_layers(
    [WINDOW, CHUNK, TAIL, FULL], block_tokens={**BLOCKS, Form.FULL_KV: 8}
)
GRID = 8
POLICIES = st.sampled_from(
    [Retention.every_block(), Retention.every(16), Retention.ends(), Retention.none()]
)


def plan(retention, **more):
    sizes = {"max_sequences": 2, "max_length": 64, "max_chunk": 8, **more}
    return hc.plan_capacity(
        SPEC, budget="8MiB", retention=retention, backend="cpu", **sizes
    )


def kept_points(policy, prompt, end):
    """In plain Python, up to where the row stands."""
    if policy == Retention.none():
        return set()
    if policy == Retention.ends():
        ends = [n // GRID * GRID for n in (prompt, prompt - 1, end)]
        return {n for n in ends if n > 0}
    return set(range(policy.tokens or GRID, 129, policy.tokens or GRID))


def needed(pool, point):
    """Blocks that a grid point requires, by what each kind of layer looks back at."""
    back = {0: min(9, point), 1: point % 10, 3: min(4, point)}[pool]
    return {q // 2 for q in range(point - back, point)}


@given(policy=POLICIES, prompt=st.integers(1, 100), output=st.integers(0, 20))
def test_the_points_that_keep(policy, prompt, output):
    points = np.arange(GRID, 129, GRID, dtype=np.int32)
    kept = policy.keeps(points, grid=GRID, prompt=prompt, end=prompt + output)
    assert set(points[kept].tolist()) == kept_points(policy, prompt, prompt + output)


@settings(max_examples=40)
@given(
    policy=POLICIES,
    runs=st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, 64)), min_size=1, max_size=4
    ),
)
def test_a_plan_sets_aside_what_its_stored_sequences_keep(policy, runs):
    """However prompt and output lie within sequences of the length planned for."""
    tokens = 64 * len(runs)
    bare = plan(policy, stored_tokens=0)
    made = plan(policy, stored_tokens=tokens)
    for number, pool in enumerate(SPEC.pools):
        aside = made.blocks[number] - bare.blocks[number]
        if pool.form not in BLOCKS or pool.form == Form.COMPRESSED_KV:
            assert aside == tokens // 8
            continue
        kept = 0
        for prompt, output in runs:
            end = min(64, prompt + output)
            kept += len(
                {
                    block
                    for point in kept_points(policy, prompt, end)
                    if point <= end
                    for block in needed(number, point)
                }
            )
        assert kept <= aside <= tokens // 2


@pytest.mark.parametrize(
    ("windows", "tails", "both"),
    [
        (Retention.every(16), Retention.every(24), Retention.every(48)),
        (Retention.every_block(), Retention.every(16), Retention.every(16)),
        (Retention.every_block(), Retention.none(), Retention.none()),
        (Retention.ends(), Retention.none(), Retention.none()),
        (Retention.every_block(), Retention.ends(), Retention.ends()),
    ],
)
def test_what_is_stored_is_of_use(windows, tails, both):
    """A tail is of use beside windows only; windows start replays without tails."""
    bare, made, same = (
        plan(retention, stored_tokens=tokens)
        for retention, tokens in (
            ({Form.SWA_WINDOW: windows, Form.UNCOMPRESSED_TAIL: tails}, 0),
            ({Form.SWA_WINDOW: windows, Form.UNCOMPRESSED_TAIL: tails}, 640),
            (both, 640),
        )
    )
    alone = plan(windows, stored_tokens=640)
    for number, other, policy in (
        (0, alone, windows),
        (1, alone, windows),
        (3, same, both),
    ):
        aside = made.blocks[number] - bare.blocks[number]
        least = plan(policy, stored_tokens=0).blocks[number]
        assert aside == other.blocks[number] - least
    promised = [
        [pool.bytes_per_1000_tokens for pool in each.retention_cost().pools]
        for each in (made, alone, same)
    ]
    assert promised[0] == [*promised[1][:2], promised[2][2]]


def test_what_a_hit_costs_where_windows_are_kept_without_tails():
    """From the last point that keeps windows, where that is later than from nothing."""
    made = plan(
        {
            Form.SWA_WINDOW: Retention.every(16),
            Form.UNCOMPRESSED_TAIL: Retention.none(),
        },
        stored_length=64,
    )
    again = []
    for point in range(GRID, 65, GRID):
        # The tail of 4, made of what the window of 9 and the chunk of 10 let through.
        fresh = (point - 4) // 10 * 10 - 9
        kept = (point - 4) // 16 * 16
        again.append(point - max(fresh, kept, 0))
    cost = made.retention_cost()
    assert cost.most_replayed == max(again)
    assert cost.mean_replayed == sum(again) / len(again)


def test_ends_need_far_fewer_blocks_than_every_block():
    spec = hc.CacheSpec.from_layers([WINDOW, FULL], block_tokens=4)
    sizes = {
        retention: hc.plan_capacity(
            spec,
            budget="64MiB",
            max_sequences=2,
            max_length=4096,
            max_chunk=8,
            stored_tokens=40_960,
            retention=retention,
            backend="cpu",
        )
        for retention in (Retention.every_block(), Retention.ends(), Retention.none())
    }
    every, ends, none = (made.blocks[0] for made in sizes.values())
    assert every - none > 10_000
    # Ten sequences, three points each, three blocks a window.
    assert ends - none == 10 * 3 * 3
    assert len({made.blocks[1] for made in sizes.values()}) == 1


def test_a_row_holds_back_its_last_grid_point():
    """A grid unit less one token more, in blocks and in columns."""
    every, ends = plan(Retention.every_block()), plan(Retention.ends())
    assert every.held_from(Form.SWA_WINDOW, 23) == 23
    assert ends.held_from(Form.SWA_WINDOW, 23) == 16
    assert ends.held_from(Form.SWA_WINDOW, 3) == 0
    for number in (0, 1, 3):
        assert ends.columns(number) > every.columns(number)


@pytest.mark.parametrize(("pool", "blocks"), [(0, 5), (1, 4), (3, 2)])
def test_blocks_of_one_point(pool, blocks):
    most = max(len(needed(pool, point)) for point in range(16, 800, GRID))
    assert point_blocks(SPEC.pools[pool], GRID) == most == blocks


@pytest.mark.parametrize(
    ("retention", "message"),
    [
        ({Form.FULL_KV: Retention.none()}, "FULL_KV has no retention policy"),
        ({Form.RECURRENT_STATE: Retention.ends()}, "RECURRENT_STATE has no"),
        (Retention.every(12), "give a multiple"),
        ({Form.SWA_WINDOW: Retention.every(4)}, "every 8 tokens"),
    ],
)
def test_policies_that_cannot_be(retention, message):
    with pytest.raises(ValueError, match=message):
        plan(retention)


def test_a_distance_is_positive():
    with pytest.raises(ValueError, match=r"got 0"):
        Retention.every(0)
    for wrong in (
        (Keep.EVERY, -5),
        (Keep.ENDS, 8),
        (Keep.NONE, 1.5),
        (Keep.EVERY, True),
    ):
        with pytest.raises(ValueError, match="distance of a Retention must be a whole"):
            Retention(*wrong)
    with pytest.raises(ValueError, match="is a Keep, got 'every'"):
        Retention("every")


def test_equal_policies_are_equal_plans():
    """Hashable, and the default however it is written."""
    assert plan(Retention.every_block()) == plan({})
    one = plan({Form.SWA_WINDOW: Retention.ends()})
    assert hash(one) == hash(plan({Form.SWA_WINDOW: Retention.ends()}))
    assert one.policy(Form.UNCOMPRESSED_TAIL) == Retention.every_block()


@settings(max_examples=60)
@given(
    policy=st.sampled_from(
        [Retention.every_block(), Retention.every(16), Retention.ends()]
    ),
    start=st.integers(0, 80),
    size=st.integers(1, 40),
    prompt=st.integers(1, 80),
)
# A prompt on the grid also keeps the point before.
@example(policy=Retention.ends(), start=3, size=30, prompt=24)
def test_a_step_ends_where_a_checkpoint_is_kept(policy, start, size, prompt):
    stop = start + size
    end = policy.step_end(start, stop, grid=GRID, prompt=prompt)
    inside = {p for p in kept_points(policy, prompt, 0) if start < p <= stop}
    if policy == Retention.ends():
        assert end == min(inside, default=stop)
    else:
        assert end == max(inside, default=stop)


def law(layers, point, checkpoints):
    """Where a replay up to ``point`` starts: windows widen it, states begin at one.

    ``layers``: sizes of windows, and ``"state"``; only states at the bottom.
    """
    start = point
    for layer in reversed(layers):
        if layer == "state":
            start = max((c for c in checkpoints if c <= start), default=0)
        else:
            start = max(0, start - layer + 1)
    return start


@settings(max_examples=60)
@given(
    window=POLICIES,
    state=POLICIES,
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    recurrent=st.booleans(),
    grows=st.booleans(),
    length=st.integers(1, 130),
)
@example(Retention.none(), Retention.none(), [3, 6], False, False, 20)
@example(Retention.every(16), Retention.none(), [3, 6], False, False, 31)
def test_what_a_hit_costs(window, state, sizes, recurrent, grows, length):
    """Against every grid point in turn, in plain Python."""
    kinds = [LayerSpec(local=Window(size, ROW)) for size in sizes]
    kept = {Form.SWA_WINDOW: kept_points(window, length, length)}
    policy = {Form.SWA_WINDOW: window}
    layers = list(sizes)
    if recurrent:
        kinds = [LayerSpec(recurrent=hc.RecurrentState(ROW)), *kinds]
        kept[Form.RECURRENT_STATE] = kept_points(state, length, length)
        policy[Form.RECURRENT_STATE] = state
        layers = ["state", *layers]
    last = length
    if not grows:
        # A state is of use alone: it lies lowest.  A window of 1 is kept by requiring
        # nothing.
        if set(sizes) == {1}:
            kept[Form.SWA_WINDOW] = set(range(GRID, length + 1, GRID))
        lowest = Form.RECURRENT_STATE if recurrent else Form.SWA_WINDOW
        last = max((p for p in kept[lowest] if p <= length), default=0)
    kinds = [*kinds, FULL] if grows else kinds
    spec = hc.CacheSpec.from_layers(kinds, block_tokens=GRID)
    made = hc.plan_capacity(
        spec,
        budget="8MiB",
        max_sequences=1,
        max_length=130,
        max_chunk=8,
        stored_length=length,
        retention=policy,
        backend="cpu",
    )
    again = []
    for point in range(GRID, last + 1, GRID):
        both = set.intersection(*kept.values())
        resumed = max((p for p in both if p <= point), default=0)
        states = kept.get(Form.RECURRENT_STATE, set())
        again.append(point - max(resumed, law(layers, point, states)))
    cost = made.retention_cost()
    assert cost.most_replayed == max(again, default=0)
    assert cost.end_replayed == (again[-1] if again else 0)
    assert cost.mean_replayed == pytest.approx(sum(again) / max(len(again), 1))
    assert cost.deepest_hit == last - last % GRID
    assert ("nothing hits" in made.report()) == (not again)


def test_the_report_states_the_cost():
    """A window of 10 in blocks of 2: five blocks, of 32 bytes each, at a point."""
    spec = hc.CacheSpec.from_layers(
        [WINDOW, FULL], block_tokens={Form.SWA_WINDOW: 2, Form.FULL_KV: 8}
    )
    made = hc.plan_capacity(
        spec,
        budget="8MiB",
        max_sequences=1,
        max_length=80,
        retention=Retention.every(40),
        backend="cpu",
    )
    (pool,) = made.retention_cost().pools
    size = spec.pools[0].block_bytes
    assert pool.point_bytes == 5 * size
    assert pool.bytes_per_1000_tokens == 1000 / 40 * 5 * size
    # Points at 8, 16, 24, 32 behind one that keeps: a replay of 9 at most.
    assert made.retention_cost().most_replayed == 9
    assert made.retention_cost().mean_replayed == (0 + 8 + 9 + 9 + 9) / 5
    text = made.report()
    assert "swa_window.0 is kept at every 40 tokens" in text
    assert "9 at most, 0 at the end" in text
    assert "a hit, at most at 80, runs" in text


@pytest.mark.parametrize("chunks", [Retention.none(), Retention.ends()])
def test_states_above_a_chunk_are_kept_where_one_starts(chunks):
    """There nothing of the chunk is required, whatever its policy."""
    kinds = [
        LayerSpec(local=Chunk(8, ROW)),
        LayerSpec(recurrent=hc.RecurrentState(ROW)),
        FULL,
    ]
    spec = hc.CacheSpec.from_layers(kinds, block_tokens=4)
    made = hc.plan_capacity(
        spec,
        budget="8MiB",
        max_sequences=1,
        max_length=64,
        max_chunk=8,
        retention={Form.SWA_WINDOW: chunks},
        backend="cpu",
    )
    cost = made.retention_cost()
    # From the last multiple of 8 before each point, and from 0 in the first chunk.
    assert cost.most_replayed == 4
    states = next(p for p in cost.pools if p.pool.startswith("recurrent"))
    assert states.policy == Retention.every_block()
