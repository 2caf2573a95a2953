"""The TPU kernels compiled for accelerators that are not here, and what they copy.

In processes of their own: what the compilers read from the environment has to be there
before JAX is imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels.compiled.environment import ENVIRONMENT
from pallas_kernels.compiled.targets import TPUS, missing

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing("v5e") is not None, reason=str(missing("v5e"))),
]


def run(*command):
    path = {"PYTHONPATH": str(ROOT), **ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | path,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("target", TPUS)
def test_every_case_compiles_and_copies_no_pool(target):
    command = ["-m", "pallas_kernels.compiled", "--target", target, "--json"]
    code, printed = run(*command, "--dtype", "bfloat16")
    bad = [each for each in printed["outcomes"] if not each["good"]]
    assert (bad, code) == ([], 0)
    found = {each["implementation"] for each in printed["outcomes"]}
    assert found == {"mosaic_tpu"}
    assert len(printed["outcomes"]) >= 20
    # Queries of 16 positions are 20 MB at most, the smallest plane is 134 MB.
    assert max(each["temporary_bytes"] for each in printed["outcomes"]) < 2**24


NARROW = """
import json
from pallas_kernels.choice import Kernel
from pallas_kernels.compiled.cases import Case, CaseEntry, CasePlane, CasePool
from pallas_kernels.compiled.copies import large_moves
from pallas_kernels.compiled.targets import compile_for

entry = CaseEntry((CasePlane("k", 1, 64, "bfloat16"),), ("k",), ("k",))
case = Case("paged_decode", "narrow", CasePool(entry), 8, 1)
compiled, _ = compile_for("v5e", *case.program(Kernel("mosaic_tpu", "forced")))
print(json.dumps(large_moves(compiled, case.pool_bytes)))
"""


def test_the_layout_that_the_contract_refuses_would_copy_the_pool():
    code, moves = run("-c", NARROW)
    assert code == 0
    assert any("bf16[2,8192,64,64]" in move for move in moves), moves
