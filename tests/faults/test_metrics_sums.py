"""The counters add up over any history, and count only what happened.

The oracle keeps its own tally: from what the test did, from the plans it was given,
and from the facts in the cache.
"""

import collections
import dataclasses

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from tiered import Tiered

import hybridcache_jax as hc
from hybridcache_jax import Form, LeaseError, MemoryRegistry, Metrics, Verdict
from hybridcache_jax.codes import Stage
from hybridcache_jax.observe.declarations import PREFIX
from hybridcache_jax.testing import faults

PROMPTS = (
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3],
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 9, 9, 9],
    [2, 7, 1, 8, 2, 8, 1, 8, 2],
)
STATES = ("free", "evictable", "pinned", "writing", "quarantined", "moving")
FORMS = (Form.SWA_WINDOW, Form.FULL_KV)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["look", "serve", "serve", "hold", "let go", "evict", "room"]),
        st.integers(0, 2),
        st.integers(3, 16),
    ),
    min_size=4,
    max_size=9,
)


def counted(build):
    registry = MemoryRegistry()
    return toy.Session(build(), metrics=Metrics(registry)), registry


def value(registry, name, **labels):
    return registry.value(PREFIX + name, **labels)


def observed(registry, name):
    """Count and sum of a histogram without labels."""
    (sample,) = registry.snapshot()[PREFIX + name]["samples"]
    return sample["count"], sample["sum"]


def blocks_by_form(session, which):
    """Per form, how many blocks of the cache ``which`` is true of."""
    found = collections.Counter()
    for pool, table in zip(
        session.model.plan.spec.pools, session.cache.tables, strict=True
    ):
        found[pool.form] += count(table, which)
    return found


def count(table, which):
    """How many blocks of a pool ``which`` is true of, in NumPy."""
    kept, pins, stage = map(np.asarray, (table.kept, table.pins, table.stage))
    return int(np.sum(which(kept, pins, stage)))


def stored(kept, pins, stage):
    del pins, stage
    return kept


def takeable(kept, pins, stage):
    return kept & (pins == 0) & (stage == Stage.SEALED)


class Tally:
    """What the counters should say, kept by the test itself."""

    def __init__(self, session):
        self.session = session
        self.plans, self.acquired = [], []
        self.prefill = self.replay = self.decode = 0
        self.chosen = collections.Counter()
        self.ticks, self.open = [], []

    def look(self, prompt):
        self.plans.append(self.session.match(prompt))
        return self.plans[-1]

    def admit(self, prompt):
        lease = self.session.acquire(self.look(prompt))
        self.acquired.append(lease.plan)
        self.open.append((lease, int(self.session.cache.clock)))
        return lease

    def feed(self, lease, prompt, tokens):
        """The rest of the prompt, and what else ``tokens`` holds, one by one."""
        for token in tokens[lease.plan.start :]:
            at = self.session.length(lease)
            self.session.feed(lease, [token])
            if at < lease.plan.length:
                self.replay += 1
            elif at < len(prompt):
                self.prefill += 1
            else:
                self.decode += 1

    def release(self, place=-1, **how):
        lease, since = self.open.pop(place)
        if how.get("publish", True):
            self.session.publish(lease)
        self.session.release(lease, publish=False)
        self.ticks.append(int(self.session.cache.clock) - since)

    def evict(self, form):
        self.chosen["asked"] += blocks_by_form(self.session, takeable)[form]
        self.session.evict(form)

    def make_room(self, short):
        """Wants ``short`` more free blocks than there are, in every pool."""
        prefixes, tables = self.session.prefixes, self.session.cache.tables
        wanted = [int(table.num_free) + short for table in tables]
        # A wide window whose narrow one is gone goes first, and is not chosen: nothing
        # can use it.
        self.session.put(prefixes.recover(self.session.cache))
        self.chosen["room"] += sum(
            min(max(want - int(table.num_free), 0), count(table, takeable))
            for want, table in zip(wanted, self.session.cache.tables, strict=True)
        )
        self.session.put(prefixes.make_room(self.session.cache, wanted))


@pytest.mark.parametrize(
    "build", [toy.three_forms, pytest.param(toy.fine, marks=pytest.mark.slow)]
)
@settings(max_examples=6)
@given(acts=ACTS)
def test_the_counters_add_up_over_any_history(build, acts):
    play(*counted(build), acts)


