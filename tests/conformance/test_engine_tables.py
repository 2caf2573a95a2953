"""Hit lengths, evictions and what is kept, as other engines' own tests have them.

Every scenario is run through an adapter, or the table of differences says why not.
"""

import json
import pathlib

import differences
import engine_stories
import jax
import load_stories
import manager_steps
import pytest
import rule_tables
import scheduler_facts
import serve_stories
import tier_stories
import tree_steps
from expectations import OPEN, flat, leaves
from not_asked import NOT_ASKED

_FOLDER = pathlib.Path(__file__).parent
VLLM = json.loads((_FOLDER / "vllm.json").read_text())["scenarios"]
OTHERS = json.loads((_FOLDER / "other_engines.json").read_text())["scenarios"]
DIFFERENT = {(d.scenario, d.step, d.name): d for d in differences.DIFFERENCES}
STORIES = {
    **engine_stories.STORIES,
    **tier_stories.STORIES,
    **load_stories.STORIES,
    **serve_stories.STORIES,
}
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
    if scenario["id"] not in {*LISTED, *STORIES, *manager_steps.TIGHT}
    and "retention_interval" not in scenario["options"]
    and (scenario["groups"] in PLANS or scenario["type"] in rule_tables.TABLES)
) | {"sgl-swa-03", "sgl-swa-05", "sgl-swa-07", "sgl-tree-01", "lmc-fold-01"}


@pytest.fixture(autouse=True, scope="module")
def quick_to_compile():
    """Dozens of plans, each used a few times: compiling is nearly all of the time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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
    """Every expectation holds, differs as the table says, or is listed as not asked."""
    outcomes = in_parts(outcomes)
    expected, skipped = leaves(scenario), NOT_ASKED.get(scenario["id"], {})
    assert set(outcomes) == set(expected) - set(skipped)
    wrong = {}
    for (step, name), (theirs, ours) in outcomes.items():
        # A manager's steps have ids and free blocks in our terms.
        literal = expected[step, name]
        assert literal in (OPEN, theirs) or scenario.get("type") == "manager"
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


def in_parts(outcomes):
    """Pairs of an expectation and our answer, each part for itself."""
    found = {}
    for (step, name), (theirs, ours) in outcomes.items():
        parts = dict(flat(name, ours))
        assert set(parts) == set(dict(flat(name, theirs)))
        for part, want in flat(name, theirs):
            found[step, part] = (want, parts[part])
    return found


def told(scenario):
    """What a story yields: ``(step, name)`` to what is expected and what we give."""
    answers = STORIES[scenario["id"]](scenario)
    found = {}
    for step, name, want, ours in answers:
        assert (step, name) not in found
        found[step, name] = (want, ours)
    return found


@pytest.mark.parametrize("scenario", cases(VLLM))
def test_vllm(scenario):
    if scenario["id"] in STORIES:
        check(scenario, told(scenario))
        return
    runner = {"manager": manager_steps, "scheduler_fact": scheduler_facts}
    runner["divergence"] = scheduler_facts
    check(scenario, runner.get(scenario["type"], rule_tables).outcomes(scenario))


@pytest.mark.parametrize("scenario", cases(OTHERS))
def test_other_engines(scenario):
    own_steps = scenario["id"] in STORIES
    check(scenario, told(scenario) if own_steps else tree_steps.outcomes(scenario))


@pytest.mark.slow
def test_smaller_blocks_reach_what_parts_of_blocks_reach():
    """The difference of C35 is one of block size alone."""
    (scenario,) = (scenario for scenario in VLLM if scenario["id"] == "C35")
    halves = [group | {"block_size": 2} for group in scenario["groups"]]
    found = manager_steps.outcomes({**scenario, "groups": halves})
    assert found["6", "hit"] == (6, 6)


def test_every_scenario_is_run_or_listed():
    ids = [scenario["id"] for scenario in VLLM + OTHERS]
    assert len(set(ids)) == len(ids) == 54 + 55
    assert set(LISTED) <= set(ids)
    assert not set(differences.PENDING) & set(differences.OUTSIDE)
    different = {d.scenario for d in differences.DIFFERENCES}
    assert different <= set(ids) - set(LISTED)
    assert len(DIFFERENT) == len(differences.DIFFERENCES)
    assert all(difference.why for difference in differences.DIFFERENCES)
    assert all(LISTED.values())


def test_what_is_not_asked_is_expected_there():
    played = {s["id"]: s for s in VLLM + OTHERS if s["id"] not in LISTED}
    for scenario, listed in NOT_ASKED.items():
        assert set(listed) < set(leaves(played[scenario])), scenario
        assert all(listed.values())
        assert not any((scenario, *leaf) in DIFFERENT for leaf in listed)
    for scenario, step, name in DIFFERENT:
        assert (step, name) in leaves(played[scenario])


def test_a_skipped_expectation_is_seen():
    """One that is not answered, one that is answered though listed, one of another."""
    (scenario,) = (scenario for scenario in VLLM if scenario["id"] == "T10")
    whole = rule_tables.outcomes(scenario)
    check(scenario, whole)
    for changed in (
        {leaf: whole[leaf] for leaf in list(whole)[1:]},
        whole | {("0", "gcd"): (16, 16)},
        whole | {("6", "value"): (1, 1)},
    ):
        with pytest.raises(AssertionError):
            check(scenario, changed)


def test_the_readme_has_the_counts():
    readme = (_FOLDER.parents[1] / "README.md").read_text()
    assert differences.summary(len(VLLM + OTHERS)) in readme
    played = [s for s in VLLM + OTHERS if s["id"] not in LISTED]
    total = sum(len(leaves(scenario)) for scenario in played)
    skipped = sum(len(listed) for listed in NOT_ASKED.values())
    assert f"{skipped} of their {total} single expectations are not asked" in readme
