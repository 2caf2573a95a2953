"""Every reference model over the cache: all ways of running, resumes, exact replays.

The slow suite runs all of them; the quick one the model that has every form.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.forms import RULES, Remedy
from hybridcache_jax.models.load import load_model
from hybridcache_jax.testing.audit import row_state, state_difference, violations
from hybridcache_jax.testing.parity import check_parity
from hybridcache_jax.testing.parity_run import ParityRun, Reference

GOLDENS = Path(__file__).parents[1] / "goldens"
QUICK = "deepseek_v4_tiny"
REPLAYED = {
    # Model: tokens that a replay of everything it can rebuild runs, at a grid point.
    "deepseek_v4_tiny": 28,  # four windows of 8
    "gemma3_text": 35,  # five windows of 8
    "gemma4_text": 21,  # three windows of 8; what a fourth reads is another layer's
    "gpt_oss": 14,  # two windows of 8
    "llama4_text": 4,  # to the start of the chunk
    "mimo_v2_flash": 24,  # three windows of 9
    "olmo3": 21,  # three windows of 8
}
NO_REPLAY = ("deepseek_v32", "glm_moe_dsa")
RECURRENT = ("qwen3_next", "kimi_linear")
ALL = (*REPLAYED, *NO_REPLAY, *RECURRENT, "deepseek_v4_real_ratio")


def marked(names):
    return [
        name if name == QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


@functools.cache
def loaded(name):
    return load_model(GOLDENS / name)


@functools.cache
def reference(name):
    expected = load_file(GOLDENS / name / "expected.safetensors")
    return Reference(expected["tokens"], expected["logits"])


@functools.cache
def run_of(name):
    return ParityRun(loaded(name).model, loaded(name).layers, reference(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_way_of_running_and_every_resume_gives_the_reference(name):
    report = check_parity(
        loaded(name).model, loaded(name).layers, reference(name), run=run_of(name)
    )
    assert report.passed, report
    assert len(report.resume_points) == (reference(name).tokens.shape[1] - 1) // (
        report.grid
    )


@pytest.mark.parametrize("name", marked(ALL))
def test_resumed_state_equals_the_cold_runs_bit_by_bit(name):
    """For the same chunks; a resumed run must not differ in a single bit."""
    run = run_of(name)
    length = reference(name).tokens.shape[1]
    point = run.resume_points[len(run.resume_points) // 2]
    stored, _ = run.store(
        hc.init(run.plan),
        prefixes := hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace")),
    )
    resumed, leases = run.resume(stored, prefixes, point)
    span = [(point, length)] * len(leases)
    resumed, after = run.step(resumed, leases, span)
    ends = [row_state(resumed, lease.row) for lease in leases]
    cold, leases = run.cold(
        hc.init(run.plan), hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    )
    for at in range(0, point, run.grid):
        cold, _ = run.step(cold, leases, [(at, at + run.grid)] * len(leases))
    cold, want = run.step(cold, leases, span)
    np.testing.assert_array_equal(after, want)
    for lease, end in zip(leases, ends, strict=True):
        assert state_difference(row_state(cold, lease.row), end) == 0.0


def lose(run, cache, prefixes):
    """Evicts every form that a replay can rebuild."""
    for form, rule in RULES.items():
        if rule.remedy is Remedy.REPLAY:
            cache = prefixes.evict(cache, form)
    return cache


def kept_bytes(cache):
    """Content of every stored block, by pool and id."""
    found = {}
    for index, pool in enumerate(cache.pools):
        for block in np.flatnonzero(np.asarray(cache.tables[index].kept)).tolist():
            planes = [np.asarray(plane)[:, block].tobytes() for plane in pool.values()]
            found[index, block] = b"".join(planes)
    return found


def replayed(run, cache, prefixes, point, later):
    """State at ``point`` after a replay that starts ``later`` tokens too late."""
    tokens = run.reference.tokens[0]
    plan = prefixes.match(cache, tokens[: point + 1], run.identity)
    if plan.length < point:
        # A chunk's start needs no replay, so it is as good; here the middle is meant.
        assert plan.verdict == hc.Verdict.RESUMABLE
    else:
        assert plan.verdict == hc.Verdict.NEEDS_PARTIAL_RECOMPUTE
    start = plan.start + later
    late = dataclasses.replace(plan, length=point, start=start)
    cache, lease = prefixes.acquire(cache, late)
    padded = [lease] + [dataclasses.replace(lease, row=run.plan.max_sequences)] * (
        len(run.reference.tokens) - 1
    )
    spans = [(start, point)] + [(0, 0)] * (len(padded) - 1)
    cache, _ = run.step(cache, padded, spans)
    state = row_state(cache, lease.row)
    return prefixes.release(cache, lease, publish=False), state, plan.start


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYED)
def test_the_derived_replay_is_exact_and_one_token_less_is_not(name):
    run = run_of(name)
    point = run.resume_points[-1]
    if name == "llama4_text":
        point = point - point % 8 + 4  # in the middle of a chunk
    prefixes = hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    cache, _ = run.store(hc.init(run.plan), prefixes)
    cache, leases = run.resume(cache, prefixes, point)
    cold = row_state(cache, leases[0].row)
    for lease in leases:
        cache = prefixes.release(cache, lease, publish=False)
    cache = lose(run, cache, prefixes)
    before = kept_bytes(cache)

    cache, state, start = replayed(run, cache, prefixes, point, later=0)
    assert point - start == REPLAYED[name]
    exact = state_difference(state, cold)
    assert exact < 1e-5

    cache, state, _ = replayed(run, cache, prefixes, point, later=1)
    late = state_difference(state, cold)
    assert late > max(10 * exact, 1e-5)
    assert kept_bytes(cache) == before
    assert violations(cache) == []


@pytest.mark.parametrize("name", marked(NO_REPLAY))
def test_models_of_history_alone_have_nothing_to_replay(name):
    run = run_of(name)
    assert all(RULES[pool.form].grows for pool in run.spec.pools)
    prefixes = hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    cache, _ = run.store(hc.init(run.plan), prefixes)
    cache = prefixes.evict(cache, hc.Form.INDEXER_STATE)
    plan = prefixes.match(cache, run.reference.tokens[0], run.identity)
    assert plan.verdict == hc.Verdict.NEEDS_FULL_RECOMPUTE


@pytest.mark.parametrize("name", marked(RECURRENT))
def test_without_its_checkpoint_a_point_is_reached_from_the_one_before(name):
    run = run_of(name)
    point, tokens = run.resume_points[-1], run.reference.tokens[0]
    prefixes = hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    cache, _ = run.store(hc.init(run.plan), prefixes)
    plan = prefixes.match(cache, tokens[: point + 1], run.identity)
    assert (plan.verdict, plan.length) == (hc.Verdict.RESUMABLE, point)
    index = [pool.form for pool in run.spec.pools].index(hc.Form.RECURRENT_STATE)
    last = plan.claims.blocks[index][-1]
    table = cache.tables[index]
    tables = list(cache.tables)
    tables[index] = dataclasses.replace(table, epoch=table.epoch.at[last].add(1))
    changed = dataclasses.replace(cache, tables=tuple(tables))
    plan = prefixes.match(changed, tokens[: point + 1], run.identity)
    # Replaying up to the point would run the same tokens and save none.
    before = point - run.grid
    assert (plan.verdict, plan.length) == (hc.Verdict.RESUMABLE, before)
    with pytest.raises(hc.LeaseError):
        prefixes.acquire(changed, dataclasses.replace(plan, start=before + 1))
    with pytest.raises(hc.LeaseError):
        prefixes.acquire(changed, dataclasses.replace(plan, length=point, start=point))
    cache, lease = prefixes.acquire(changed, plan)
    idle = dataclasses.replace(lease, row=run.plan.max_sequences)
    others = len(run.reference.tokens) - 1
    spans = [(before, point)] + [(0, 0)] * others
    cache, _ = run.step(cache, [lease] + [idle] * others, spans)
    state = row_state(cache, lease.row)
    cold, leases = run.cold(
        hc.init(run.plan), hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    )
    for at in range(0, point, run.grid):
        cold, _ = run.step(cold, leases, [(at, at + run.grid)] * len(leases))
    assert state_difference(state, row_state(cold, leases[0].row)) == 0.0


def test_the_references_need_full_float32_products():
    """The tolerances hold for what the test configuration sets."""
    assert jax.config.jax_default_matmul_precision == "highest"
