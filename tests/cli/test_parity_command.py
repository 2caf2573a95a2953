"""``hybridcache parity``: what it says of a right model, a wrong one, and bad files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hybridcache_jax.cli import main

GOLDEN = Path(__file__).parents[1] / "goldens" / "olmo3"
TOKENS = 22


@pytest.fixture(autouse=True)
def _plain_precision():
    """The command sets the precision of matrix products itself."""
    import jax

    with jax.default_matmul_precision("default"):
        yield


@pytest.fixture
def folder(tmp_path):
    """One short sequence of a reference: three window layers of 8, a full one."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, tmp_path / name)
    expected = load_file(GOLDEN / "expected.safetensors")
    rewrite(
        tmp_path,
        tokens=expected["tokens"][:1, :TOKENS],
        logits=expected["logits"][:1, :TOKENS],
    )
    return tmp_path


def rewrite(folder, **tensors):
    parts = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    save_file(parts, folder / "expected.safetensors")


def parity(folder, capsys, *more):
    code = main(["parity", str(folder), "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def test_a_model_that_is_right(folder, capsys):
    code, report = parity(folder, capsys, "--block-tokens", "5")
    assert code == 0
    assert report["passed"]
    assert report["tolerance"] == 1e-4
    assert (report["grid"], report["audit"]) == (5, 13)
    assert report["resume_points"] == [5, 10, 15, 20]
    assert report["state_difference"] == 0.0
    ways = {way["name"]: way for way in report["ways"]}
    assert list(ways) == [
        "one shot",
        "token by token",
        "ragged chunks",
        "stopped and continued",
        "unequal rows",
        "resumed",
    ]
    assert ways["resumed"]["runs"] == 4
    assert all(0 < way["difference"] < 1e-4 for way in ways.values())


def test_a_model_that_is_wrong(folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    config["sliding_window"] -= 1
    (folder / "config.json").write_text(json.dumps(config))
    code, report = parity(folder, capsys)
    assert code == 1
    assert not report["passed"]
    for way in report["ways"]:
        # The first queries see whole windows either way.
        assert way["difference"] > 1e-3
        assert way["position"] >= 7


@pytest.mark.slow
def test_the_tolerance_decides(folder, capsys):
    assert main(["parity", str(folder), "--tolerance", "1e-9"]) == 1
    shown = capsys.readouterr().out
    assert "it does not" in shown
    assert "resumed at 5 points, every 4 tokens" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tokens, logits: {"tokens": tokens}, "lacks logits"),
        (lambda tokens, logits: {}, "lacks tokens and logits"),
        (
            lambda tokens, logits: {"tokens": tokens, "logits": logits[..., :-1]},
            "logits over 63 tokens, the config describes a vocabulary of 64",
        ),
        (
            lambda tokens, logits: {"tokens": tokens + 64, "logits": logits},
            "outside the vocabulary 0..63",
        ),
        (
            lambda tokens, logits: {"tokens": tokens[:, 1:], "logits": logits},
            "tokens [B, T] and logits [B, T, V]",
        ),
        (
            lambda tokens, logits: {"tokens": tokens, "logits": logits + np.nan},
            "NaN or infinity",
        ),
        (
            lambda tokens, logits: {"tokens": tokens[:, :1], "logits": logits[:, :1]},
            "at least two tokens",
        ),
        (
            lambda tokens, logits: {"tokens": tokens * 1.0, "logits": logits},
            "integer",
        ),
    ],
)
def test_references_that_cannot_be_used(folder, capsys, change, message):
    expected = load_file(folder / "expected.safetensors")
    rewrite(folder, **change(expected["tokens"], expected["logits"]))
    assert main(["parity", str(folder)]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_missing_or_damaged(folder, capsys):
    path = folder / "expected.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    assert main(["parity", str(folder)]) == 2
    assert "must hold what the reference computed" in capsys.readouterr().err
    path.unlink()
    assert main(["parity", str(folder)]) == 2
    assert str(path) in capsys.readouterr().err
