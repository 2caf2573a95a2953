"""The suite for devices, interpreted: what is right passes, what is wrong does not."""

import dataclasses
import json

import numpy as np
import pytest

from pallas_kernels.choice import Kernel
from pallas_kernels.compiled.accelerators import GPUS, TPUS
from pallas_kernels.compiled.cases import Case, cases
from pallas_kernels.compiled.layouts import heads, index_key
from pallas_kernels.contracts import KERNELS
from pallas_kernels.device import public
from pallas_kernels.device.__main__ import main
from pallas_kernels.device.drawn import Drawn
from pallas_kernels.device.results import (
    REHEARSAL,
    WRITTEN,
    Result,
    Run,
    keep,
    kept,
    markdown,
)
from pallas_kernels.device.step import Sizes
from pallas_kernels.device.suite import run_one, timed_sizes
from pallas_kernels.evidence import evidence
from pallas_kernels.merge import Partial
from pallas_kernels.mosaic_gpu import interpreter
from pallas_kernels.stored import read_planes

TINY = Sizes(rows=2, tokens=70, selected=9)
XLA = Kernel("xla", "to test the suite", interpret=True)
READS = {
    "window_decode": heads(2, 8, "float32"),
    "paged_decode": heads(2, 8, "float8_e4m3fn"),
    "indexed_decode": heads(1, 8, "bfloat16"),
    "indexer_scores": index_key("float32"),
}


@pytest.mark.parametrize("read", READS)
def test_plain_xla_is_right(read):
    # Queries select entries that only later ones see.
    sizes = dataclasses.replace(TINY, selected=TINY.tokens)
    result = run_one(Case(read, "small", READS[read], 4, 8), XLA, sizes)
    assert result.good
    assert result.error < 1e-5
    assert result.seconds is None


@pytest.mark.parametrize("read", ["paged_decode", "indexed_decode"])
def test_a_read_of_other_entries_is_wrong(read):
    case = Case(read, "small", READS[read], 4, 2)
    drawn = Drawn(case, TINY, by_lanes=False)
    function, _ = case.program(XLA, "gpu")
    table = drawn.arguments["table"]
    right = drawn.error(function(drawn.planes, drawn.arguments))
    arguments = {**drawn.arguments, "table": table[::-1]}
    assert right < 1e-5 < 0.1 < drawn.error(function(drawn.planes, arguments))


def test_a_ranking_of_other_keys_is_wrong():
    drawn = Drawn(
        Case("indexer_scores", "small", READS["indexer_scores"], 4, 1), TINY,
        by_lanes=False,
    )  # fmt: skip
    assert drawn.error(np.zeros((2, 1, 1, 9), int)) == np.inf


def test_bytes_are_those_of_the_entries_that_are_read():
    case = Case("indexed_decode", "small", READS["indexed_decode"], 4, 1)
    assert Drawn(case, TINY, by_lanes=False).nbytes == 2 * 9 * 2 * 8 * 2


def test_runs_come_back_and_their_table_was_made_from_them(tmp_path):
    assert WRITTEN.read_text() == markdown(kept())
    result = Result("paged_decode", "rows", "int8", 1, "mosaic_gpu", 0.5, 0.1, 4096)
    timed = dataclasses.replace(
        result,
        error=0.01,
        seconds=1e-6,
        xla_seconds=2e-6,
        layout="others",
        public="theirs",
        public_error=0.02,
        public_seconds=3e-6,
    )
    run = Run("A card", "gpu", "2026-01-01", {"jax": "1"}, (timed,), bandwidth=5e9)
    path = tmp_path / "kept.json"
    path.write_text("[]")
    keep(dataclasses.replace(run, results=(result,)), path)
    assert not kept(path)[0].right("mosaic_gpu", "paged_decode", "int8")
    keep(run, path)
    assert kept(path) == (run,)
    assert kept(path)[0].right("mosaic_gpu", "paged_decode", "int8")
    assert not kept(path)[0].right("mosaic_gpu", "paged_decode", "float32")
    text = markdown([run])
    row = "| paged_decode | others | int8 | 1 | mosaic_gpu | 1.0e-02 | 4 (0.82) | 2.00 "
    row += "| 3.00 theirs, error 2.0e-02 |"
    assert row in text.splitlines()
    with pytest.raises(ValueError, match="not kept"):
        keep(dataclasses.replace(run, device=REHEARSAL), path)
    assert "no run is kept of: TPU (not run)" in text