def test_they_add_up_where_hits_fall_back():
    session, registry = counted(toy.three_forms)
    # Two prompts end at 8 and 16, and their windows are kept for those points alone.
    acts = [("serve", 0, 6), ("serve", 0, 14), ("look", 0, 16)]
    *_, lower = play(session, registry, acts)
    assert (lower.verdict, lower.length) == (Verdict.RESUMABLE, 8)
    assert lower.claimed_length == 12
    assert value(registry, "fallbacks_total", verdict="RESUMABLE") == 1


def test_they_add_up_where_hits_are_replayed():
    session, registry = counted(toy.three_forms)
    # Meanwhile another row stands within a block.
    acts = [("hold", 2, 5), ("serve", 0, 14), ("evict", 0, 0), ("serve", 0, 14)]
    *_, plan = play(session, registry, acts)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert value(registry, "run_tokens_total", phase="replay") == 12 - plan.start > 0


def play(session, registry, acts):
    """Does what is said, adding up after every act; the plans of all lookups."""
    tally = Tally(session)
    for act, which, size in acts:
        tokens = [*PROMPTS[which], 1, 2][: size + 2]
        prompt = tokens[:size]
        if act == "look":
            tally.look(prompt)
        elif act in ("serve", "hold") and len(tally.open) < session.model.rows:
            tally.feed(tally.admit(prompt), prompt, tokens)
            if act == "serve":
                tally.release(publish=size % 4 > 0)
        elif act == "let go" and tally.open:
            tally.release(0)
        elif act == "evict":
            tally.evict(FORMS[which % 2])
        elif act == "room":
            tally.make_room(which)
        check(tally, registry)
    return tally.plans


def check(tally, registry):
    plans, acquired = tally.plans, tally.acquired

    def got(name, **labels):
        return value(registry, name, **labels)

    # Lookups.
    hits = [plan for plan in plans if plan.claimed_length > 0]
    assert got("lookups_total") == got("verdicts_total") == len(plans)
    assert got("hits_total") == len(hits)
    assert got("hits_total") + got("misses_total") == got("lookups_total")
    for verdict in Verdict:
        want = sum(plan.verdict == verdict for plan in plans)
        assert got("verdicts_total", verdict=verdict.name) == want
    resumed = sum(
        (p.verdict, p.length) == (Verdict.RESUMABLE, p.claimed_length) for p in hits
    )
    assert got("fallbacks_total") == len(hits) - resumed
    assert observed(registry, "history_gap_tokens")[0] == len(hits)

    # Tokens: of acquired plans alone.
    assert got("admissions_total") == len(acquired)
    assert got("prompt_tokens_total") == sum(plan.num_tokens for plan in acquired)
    assert got("reused_tokens_total") == sum(plan.length for plan in acquired)
    assert got("hit_tokens_total") == got("reused_tokens_total")
    assert got("hit_tokens_total", tier="outer") == 0
    run = {p: got("run_tokens_total", phase=p) for p in ("replay", "prefill", "decode")}
    assert run == {
        "replay": tally.replay,
        "prefill": tally.prefill,
        "decode": tally.decode,
    }
    assert run["replay"] == got("hit_tokens_total", tier="replayed")
    saved = got("saved_tokens_total")
    assert saved + run["replay"] == got("reused_tokens_total")
    assert saved + run["replay"] + run["prefill"] == got("prompt_tokens_total")

    # Blocks.
    session = tally.session
    held = blocks_by_form(session, stored)
    sizes = {pool.form: pool.block_bytes for pool in session.model.plan.spec.pools}
    for form in FORMS:
        lost = got("evicted_blocks_total", form=form.name)
        assert got("stored_blocks_total", form=form.name) - lost == held[form]
        assert got("evicted_bytes_total", form=form.name) == lost * sizes[form]
    for why in ("asked", "room"):
        assert got("evicted_blocks_total", why=why) == tally.chosen[why]
    check_gauges(session, registry)

    # Leases.
    assert observed(registry, "pin_ticks") == (len(tally.ticks), sum(tally.ticks))
    assert got("stale_leases_total") == 0
    assert got("step_rows_total") == got("step_rows_total", status="OK")


