"""Every read compiled for accelerators that are not here, and what is kept of that.

In processes of their own: what the compilers read from the environment has to be there
before JAX is imported.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels.compiled import sources
from pallas_kernels.compiled.cases import cases
from pallas_kernels.compiled.environment import ENVIRONMENT
from pallas_kernels.compiled.matrix import WANTED, outdated
from pallas_kernels.compiled.outcomes import Outcome, Outcomes, keep, kept
from pallas_kernels.compiled.sources import files, fingerprint
from pallas_kernels.compiled.table import WRITTEN, markdown
from pallas_kernels.compiled.targets import missing
from pallas_kernels.contracts import KERNELS

ROOT = Path(__file__).parents[2]
# Decoding in bfloat16; every read for one TPU and one GPU, whole histories for others.
EVERY_READ = ("v5e", "h200")


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
    return json.loads(done.stdout.splitlines()[-1])


def of_here(target):
    """What is kept of what the slow test compiles for a target."""
    return {
        (*each.case, each.implementation): each
        for each in kept().outcomes
        if (each.target, each.dtype, each.width) == (target, "bfloat16", 1)
        if target in EVERY_READ or each.operation == "paged_decode"
    }


@pytest.mark.slow
@pytest.mark.parametrize("target", WANTED)
def test_what_is_kept_is_true(target):
    if missing(target) is not None:
        pytest.skip(str(missing(target)))
    command = ["-m", "pallas_kernels.compiled", "--target", target, "--json"]
    command += ["--dtype", "bfloat16", "--width", "1"]
    if target not in EVERY_READ:
        command += ["--operation", "paged_decode"]
    printed = run(*command)
    found = {}
    for each in printed["outcomes"]:
        del each["good"]
        outcome = Outcome(**{**each, "moves": tuple(each["moves"])})
        found[(*outcome.case, outcome.implementation)] = outcome
    known = of_here(target)
    assert found.keys() == known.keys()
    for name, outcome in found.items():
        assert outcome.good == known[name].good, outcome
        # Other versions of a compiler may need a little more.
        assert outcome.temporary_bytes < known[name].temporary_bytes + 2**20, outcome


def test_what_is_kept_has_every_case_and_its_table_was_made_from_it():
    outcomes = kept()
    assert WRITTEN.read_text() == markdown(outcomes)
    wanted = {(target, *case.identity) for target in WANTED for case in cases()}
    assert {(each.target, *each.case) for each in outcomes.outcomes} == wanted


@pytest.mark.parametrize("target", WANTED)
def test_what_is_kept_was_compiled_from_the_text_that_is_here(target):
    changed = outdated(target, cases(), kept())
    assert not changed, "run python -m pallas_kernels.compiled --outdated --write"


def test_a_kernel_is_another_one_when_its_text_changes(monkeypatch):
    read, name = "window_decode", "mosaic_tpu"
    before = fingerprint(read, name, 1)
    assert before == fingerprint(read, name, 1) != fingerprint(read, name, 2)
    assert before != fingerprint("paged_decode", name, 1)
    parts = {path.stem for path in files(f"pallas_kernels.{read}.{name}")}
    assert {"blocks", "entries", "attend", "places", "lanes", "reach"} <= parts
    assert "selected" not in parts
    of = Path.read_text
    for new, same in (("x = 1  # so\n\n", False), ("# so\n\n'so'\n", True)):
        sources._code.cache_clear()
        monkeypatch.setattr(
            Path,
            "read_text",
            lambda path, new=new: of(path) + (new if path.stem == "attend" else ""),
        )
        assert (fingerprint(read, name, 1) == before) == same
    sources._code.cache_clear()


def test_every_kernel_compiles_and_copies_no_pool():
    by_kernel = [each for each in kept().outcomes if each.implementation != "xla"]
    assert [each for each in by_kernel if not each.good] == []
    compiled = {(each.implementation, each.operation) for each in by_kernel}
    assert compiled == {(name, read) for name in KERNELS for read in KERNELS[name]}
    # Queries of 16 positions are 20 MB at most, the smallest layer is 67 MB.
    assert max(each.temporary_bytes for each in by_kernel) < 20 * 2**20


def outcome(target, **changes):
    made = Outcome(target, "paged_decode", "rows", "int8", 1, "mosaic_gpu")
    return dataclasses.replace(made, **changes)


def test_what_is_kept_comes_back_and_is_replaced_by_case(tmp_path):
    moved = outcome("b200", temporary_bytes=3 << 19, moves=("copy s8[4]",))
    first = Outcomes({"h200": {"jax": "1"}}, (outcome("h200", refusal="no"),))
    made = first.with_newer("b200", {"jax": "1"}, [moved])
    made = made.with_newer("h200", {"jax": "2"}, [outcome("h200")])
    keep(made, tmp_path / "kept.json")
    assert kept(tmp_path / "kept.json") == made
    assert set(made.outcomes) == {moved, outcome("h200")}
    lines = markdown(made.only([moved.case])).splitlines()
    assert "| paged_decode | rows | int8 | 1 | 1.5 copies | 0.0 |" in lines
    assert "- h200: jax 2" in lines
    assert made.only([]).outcomes == ()
    assert made.compiled_for("mosaic_gpu", "paged_decode", "int8") == ("h200",)
    wide = outcome("h200", width=16, refusal="too wide")
    made = made.with_newer("h200", {"jax": "2"}, [wide])
    assert len(made.outcomes) == 3
    assert made.compiled_for("mosaic_gpu", "paged_decode", "int8") == ()


NARROW = """
import json
from pallas_kernels.choice import Kernel
from pallas_kernels.compiled.cases import Case
from pallas_kernels.compiled.copies import large_moves
from pallas_kernels.compiled.layouts import CaseEntry, CasePlane, CasePool
from pallas_kernels.compiled.targets import compile_for

entry = CaseEntry((CasePlane("k", 1, 64, "bfloat16"),), ("k",), ("k",))
case = Case("paged_decode", "narrow", CasePool(entry), 8, 1)
found = {}
for layout in ("tpu", "cpu"):
    program = case.program(Kernel("xla", "to compare"), layout)
    compiled, _ = compile_for("v5e", *program)
    found[layout] = large_moves(compiled, case.layer_bytes(layout))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(missing("v5e") is not None, reason=str(missing("v5e")))
def test_without_lanes_the_pool_would_be_copied():
    moves = run("-c", NARROW)
    assert moves["tpu"] == []
    assert any("bf16[2,8192,64,64]" in move for move in moves["cpu"]), moves


LONG = """
import json
from pallas_kernels.choice import Kernel
from pallas_kernels.compiled import cases, layouts
from pallas_kernels.compiled.targets import compile_for

cases.ROWS, cases.COLUMNS = 64, 4096
kernel, used = Kernel("mosaic_tpu", "forced"), {}
for operation in ("paged_decode", "indexed_decode"):
    case = cases.Case(operation, "long", layouts.latent(128, "bfloat16"), 128, 1)
    compiled, _ = compile_for("v5e", *case.program(kernel, "tpu"))
    used[operation] = compiled.memory_analysis().temp_size_in_bytes
print(json.dumps(used))
"""


@pytest.mark.slow
@pytest.mark.skipif(missing("v5e") is not None, reason=str(missing("v5e")))
def test_block_tables_that_scalar_memory_does_not_hold():
    assert max(run("-c", LONG).values()) < 2**20
