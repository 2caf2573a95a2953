"""What kernels move: counted anew for some, the goal held by all that can."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.compiled.cases import cases
from pallas_kernels.contracts import KERNELS
from pallas_kernels.lanes import LANES
from pallas_kernels.mosaic_tpu import blocks
from pallas_kernels.traffic import fetched
from pallas_kernels.traffic.amounts import GOAL, Amounts, keep, kept
from pallas_kernels.traffic.counting import count
from pallas_kernels.traffic.table import WRITTEN, markdown

CASES = {case.identity: case for case in cases()}
BRIEF = [
    ("window_decode", "8 heads of 64", "bfloat16", 1),
    ("paged_decode", "latent 512 + 128", "float8_e4m3fn", 1),
    ("indexed_decode", "latent 512 + 128", "float8_e4m3fn", 1),
    ("indexer_scores", "index key of 128", "bfloat16", 1),
]


def case_of(each):
    return CASES[each.operation, each.layout, each.dtype, each.width]


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("case", BRIEF, ids=lambda case: case[0])
def test_what_is_kept_is_what_kernels_move_now(case, implementation):
    known = [
        each
        for each in kept()
        if case_of(each) is CASES[case]
        if (each.implementation, each.tokens) == (implementation, 1024)
    ]
    assert known == [count(CASES[case], implementation, 1024)]


def test_every_case_is_kept_and_the_table_was_made_from_it(tmp_path):
    assert WRITTEN.read_text() == markdown(kept())
    keep(kept(), tmp_path / "kept.json")
    assert kept(tmp_path / "kept.json") == kept()
    known = {(each.implementation, case_of(each).identity) for each in kept()}
    for name, reads in KERNELS.items():
        wanted = {
            (name, case.identity)
            for case in CASES.values()
            if reads[case.operation].refusal_of(case.pool) is None
        }
        assert {each for each in known if each[0] == name} == wanted


def whole_rows(case):
    """Whether planes are as wide as rows of 128 lanes, so that nothing is padded."""
    entry = case.pool.entry
    return all(p.width % LANES == 0 for p in (*entry.key_planes, *entry.value_planes))


def test_the_goal_is_held_where_nothing_stands_in_the_way():
    long = [each for each in kept() if each.width == 1 and each.tokens >= 8192]
    for each in long:
        tpu, case = each.implementation == "mosaic_tpu", case_of(each)
        if each.operation != "indexed_decode" or not tpu:
            # But for the first and the last block, nothing comes that no query reads.
            assert each.edges > 0.95, each
            assert each.padding > 0.97 or (tpu and not whole_rows(case)), each
            # A GPU's thread blocks copy again what the first of them brought.
            assert each.again == 1 or not tpu, each
        if each.operation != "indexed_decode" and whole_rows(case):
            assert each.needed / each.distinct > GOAL, each
    assert all(each.ratio >= GOAL or each.reasons for each in kept())
    windows = [each for each in kept() if each.operation == "window_decode"]
    assert {each.tokens for each in windows} == {128, 1024, 8192}
    # The rows of a window are longer than it, and cost nothing.
    assert all(each.edges > GOAL for each in windows if each.tokens > 1000)


def test_reasons_are_the_parts_that_are_small():
    one = Amounts("mosaic_tpu", "paged_decode", "x", "int8", 1, 9, 80, 100, 100, 100, 0)
    assert one.reasons == ("padding",)
    assert dataclasses.replace(one, held=80, distinct=80).reasons == ("again",)
    selected = dataclasses.replace(one, operation="indexed_decode", held=80)
    assert selected.reasons == ("strips",)
    assert dataclasses.replace(one, needed=86).reasons == ()


def test_blocks_are_counted_as_the_grid_goes():
    memory = np.zeros((4, 8, LANES), np.float32)
    numbers = jnp.array([3, 3, 1, 1, 3, 3], jnp.int32)
    with fetched.recorded() as found:
        result = pl.pallas_call(
            lambda *refs: None,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(2, 3),
                in_specs=[
                    pl.BlockSpec((1, 8, LANES), lambda i, j, n: (n[3 * i + j], 0, 0))
                ],
                out_specs=pl.BlockSpec((8, LANES), lambda i, j, n: (i, 0)),
            ),
            out_shape=jax.ShapeDtypeStruct((16, LANES), jnp.bfloat16),
        )(numbers, memory)
    assert result.shape == (16, LANES)
    brought, written = found
    assert brought.array is memory
    assert brought.blocks[:, 0].tolist() == [3, 1, 3]
    assert (brought.nbytes, written.nbytes) == (8 * LANES * 4, 8 * LANES * 2)
    assert written.blocks.tolist() == [[0, 0], [1, 0]]


def test_a_schedule_that_fetches_more_is_seen():
    case = CASES["window_decode", "1 head of 256", "bfloat16", 1]
    good = count(case, "mosaic_tpu", 1024)

    def careless(first, stop, step, place, count):
        return first + step * count + place + 0 * stop

    with mock.patch.object(blocks, "number_at", careless):
        worse = count(case, "mosaic_tpu", 1024)
    assert worse.needed == good.needed
    assert worse.moved > good.moved
