"""Replays that go on from what is held of some forms, by hand.

Every case is answered by the oracle, too.  Blocks are of four tokens, 24 tokens are
stored, and the prompt is longer: what is left of each pool decides.
"""

import numpy as np
import pytest
from solver_cases import (
    FREE_LOADS,
    ROW,
    Case,
    check_choice,
    check_levels,
    check_replay,
    chunk,
    compressed,
    full,
    kept_by,
    part_of,
    recurrent,
    window,
)

from hybridcache_jax.codes import Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.layers import Window
from hybridcache_jax.resume import Holdings, solve
from hybridcache_jax.spec import CacheSpec

BLOCK, BLOCKS = 4, 6
ALL = range(BLOCKS)
RESUMABLE, NEEDS_IO = Verdict.RESUMABLE, Verdict.NEEDS_IO
REPLAY, FULL = Verdict.NEEDS_PARTIAL_RECOMPUTE, Verdict.NEEDS_FULL_RECOMPUTE


def pool_of(spec, layer, part):
    """Number of the pool that stores a part of a layer."""
    return next(
        number
        for number, pool in enumerate(spec.pools)
        if layer in pool.layers and part_of(pool) == part
    )


def answer(layers, lost=(), away=(), checkpoints=(), cost=FREE_LOADS, num_tokens=25):
    """The solver's choice, after the oracle has agreed with it.

    Args:
      layers: the model.
      lost: by layer and part, numbers of the blocks that are nowhere.
      away: likewise, of those that lie in the outer tier only.
      checkpoints: positions of those on the device.
      cost: rates.
      num_tokens: length of the prompt.

    Returns:
      The verdict, the resume point, the start, and what is kept there, as layers and
      parts; the recurrent states not named.
    """
    spec = CacheSpec.from_layers(layers, block_tokens=BLOCK)
    device = [np.full(BLOCKS, BLOCK, np.int32) for _ in spec.pools]
    outer = [amounts.copy() for amounts in device]
    for where, blocks in dict(lost).items():
        number = pool_of(spec, *where)
        device[number][list(blocks)] = outer[number][list(blocks)] = 0
    for where, blocks in dict(away).items():
        device[pool_of(spec, *where)][list(blocks)] = 0
    points = {*range(0, BLOCK * BLOCKS + 1, BLOCK)}
    for number, pool in enumerate(spec.pools):
        if part_of(pool) == "recurrent":
            device[number] = outer[number] = sorted(checkpoints)
            points |= {*checkpoints}
    case = Case(
        spec=spec,
        points=np.array(sorted(points), np.int32),
        num_tokens=num_tokens,
        device=tuple(device),
        near=tuple(outer),
        outer=tuple(outer),
        cost=cost,
    )
    solution = case.solve()
    check_levels(case, solution)
    check_replay(case, solution)
    check_choice(case, solution)
    verdict, point, start = (
        int(number) for number in (solution.verdict, solution.point, solution.start)
    )
    kept = kept_by(case, start, solution.base) if start < point else ()
    names = [
        (spec.pools[number].layers[0], part_of(spec.pools[number])) for number in kept
    ]
    return (
        Verdict(verdict),
        point,
        start,
        [name for name in names if name[1] != "recurrent"],
    )


BOTH = (window(8), compressed(4, 1))
TAILS = {(1, "global_tail"): ALL}


def test_without_tails_a_replay_goes_on_from_windows():
    """Tail rows 20..23 are made from windows as they stood at 20: rows 13..19."""
    assert answer(BOTH, TAILS) == (REPLAY, 24, 20, [(0, "local")])


