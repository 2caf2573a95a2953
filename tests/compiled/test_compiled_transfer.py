"""Blocks that go to an outer tier and come back leave the rest of the pools alone."""

import functools

import jax
import numpy as np
import pytest

from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import Entries, LayerSpec
from hybridcache_jax.offload.transfer import Transfer
from hybridcache_jax.planes import block_in_memory
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import init
from pallas_kernels.compiled.environment import ENVIRONMENT
from pallas_kernels.compiled.matrix import process
from pallas_kernels.compiled.targets import compile_for, missing

FP8, BATCH = "float8_e4m3fn", 8
ENTRIES = {
    "bfloat16": Entry.kv(8, 128, "bfloat16"),
    "fp8": Entry(
        (
            Plane("k", 8, 128, FP8, scale="ks", run=128),
            Plane("v", 8, 128, FP8, scale="vs", run=128),
            Plane("ks", 8, 1),
            Plane("vs", 8, 1),
        )
    ),
    "fp8 beside bfloat16": Entry(
        (
            Plane("k", 1, 448, FP8, scale="s", run=64),
            Plane("s", 1, 8, "float8_e8m0fnu"),
            Plane("r", 1, 64, "bfloat16"),
        ),
        key=("k", "r"),
        value=("k", "r"),
    ),
}


def compiled(name, target, backend):
    """Bytes of the pool, and what both directions take beside it."""
    layers = [LayerSpec(global_=Entries(ENTRIES[name]))] * 2
    plan = plan_capacity(
        CacheSpec.from_layers(layers, block_tokens=128),
        budget="4GiB",
        max_sequences=8,
        max_length=32_768,
        max_chunk=1,
        backend=backend,
        staging_blocks=BATCH,
    )
    transfer, spec, shape = Transfer(plan), plan.spec.pools[0], jax.ShapeDtypeStruct
    memory = jax.eval_shape(functools.partial(init, plan)).pools[0]
    ids = shape((BATCH,), np.int32), shape((), np.int32)
    blocks = {}
    for plane in spec.entry.planes:
        block = block_in_memory(spec, plane, backend, lanes=False)
        blocks[plane.name] = shape((len(layers), BATCH, *block.shape), block.dtype)
    found = {}
    for direction, function, arguments, donated in (
        ("out", transfer._taken, (memory, *ids), ()),
        ("in", transfer._put, (memory, *ids, blocks), (0,)),
    ):
        program, _ = compile_for(
            target, functools.partial(function, 0), arguments, donated
        )
        taken = program.memory_analysis()
        assert taken is not None
        found[direction] = {
            "temporary": taken.temp_size_in_bytes,
            "aliased": taken.alias_size_in_bytes,
            "results": taken.output_size_in_bytes,
            # Compilers for GPUs say nothing of it.
            "accessed": (program.cost_analysis() or {}).get("bytes accessed", 0),
        }
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(memory)), found


@pytest.mark.slow
@pytest.mark.parametrize(("target", "backend"), [("v5e", "tpu"), ("h200", "gpu")])
@pytest.mark.parametrize("name", ENTRIES)
def test_no_pool_is_passed_over(name, target, backend, monkeypatch):
    if missing(target) is not None:
        pytest.skip(str(missing(target)))
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    with process() as executor:
        pool, found = executor.submit(compiled, name, target, backend).result()
    print(name, target, pool, found)
    assert pool > 3 * 2**30
    for each in found.values():
        # The text of TPU programs has copies of 8 bit pools, from one tiling to another
        # that for rows of 128 bytes is the same.  No memory holds such a copy, and the
        # bytes that are counted have no pass over a pool.
        assert each["temporary"] < 64 * 2**20
        assert each["accessed"] < pool / 16
    assert found["out"]["results"] < 64 * 2**20
    assert found["in"]["aliased"] >= pool
