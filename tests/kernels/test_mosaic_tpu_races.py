"""The TPU kernels in Pallas' TPU interpreter: two cores, and NaN in fresh memory.

It finds reads of what a copy still writes, and outputs that two cores write.  Where it
keeps what it found is no public name of JAX.
"""

import contextlib
import dataclasses
import os
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_mosaic_tpu_selected as selected
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from test_mosaic_tpu import LOCALS as WINDOWS
from test_mosaic_tpu import ROWS, Drawn, read_paged, read_window

from pallas_kernels.mosaic_tpu.sizes import BlockSizes

TWO_CORES = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan", num_cores_or_threads=2
)
# A full row, one that starts late, one that reads nothing.
CASE = {
    "seed": 3,
    "start": np.array([30, 9, 0]),
    "since": np.array([0, 3, 0]),
    "runs": np.array([True, True, False]),
    "lost": False,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2 if hasattr(os, "sched_getaffinity") else False,
        reason="the interpreter waits for ever for its second core on one CPU",
    ),
]


@pytest.fixture(autouse=True)
def fresh_interpreter():
    yield
    pltpu.reset_tpu_interpret_mode_state()


def races_in(run):
    """Whether the interpreter finds races in what ``run`` does."""
    try:
        jax.block_until_ready(run())
    except Exception as error:
        # JAX 0.12 stops at a race, 0.10 remembers it.
        if "RACE DETECTED" in str(error):
            return True
        raise
    races = interpret_pallas_call.races
    assert races is not None, "the interpreter did not look for races"
    return races.races_found


def windows(interpret=TWO_CORES):
    local = "more than a block"
    drawn = Drawn(CASE, "grouped", 5, ring=True)
    got = read_window(
        *drawn.arguments(), layout="grouped", local=local, interpret=interpret
    )
    drawn.check(got, WINDOWS[local].first_visible)


def histories():
    drawn = Drawn(CASE, "grouped")
    got = read_paged(
        *drawn.arguments(),
        layout="grouped",
        sizes=BlockSizes(2, 8),
        interpret=TWO_CORES,
    )
    drawn.check(got)


def entries():
    selected.check_selected("grouped", 1, CASE, 0.2, interpret=TWO_CORES)


def ranking():
    random = np.random.default_rng(3)
    selected.check_ranked(
        "float32 in groups",
        {
            "random": random,
            "blocks": 19,
            "table": random.permutation(19)[:15].reshape(ROWS, 5),
            "positions": np.array([[30], [17], [0]]) + np.arange(selected.WIDTH),
            "since": np.array([0, 5, 0]),
            "end": np.array([35, 20, 0]),
            "upto": selected.WIDTH - 1,
        },
        interpret=TWO_CORES,
    )


@pytest.mark.parametrize("read", [windows, histories, entries, ranking])
def test_no_read_races(read):
    assert not races_in(read)


def test_steps_that_cores_share_are_found():
    """The kernel's own outputs, if its steps were said to be independent."""
    params = pltpu.CompilerParams(dimension_semantics=("parallel",) * 3)
    # Of another seed, so that no other test gets this kernel from JAX's cache.
    interpret = dataclasses.replace(TWO_CORES, random_seed=1)

    def run():
        # The result depends on which core comes last.
        with contextlib.suppress(AssertionError):
            windows(interpret)

    with mock.patch.object(pltpu, "CompilerParams", return_value=params):
        assert races_in(run)


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_is_not_waited_for_is_found(waits):
    def kernel(source, out, buffer, semaphore):
        copy = pltpu.make_async_copy(source, buffer, semaphore)
        copy.start()
        if waits:
            copy.wait()
        out[...] = buffer[...]
        if not waits:
            copy.wait()

    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    run = pl.pallas_call(
        kernel,
        out_shape=shape,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        interpret=TWO_CORES,
    )
    assert races_in(lambda: run(jnp.ones((8, 128), jnp.float32))) != waits
