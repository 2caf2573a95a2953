"""Hit lengths, evictions and what is kept, as other engines' own tests have them.

Every scenario is run through an adapter, or the table of differences says why not.
"""

import json
import pathlib

import differences
import manager_steps
import pytest
import rule_tables
import scheduler_facts

_FOLDER = pathlib.Path(__file__).parent
VLLM = json.loads((_FOLDER / "vllm.json").read_text())["scenarios"]
DIFFERENT = {(d.scenario, d.step, d.name): d for d in differences.DIFFERENCES}
LISTED = {**differences.PENDING, **differences.OUTSIDE}
# Two specs serve all of these; every further one compiles for seconds.
PLANS = (
    [{"kind": "full", "block_size": 16}],
    [
        {"kind": "full", "block_size": 32},
        {"kind": "sliding_window", "block_size": 8, "window": 8},
    ],
)
QUICK = frozenset(
    scenario["id"]
    for scenario in VLLM
    if scenario["id"] not in {*LISTED, *manager_steps.TIGHT}
    and (scenario["groups"] in PLANS or scenario["type"] in rule_tables.TABLES)
)


def cases(scenarios):
    return [
        pytest.param(
            scenario,
            id=scenario["id"],
            marks=() if scenario["id"] in QUICK else pytest.mark.slow,
        )
        for scenario in scenarios
        if scenario["id"] not in LISTED
    ]


def check(scenario, outcomes):
    """Every expectation holds, or differs exactly as the table says."""
    assert outcomes
    wrong = {}
    for (step, name), (theirs, ours) in outcomes.items():
        difference = DIFFERENT.get((scenario["id"], step, name))
        want = theirs if difference is None else difference.ours
        if ours != want:
            wrong[step, name] = {"want": want, "ours": ours}
        assert difference is None or difference.ours != theirs, f"{difference} is none"
    assert wrong == {}
    stale = {key for key in DIFFERENT if key[0] == scenario["id"]} - {
        (scenario["id"], *key) for key in outcomes
    }
    assert stale == set()


@pytest.mark.parametrize("scenario", cases(VLLM))
def test_vllm(scenario):
    runner = {"manager": manager_steps, "scheduler_fact": scheduler_facts}
    runner["divergence"] = scheduler_facts
    check(scenario, runner.get(scenario["type"], rule_tables).outcomes(scenario))


def test_every_scenario_is_run_or_listed():
    ids = [scenario["id"] for scenario in VLLM]
    assert len(set(ids)) == len(ids) == 54
    assert set(LISTED) <= set(ids)
    assert not set(differences.PENDING) & set(differences.OUTSIDE)
    different = {d.scenario for d in differences.DIFFERENCES}
    assert different <= set(ids) - set(LISTED)
    assert len(DIFFERENT) == len(differences.DIFFERENCES)
    assert set(ids) - set(LISTED) >= QUICK