def check_gauges(session, registry):
    session.prefixes.account(session.cache)
    for number, pool in enumerate(session.model.plan.spec.pools):
        table = session.cache.tables[number]
        stage = np.asarray(table.stage)
        in_state = {
            state: value(registry, "blocks", pool=pool.name, state=state)
            for state in STATES
        }
        assert sum(in_state.values()) == session.model.plan.blocks[number]
        assert value(registry, "blocks", pool=pool.name) == len(stage)
        assert in_state["free"] == (stage == Stage.FREE).sum() == int(table.num_free)
        assert in_state["writing"] == (stage == Stage.WRITING).sum()
        sealed = in_state["evictable"] + in_state["pinned"]
        assert sealed == (stage == Stage.SEALED).sum()
        assert in_state["quarantined"] == (stage == Stage.QUARANTINED).sum()
    plan = session.model.plan
    assert value(registry, "form_bytes") == sum(plan.pool_bytes)
    assert value(registry, "index_tokens") == session.prefixes.stored_tokens


def phases(registry):
    names = ("replay", "prefill", "decode", "again", "shadow")
    return {name: value(registry, "run_tokens_total", phase=name) for name in names}


def check_prompts(registry):
    """The rule of prompt tokens, once every row is released."""
    run = phases(registry)
    once = value(registry, "saved_tokens_total") + run["replay"] + run["prefill"]
    left = value(registry, "abandoned_tokens_total")
    assert once + left == value(registry, "prompt_tokens_total")
    tiers = value(registry, "hit_tokens_total", tier="replayed")
    reused = value(registry, "reused_tokens_total")
    assert value(registry, "saved_tokens_total") + tiers == reused


def test_a_prompt_counts_once_whatever_becomes_of_its_rows():
    """Rows that are cancelled, forked within the prompt, and rewound."""
    session, registry = counted(toy.only_full)
    prefixes, prompt = session.prefixes, PROMPTS[0]
    gone = session.admit(prompt)
    session.feed(gone, prompt[:5])
    session.release(gone, publish=False)
    assert value(registry, "abandoned_tokens_total") == 11
    first = session.admit(prompt)
    session.feed(first, prompt[:6])
    cache, child = prefixes.fork(session.cache, first)
    session.put(cache)
    session.feed(first, prompt[6:9])
    cache, first = prefixes.rewind(session.cache, first, 7)
    session.put(cache)
    session.feed(first, [*prompt[7:], 1, 2])
    # 5 and 6 to begin with; 7 and 8 twice; the child runs 6 on, and 3 beyond.
    session.feed(child, [*prompt[6:], 3])
    assert phases(registry) == {
        "replay": 0,
        "prefill": 5 + 16,
        "decode": 2 + 1,
        "again": 2 + 10,
        "shadow": 0,
    }
    session.release(child, publish=False)
    session.release(first)
    assert value(registry, "abandoned_tokens_total") == 11
    check_prompts(registry)
    # Below its resume point: what it did not run before it runs again.
    hit = session.admit(prompt)
    assert hit.plan.length == 12
    cache, hit = prefixes.rewind(session.cache, hit, 9)
    session.put(cache)
    session.feed(hit, prompt[9:14])
    session.release(hit, publish=False)
    assert value(registry, "abandoned_tokens_total") == 11 + 2
    assert phases(registry)["again"] == 2 + 10 + 3
    check_prompts(registry)


@pytest.mark.parametrize("wrong", [False, True])
def test_shadow_runs_count_apart(wrong):
    registry = MemoryRegistry()
    policy = hc.ReusePolicy("namespace", shadow_share=1.0)
    session = toy.Session(toy.three_forms(), policy=policy, metrics=Metrics(registry))
    prefixes, prompt, me = session.prefixes, PROMPTS[0], session.model.identity
    session.store(prompt)
    if wrong:
        block = int(session.match(prompt).claims.blocks[0][0])
        session.cache = faults.flip_bit(session.cache, 0, "k", block, 5)
    session.evict(Form.SWA_WINDOW)
    hit = session.admit(prompt)
    start, point = hit.plan.start, hit.plan.length
    assert 0 < start < point
    assert prefixes.shadow_due(hit.plan)
    cold = session.acquire(prefixes.cold_plan(prompt, me, shadow=True))
    session.feed(cold, prompt[:point])
    session.feed(hit, prompt[start:point])
    cache, report = prefixes.shadow_compare(session.cache, hit, cold)
    session.put(cache)
    assert report.equal != wrong
    session.release(cold if report.equal else hit, publish=False)
    session.feed(report.lease, [*prompt[point:], 7])
    session.release(report.lease)
    # One request stored the prompt, one was answered; neither left anything.
    assert value(registry, "admissions_total") == 2
    assert value(registry, "prompt_tokens_total") == 2 * len(prompt)
    assert value(registry, "abandoned_tokens_total") == 0
    assert phases(registry) == {
        "replay": point - start,
        "prefill": len(prompt) + len(prompt) - point,
        "decode": 1,
        "again": 0,
        "shadow": point,
    }
    check_prompts(registry)
    for tier, tokens in (("device", start), ("outer", 0), ("replayed", point - start)):
        over = value(registry, "overturned_tokens_total", tier=tier)
        assert over == (tokens if wrong else 0)
        assert value(registry, "hit_tokens_total", tier=tier) == tokens