@pytest.mark.slow
def test_all_that_happens_on_an_accelerator_is_rehearsed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["device", "--rehearse", "--json"])
    assert main() == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["device"] == REHEARSAL
    results = [Result(**each) for each in printed["results"]]
    kernels = ["mosaic_tpu"] + ["mosaic_gpu"] * (interpreter.missing() is None)
    assert {(each.operation, each.implementation) for each in results} == {
        (read, kernel) for read in READS for kernel in kernels
    }
    assert all(each.good and each.seconds and each.xla_seconds for each in results)
    near = [each for each in results if each.public_seconds is not None]
    assert {each.operation for each in near} == {"window_decode", "paged_decode"}
    assert all(each.public_error < 1e-2 for each in near)
    indexed = [each for each in results if each.operation.startswith("index")]
    assert all("none " in str(each.public) for each in indexed)
    text = markdown([Run(**{**printed, "results": tuple(results)})])
    assert "## rehearsal (interpreted)" in text


def test_the_kernels_of_jax_read_the_same():
    case = Case("paged_decode", "small", heads(2, 64, "bfloat16"), 4, 1)
    drawn = Drawn(case, TINY, by_lanes=False)
    near = public.nearest(
        case, "gpu", drawn.pages, drawn.arguments, scale=0.1, interpret=True
    )
    out = np.asarray(near.function(*near.arguments))
    assert drawn.error(Partial(out, out, np.ones(out.shape[:-1]))) < 1e-2


def test_which_of_them_is_near():
    near = {
        backend: {
            (case.operation, case.layout, case.dtype, case.width)
            for case in cases()
            if public.reason_for_none(case, backend) is None
        }
        for backend in ("tpu", "gpu")
    }
    rows = [(8, 128), (1, 256)]
    layouts = [f"{n} head{'s' * (n > 1)} of {dim}" for n, dim in rows]
    reads = ("window_decode", "paged_decode")
    assert near["tpu"] == {
        (read, layout, "bfloat16", width)
        for read in reads for layout in layouts for width in (1, 16)
    }  # fmt: skip
    layouts += ["8 heads of 64", "1 head of 64"]
    assert near["gpu"] == {
        ("paged_decode", layout, dtype, 1)
        for layout in layouts for dtype in ("bfloat16", "float32")
    }  # fmt: skip


def test_what_is_timed_exceeds_caches_and_is_soon_drawn():
    for case in cases():
        sizes = timed_sizes(case)
        width = sum(plane.width for plane in read_planes(case.pool.entry))
        elements = sizes.rows * sizes.tokens // case.pool.entry_tokens * width
        assert elements <= 3 << 26, case
        assert elements >= 1 << 25 or sizes.tokens == 1 << 17, case


@pytest.mark.parametrize(
    ("name", "backend"), [("mosaic_tpu", "tpu"), ("mosaic_gpu", "gpu")]
)
def test_every_kernel_is_known_to_be_compiled_and_interpreted(name, backend):
    targets = {"tpu": set(TPUS), "gpu": set(GPUS) - {"a100"}}[backend]
    for case in cases():
        if KERNELS[name][case.operation].refusal_of(case.pool) is not None:
            continue
        found = evidence(name, case.operation, case.dtype, backend=backend)
        assert set(found.compiled) == targets, case
        assert found.interpreted, case
        assert case.layout in found.layouts
        assert found.words.startswith(f"compiled for {', '.join(found.compiled)} (of ")
        assert found.words.endswith("; interpreted")
        assert found.hardware == ()
