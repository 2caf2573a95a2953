"""K12: what left one mesh comes back on another as the same logical arrays.

A payload is a whole block, whatever devices it was copied from: it can be looked at
without any.  Meshes need devices, so the examples run in a process that has four.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc

pytestmark = pytest.mark.slow
WORKER = pathlib.Path(__file__).with_name("topology_worker.py")
BLOCK, DIM = 4, 2
MESHES = st.sampled_from([1, 2, 4])


@pytest.fixture(scope="module")
def worker():
    """Asks the process with four devices."""
    root = str(pathlib.Path(hc.__file__).parents[1])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(
        [sys.executable, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(values: np.ndarray, before: int, after: int) -> dict:
            example = {"values": values.tolist(), "before": before, "after": after}
            asked.write(json.dumps(example) + "\n")
            asked.flush()
            return json.loads(answers.readline())

        yield ask
        asked.close()


def expect(found: dict, values: np.ndarray, after: int) -> None:
    """Payloads, the loaded pool, and each device's part of it, head by head."""
    tokens, heads, _ = values.shape
    blocks = np.moveaxis(values.reshape(-1, BLOCK, heads, DIM), 2, 1)
    assert found["plain"]
    assert found["sealed"]
    assert np.array_equal(found["outside"], blocks)
    assert found["ready"]
    assert found["length"] == tokens
    assert np.array_equal(found["whole"], blocks)
    assert len(found["devices"]) == after
    if heads % after == 0:
        parts = np.concatenate([np.array(part) for part in found["devices"]], axis=1)
        assert np.array_equal(parts, blocks)
    else:
        assert all(np.array_equal(part, blocks) for part in found["devices"])


@pytest.mark.kind("K12")
@pytest.mark.outer_tier("K12")
@settings(max_examples=8)
@given(
    heads=st.sampled_from([2, 8]),
    before=MESHES,
    after=MESHES,
    blocks=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_any_mesh_gives_back_what_another_moved_out(
    worker, heads, before, after, blocks, seed
):
    """Heads are divided where their number allows it, else copied to each device."""
    shape = (blocks * BLOCK, heads, DIM)
    values = np.random.default_rng(seed).integers(1, 1000, shape).astype(np.float32)
    expect(worker(values, before, after), values, after)


@pytest.mark.outer_tier("B48")
@pytest.mark.parametrize("after", [2, 1])
def test_b48_eight_heads_over_four_shards_come_back_over_fewer(worker, after):
    """Heads 0 to 7 in order: every value names its token and its head."""
    token, head, at = np.ogrid[: 2 * BLOCK, :8, :DIM]
    values = (1 + 100 * token + 10 * head + at).astype(np.float32)
    expect(worker(values, 4, after), values, after)