@pytest.mark.parametrize(
    ("blocks", "start", "kept"),
    [
        ((5,), 20, [(0, "local")]),
        ((4, 5), 16, [(0, "local")]),
        # Held at 12 only; rows 13..19 may as well be made anew.
        ((3, 4, 5), 13, []),
        # Held at 24, which no replay starts from, and nowhere else.
        ((0, 1, 2, 3), 13, []),
        (ALL, 13, []),
    ],
)
def test_the_last_point_at_which_the_windows_are_held(blocks, start, kept):
    lost = {**TAILS, (0, "local"): blocks}
    assert answer(BOTH, lost) == (REPLAY, 24, start, kept)


LOWER, UPPER = (0, "local"), (1, "local")


@pytest.mark.parametrize(
    ("blocks", "start", "kept"),
    [
        ((), 20, [LOWER]),
        ((5,), 20, [LOWER]),
        ((4, 5), 16, [LOWER]),
        # From nothing: rows 20..23 above need rows 13..23 below.
        ((3, 4, 5), 13, []),
        (ALL, 13, []),
        ((0, 1, 2, 3), 13, []),
    ],
)
def test_lower_windows_held_upper_windows_lost(blocks, start, kept):
    """The later of what the lower ones give and what nothing gives."""
    layers = (window(8), window(5), full())
    lost = {LOWER: blocks, UPPER: ALL}
    assert answer(layers, lost) == (REPLAY, 24, start, kept)


@pytest.mark.parametrize(("below", "above", "start"), [(8, 5, 13), (4, 10, 12)])
def test_upper_windows_alone_give_nothing(below, above, start):
    """Their next rows are made through the lower ones, which are lost."""
    layers = (window(below), window(above), full())
    for blocks in ((), ALL):
        lost = {LOWER: ALL, UPPER: blocks}
        assert answer(layers, lost) == (REPLAY, 24, start, [])


def test_two_windows_are_kept_together():
    """Rows 13..19 above and 17..19 below: neither is of use without the other."""
    layers = (window(4), window(12), compressed(4, 1))
    tails = {(2, "global_tail"): ALL}
    assert answer(layers, tails) == (REPLAY, 24, 20, [LOWER, UPPER])
    assert answer(layers, {**tails, LOWER: (4,)}) == (REPLAY, 24, 16, [LOWER, UPPER])
    # From nothing the tail's rows 20..23 ask for rows 9..23 above, 6..23 below.
    nothing = {**tails, LOWER: (0, 1, 2, 3, 4), UPPER: ALL}
    assert answer(layers, nothing) == (REPLAY, 24, 6, [])


def test_a_lost_chunk_begins_anew_on_its_boundary():
    """Nothing of it is required at 16, so the longer window above is enough."""
    layers = (chunk(8), window(9), window(2), full())
    lost = {LOWER: ALL, (2, "local"): ALL}
    assert answer(layers, lost, num_tokens=21) == (REPLAY, 20, 16, [UPPER])
    # At 20 the chunk is in its midst.
    assert answer(layers, lost) == (REPLAY, 24, 16, [UPPER])
    # Row 19 above asks for rows 11..19 of the window, and those for a chunk from 8 on.
    lost = {**lost, UPPER: (3,)}
    assert answer(layers, lost, num_tokens=21) == (REPLAY, 20, 8, [])


@pytest.mark.parametrize(
    ("seconds", "verdict", "start", "kept"),
    [
        (0, NEEDS_IO, 20, [LOWER]),
        # Two blocks for seven tokens.
        (3.4, NEEDS_IO, 20, [LOWER]),
        (3.6, REPLAY, 13, []),
    ],
)
def test_windows_are_loaded_to_replay_from_them(seconds, verdict, start, kept):
    """The history is at hand; rows 13..19 are waited for, or made anew."""
    spec = CacheSpec.from_layers(BOTH, block_tokens=BLOCK)
    cost = CostModel(1.0, seconds / spec.pools[pool_of(spec, *LOWER)].block_bytes)
    found = answer(BOTH, TAILS, away={LOWER: ALL}, cost=cost)
    assert found == (verdict, 24, start, kept)


