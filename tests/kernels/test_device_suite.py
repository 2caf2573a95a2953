"""The suite for devices, interpreted: what is right passes, what is wrong does not."""

import dataclasses

import numpy as np
import pytest

from pallas_kernels.choice import Kernel
from pallas_kernels.compiled.cases import Case, cases
from pallas_kernels.compiled.layouts import heads, index_key
from pallas_kernels.device.drawn import Drawn, Sizes
from pallas_kernels.device.results import (
    WRITTEN,
    Result,
    Run,
    keep,
    kept,
    markdown,
)
from pallas_kernels.device.suite import run_one
from pallas_kernels.evidence import evidence

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
    result = run_one(Case(read, "small", READS[read], 4, 2), XLA, TINY)
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
        result, error=0.01, seconds=1e-6, xla_seconds=2e-6, layout="others"
    )
    run = Run("A card", "gpu", "2026-01-01", {"jax": "1"}, (timed,))
    path = tmp_path / "kept.json"
    path.write_text("[]")
    keep(dataclasses.replace(run, results=(result,)), path)
    assert not kept(path)[0].right("mosaic_gpu", "paged_decode", "int8")
    keep(run, path)
    assert kept(path) == (run,)
    assert kept(path)[0].right("mosaic_gpu", "paged_decode", "int8")
    assert not kept(path)[0].right("mosaic_gpu", "paged_decode", "float32")
    text = markdown([run])
    row = "| paged_decode | others | int8 | 1 | mosaic_gpu | 1.0e-02 | 4 | 2.00 |"
    assert row in text.splitlines()
    assert "no run is kept of: TPU (not run)" in text


def test_nothing_is_claimed_that_did_not_run():
    for dtype in {case.dtype for case in cases()}:
        found = evidence("mosaic_gpu", "paged_decode", dtype, backend="gpu")
        assert found.hardware == ()
