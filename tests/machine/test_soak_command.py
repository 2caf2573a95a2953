"""``hybridcache soak`` runs, reports and replays."""

import json

import pytest

from hybridcache_jax import cli
from hybridcache_jax.testing.soak.run import SoakReport
from hybridcache_jax.testing.toy_models import SOAKED


def test_it_runs_and_says_what_it_did(capsys):
    arguments = ["soak", "--model", "fine", "--operations", "20", "--seed", "3"]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert "20 operations" in text
    assert "of seed 3" in text
    assert "no difference from the oracle" in text
    assert "saves:" not in text


def test_with_a_store_it_says_what_was_saved(capsys):
    arguments = ["soak", "--model", "fine", "--operations", "60", "--seed", "3"]
    assert cli.main([*arguments, "--store"]) == 0
    text = capsys.readouterr().out
    assert "saves: " in text
    assert "from the store" in text


def test_a_report_with_a_failure_is_replayed(capsys, tmp_path):
    assert cli.main(["soak", "--model", "fine", "--operations", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["fine"]) == {*SoakReport.__annotations__, "operations"}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    assert cli.main(["soak", "--replay", str(file)]) == 0
    assert "no failure to replay" in capsys.readouterr().out
    failure = {"rooms": [2, 3], "operations": [["no_such_operation", 1, 2, 3]]}
    report["fine"]["failure"] = failure
    file.write_text(json.dumps(report))
    assert cli.main(["soak", "--replay", str(file)]) == 1
    failure["operations"] = [["bump", 1, 2, 3], ["restart", 1, 2, 3]]
    file.write_text(json.dumps(report))
    assert cli.main(["soak", "--replay", str(file)]) == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"fine": {}}', '{"x": {"failure": 1}}'])
def test_what_is_no_report_is_refused(capsys, tmp_path, text):
    file = tmp_path / "report.json"
    file.write_text(text)
    assert cli.main(["soak", "--replay", str(file)]) == 2
    assert "is no report of hybridcache soak" in capsys.readouterr().err


def test_help_names_every_model():
    assert tuple(SOAKED) == cli._SOAKED