def test_loaded_windows_against_windows_at_hand():
    """At 16 they are on the device, at 20 one block is not: four tokens of work."""
    spec = CacheSpec.from_layers(BOTH, block_tokens=BLOCK)
    nbytes = spec.pools[pool_of(spec, *LOWER)].block_bytes
    for seconds, verdict, start in ((3.9, NEEDS_IO, 20), (4.1, REPLAY, 16)):
        cost = CostModel(1.0, seconds / nbytes)
        found = answer(BOTH, TAILS, away={LOWER: (4, 5)}, cost=cost)
        assert found == (verdict, 24, start, [LOWER])


STATE = (window(6), recurrent(), compressed(4, 1))
STATE_TAILS = {(2, "global_tail"): ALL}


@pytest.mark.parametrize(
    ("checkpoints", "lost", "verdict", "start", "kept"),
    [
        ([8, 20], STATE_TAILS, REPLAY, 20, [LOWER]),
        ([8, 16], STATE_TAILS, REPLAY, 16, [LOWER]),
        # The windows are lost at the last checkpoint, not at the one before.
        ([8, 20], {**STATE_TAILS, LOWER: (4,)}, REPLAY, 8, [LOWER]),
        # Off the grid: rows 20 and 21 of the tails would have to be there.
        ([8, 20, 22], STATE_TAILS, REPLAY, 20, [LOWER]),
        ([8, 20, 22], {}, RESUMABLE, 22, []),
        # A state above lost windows can only be run from the beginning.
        ([8, 20], {LOWER: ALL}, FULL, 0, []),
        ([], STATE_TAILS, FULL, 0, []),
    ],
)
def test_states_windows_and_tails(checkpoints, lost, verdict, start, kept):
    point = 0 if verdict == FULL else 22 if verdict == RESUMABLE else 24
    found = answer(STATE, lost, checkpoints=checkpoints)
    assert found == (verdict, point, start, kept)


def test_kept_windows_off_the_grid():
    """A checkpoint makes 22 a resume point; rows 22 and 23 are made from it on."""
    layers = (window(6), recurrent(local=Window(3, ROW)), compressed(4))
    lost = {(1, "local"): ALL}
    found = answer(layers, lost, checkpoints=[8, 22])
    assert found == (REPLAY, 24, 22, [LOWER])


def test_kept_tails_off_the_grid():
    """At 24 the rows 20..23 are required: the first two are those held at 22."""
    layers = (recurrent(), compressed(4, 1), window(2))
    lost = {(2, "local"): (5,)}
    tails = (1, "global_tail")
    found = answer(layers, lost, checkpoints=[8, 22])
    assert found == (REPLAY, 24, 22, [tails])
    found = answer(layers, {**lost, tails: (5,)}, checkpoints=[8, 22])
    assert found == (RESUMABLE, 8, 8, [])


def test_what_need_not_be_kept_is_not():
    """Tails are held at 20, too, but those that 24 requires are made after it."""
    layers = (window(8), compressed(4, 1), window(5))
    lost = {(2, "local"): ALL}
    assert answer(layers, lost) == (REPLAY, 24, 20, [LOWER])


def test_a_pool_with_layers_above_and_below_a_lost_one():
    """At 24 the upper layer needs 19..23, made of what the lost one sees from 17 on."""
    layers = (window(6), window(3), window(6))
    assert answer(layers, {(1, "local"): ALL}) == (REPLAY, 24, 16, [LOWER])


def test_forms_are_kept_at_resume_points_only():
    """At 22 the lower windows are held, too; a row that began there would write over
    a block that others read."""
    spec = CacheSpec.from_layers((window(6), window(3)), block_tokens=BLOCK)
    whole = np.full(6, BLOCK, np.int32)
    found = solve(
        spec,
        np.arange(0, 25, 2, dtype=np.int32),
        np.int32(25),
        Holdings((whole, whole * 0)),
    )
    assert (int(found.replay_point), int(found.replay_start)) == (24, 20)
    assert int(found.replay_base) == 1