def test_overdue_leases_are_told_from_those_in_time():
    session, registry = counted(toy.three_forms)

    def leases():
        session.prefixes.account(session.cache)
        return tuple(
            value(registry, "leases", state=state) for state in ("in_time", "overdue")
        )

    assert leases() == (0, 0)
    rows = []
    for deadline in (1, None):
        plan = session.match(PROMPTS[0])
        cache, lease = session.prefixes.acquire(session.cache, plan, deadline=deadline)
        session.put(cache)
        rows.append(lease)
    # Two admissions are two ticks, one more than the first asked for.
    assert leases() == (1, 1)
    session.put(session.prefixes.renew(session.cache, rows[0], 10))
    assert leases() == (2, 0)
    session.put(session.prefixes.release(session.cache, rows[0], publish=False))
    assert leases() == (1, 0)


def test_a_match_that_is_never_acquired_reuses_nothing():
    session, registry = counted(toy.three_forms)
    session.store(PROMPTS[0])
    before = value(registry, "prompt_tokens_total")
    assert session.match(PROMPTS[0]).length == 12
    assert value(registry, "hits_total") == 1
    for name in ("reused_tokens_total", "hit_tokens_total", "saved_tokens_total"):
        assert value(registry, name) == 0
    assert value(registry, "prompt_tokens_total") == before == 16


def test_what_a_hit_lacked_is_counted_by_form():
    session, registry = counted(toy.three_forms)
    session.store(PROMPTS[0], (4,), each=True)
    session.evict(Form.SWA_WINDOW)
    plan = session.match(PROMPTS[0])
    assert (plan.claimed_length, plan.history_length) == (12, 12)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    # Windows of two sizes lie in two pools; it is one form that one lookup lacked.
    assert len(plan.limiting) == 2
    limits = registry.snapshot()[PREFIX + "limiting_forms_total"]["samples"]
    assert limits == [
        {"labels": {"form": "SWA_WINDOW", "reason": plan.reason.name}, "value": 1}
    ]
    assert value(registry, "fallbacks_total", verdict=plan.verdict.name) == 1
    assert observed(registry, "history_gap_tokens") == (1, 12)
    # It shares 9 tokens, of which resume points reach 8.
    session.match(PROMPTS[1])
    assert value(registry, "alignment_lost_tokens_total") == 3 + 1
    assert value(registry, "misses_total", reason="NOT_STORED") == 1


def test_the_gap_is_measured_from_the_history_that_is_left():
    """Of 12 claimed tokens the history reaches 8, the narrow window 4."""
    session, registry = counted(toy.three_forms)
    session.store(PROMPTS[0], (4,), each=True)
    for layer, block in ((0, 2), (1, 7)):
        session.lose(layer, block, PROMPTS[0])
    looks, before = observed(registry, "history_gap_tokens")
    plan = session.match(PROMPTS[0])
    assert (plan.claimed_length, plan.history_length) == (12, 8)
    ready = [way for way in plan.alternatives if way.verdict == Verdict.RESUMABLE]
    assert [way.length for way in ready] == [4]
    assert observed(registry, "history_gap_tokens") == (looks + 1, before + 8 - 4)
    # Once the history ends at 4 as well there is no gap.
    session.lose(0, 1, PROMPTS[0])
    looks, before = observed(registry, "history_gap_tokens")
    plan = session.match(PROMPTS[0])
    assert (plan.claimed_length, plan.history_length) == (12, 4)
    assert observed(registry, "history_gap_tokens") == (looks + 1, before)


def test_there_is_no_gap_where_all_forms_lie_in_the_outer_tier():
    registry = hc.MemoryRegistry()
    session = Tiered(toy.three_forms(), metrics=hc.Metrics(registry))
    session.store(PROMPTS[0], (4,), each=True)
    session.move_out()
    plan = session.match(PROMPTS[0])
    assert plan.verdict == Verdict.NEEDS_IO
    assert (plan.history_length, plan.joint_length) == (12, 12)
    assert observed(registry, "history_gap_tokens") == (1, 0)


def test_dead_weight_is_told_from_what_was_chosen():
    session, registry = counted(toy.three_forms)
    session.store(PROMPTS[0])
    before = blocks_by_form(session, stored)
    session.evict(Form.FULL_KV)
    for form, why in ((Form.FULL_KV, "asked"), (Form.SWA_WINDOW, "dead_weight")):
        lost = value(registry, "evicted_blocks_total", form=form.name, why=why)
        assert lost == before[form] > 0
    assert value(registry, "evicted_blocks_total") == sum(before.values())


def test_stale_plans_leases_and_rows_are_counted_once():
    session, registry = counted(toy.three_forms)
    session.store(PROMPTS[0])
    plan = session.match(PROMPTS[0])
    session.evict(Form.FULL_KV)
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(plan)
    assert value(registry, "stale_leases_total", where="acquire") == 1
    assert value(registry, "reused_tokens_total") == 0

    lease = session.admit(PROMPTS[0])
    session.feed(lease, PROMPTS[0][:3])
    tables = list(session.cache.tables)
    tables[0] = dataclasses.replace(tables[0], epoch=tables[0].epoch + 2)
    session.cache = dataclasses.replace(session.cache, tables=tuple(tables))
    with pytest.raises(LeaseError, match="nothing was published"):
        session.prefixes.publish(session.cache, lease)
    assert value(registry, "stale_leases_total", where="publish") == 1

    before = value(registry, "run_tokens_total")
    _, statuses, _ = session.step(session.cache, session.inputs([(lease, [5])]))
    session.metrics.ran(lease.plan, 3, 1, hc.Status(int(statuses[0])))
    assert value(registry, "stale_leases_total", where="step") == 1
    assert value(registry, "step_rows_total", status="STALE") == 1
    assert value(registry, "run_tokens_total") == before


def test_a_warm_up_counts_nothing():
    session, registry = counted(toy.three_forms)
    session.put(session.prefixes.warm_up(session.cache, session.model.identity))
    for name, family in registry.snapshot().items():
        for sample in family["samples"]:
            assert sample.get("value", sample.get("count")) == 0, name


@pytest.mark.slow
def test_forks_and_rewinds_keep_pin_times():
    session, registry = counted(toy.only_full)
    lease = session.admit([1, 2, 3])
    granted = int(session.cache.clock)
    session.feed(lease, [1, 2, 3])
    cache, child = session.prefixes.fork(session.cache, lease)
    session.put(cache)
    forked = int(session.cache.clock)
    cache, lease = session.prefixes.rewind(session.cache, lease, 1)
    session.put(cache)
    session.release(lease, publish=False)
    first = int(session.cache.clock) - granted
    assert observed(registry, "pin_ticks") == (1, first)
    session.release(child, publish=False)
    both = first + int(session.cache.clock) - forked
    assert observed(registry, "pin_ticks") == (2, both)


@pytest.mark.slow
def test_beams_and_rounds_keep_pin_times_and_sums():
    session, registry = counted(toy.only_full)
    lease = session.admit([1, 2, 3, 4])
    granted = int(session.cache.clock)
    session.feed(lease, [1, 2, 3])
    cache, leases = session.prefixes.reorder(session.cache, [lease], [0, 0])
    session.put(cache)
    forked = int(session.cache.clock)
    cache, leases = session.prefixes.settle(session.cache, leases, [2, 3])
    session.put(cache)
    cache, (child,) = session.prefixes.select(session.cache, leases, [1])
    session.put(cache)
    first = int(session.cache.clock) - granted
    assert observed(registry, "pin_ticks") == (1, first)
    session.release(child, publish=False)
    both = first + int(session.cache.clock) - forked
    assert observed(registry, "pin_ticks") == (2, both)
    # The row that was dropped lacked the last one; the other counts for nothing.
    assert value(registry, "abandoned_tokens_total") == 1
    check_prompts(registry)
