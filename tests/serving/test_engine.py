"""The engine: equal to cold runs in every mixture, and clear about bad requests."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import BUCKETS, IDENTITY, PLAN, SHARED, VOCABULARY, random_model

import hybridcache_jax as hc
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.serving.sampling import SamplingParams, sampling_inputs
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.testing.audit import violations

RNG = np.random.default_rng(1)
BASE = RNG.integers(0, VOCABULARY, 60, dtype=np.int32)


def prompt(shared, own, seed=0):
    extra = np.random.default_rng(seed).integers(0, VOCABULARY, own, dtype=np.int32)
    return np.concatenate([BASE[:shared], extra])


def cold(engine, request):
    return engine.run([dataclasses.replace(request, reuse=False)])[0]


@pytest.mark.slow
def test_a_batch_of_unequal_prompts_equals_single_runs(make_engine):
    engine = make_engine()
    requests = [
        Request(prompt(20, 5), max_new_tokens=6),
        Request(prompt(0, 1, 2), max_new_tokens=9),
        Request(prompt(47, 0), max_new_tokens=3),
        Request(prompt(20, 30, 3), max_new_tokens=5),
    ]
    together = engine.run(requests)
    for request, result in zip(requests, together, strict=True):
        assert result.tokens == cold(make_engine(), request).tokens
        assert len(result.tokens) == request.max_new_tokens
        assert result.finish == "length"
    assert violations(engine.cache) == []


def test_a_hit_runs_only_what_is_not_stored(make_engine):
    engine = make_engine()
    engine.run([Request(prompt(40, 0))])
    result = engine.run([Request(prompt(40, 7, 5), max_new_tokens=4)])[0]
    assert (result.plan.verdict, result.plan.length) == (hc.Verdict.RESUMABLE, 40)
    assert result.tokens_run == 7
    again = Request(prompt(40, 7, 5), max_new_tokens=4)
    assert result.tokens == cold(make_engine(), again).tokens


def test_the_same_prompt_again_runs_at_least_one_position(make_engine):
    engine, request = make_engine(), Request(prompt(40, 0), max_new_tokens=5)
    first, second = engine.run([request])[0], engine.run([request])[0]
    assert second.tokens == first.tokens
    assert (second.plan.length, second.tokens_run) == (36, 4)


def test_equal_prompts_in_one_batch(make_engine):
    engine, request = make_engine(), Request(prompt(30, 0), max_new_tokens=4)
    results = engine.run([request] * 3)
    want = cold(make_engine(), request).tokens
    assert [result.tokens for result in results] == [want] * 3
    # Each of them stored the prefix or found it stored: one copy is claimed.
    assert engine.prefixes.stored_tokens == 32
    assert violations(engine.cache) == []


@given(data=st.data())
@settings(max_examples=12)
def test_any_history_gives_cold_tokens(make_engine_once, data):
    """Evictions, hits, mixtures: what comes out is what a cold run gives."""
    engine, reference = make_engine_once
    for _ in range(data.draw(st.integers(1, 4))):
        requests = [
            Request(
                prompt(shared, own, seed),
                max_new_tokens=data.draw(st.integers(1, 6)),
                namespace=data.draw(st.sampled_from(["", "a"])),
            )
            for shared, own, seed in data.draw(
                st.lists(
                    st.tuples(
                        st.integers(1, 60), st.integers(0, 25), st.integers(0, 3)
                    ),
                    min_size=1,
                    max_size=5,
                )
            )
        ]
        for request, result in zip(requests, engine.run(requests), strict=True):
            assert result.tokens == cold(reference, request).tokens
            assert result.tokens_run == len(request.tokens) - result.plan.start
        assert violations(engine.cache) == []
        if data.draw(st.booleans()):
            form = data.draw(st.sampled_from([hc.Form.SWA_WINDOW, hc.Form.FULL_KV]))
            engine.cache = engine.prefixes.evict(engine.cache, form)
            assert violations(engine.cache) == []


@pytest.fixture(scope="module")
def make_engine_once(compiled):
    return tuple(
        Engine(
            compiled,
            PLAN,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=BUCKETS,
            policy=SHARED,
        )
        for _ in range(2)
    )


def test_nothing_is_compiled_after_warm_up(make_engine):
    engine = make_engine()
    engine.warm_up()
    before = engine.compiled_shapes
    assert before == len(BUCKETS.shapes())
    engine.run([Request(prompt(n, 3, n), max_new_tokens=n % 5 + 1) for n in range(20)])
    assert engine.compiled_shapes == before


def test_steps_are_measured_once_nothing_compiles(make_engine):
    """Whole chunks as tokens, short runs alone for what one takes besides."""
    engine, long = make_engine(), Request(prompt(40, 0), reuse=False)
    engine.run([long])
    assert engine.prefixes.cost == hc.CostModel()
    engine.warm_up()
    engine.run([Request(prompt(2, 0), max_new_tokens=4, reuse=False)])
    short = engine.prefixes.cost
    assert short == hc.CostModel(seconds_per_run=short.seconds_per_run)
    assert short.seconds_per_run > 0
    engine.run([Request(prompt(2, n), reuse=False) for n in range(2)])
    assert engine.prefixes.cost == short
    engine.run([long])
    assert engine.prefixes.cost.seconds_per_token != short.seconds_per_token


@pytest.mark.slow
@pytest.mark.parametrize("bound", [False, True])
def test_nothing_is_compiled_after_warm_up_wherever_the_parameters_lie(bound):
    """Restored parameters are bound to a device, and so is what a step makes of them.

    Not only the step counts: functions of the prefix cache take the same cache.
    """
    graph, state = nnx.split(random_model(0))
    if bound:
        state = jax.device_put(state, jax.devices()[0])
    step = CompiledStep(nnx.merge(graph, state), VOCABULARY)
    engine = Engine(
        step,
        PLAN,
        IDENTITY,
        vocab_size=VOCABULARY,
        buckets=BUCKETS,
        policy=SHARED,
        metrics=hc.Metrics(hc.MemoryRegistry()),
    )
    engine.warm_up()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event)
    )
    lowered = "/jax/core/compile/jaxpr_to_mlir_module_duration"
    engine.run([Request(prompt(n, 3, n), max_new_tokens=n % 5 + 1) for n in range(9)])
    assert lowered not in compiled
    jax.jit(lambda x: x + len(compiled))(1.0)
    assert lowered in compiled


class Growing:
    """A compiled step that says that it compiled a shape in every second call."""

    def __init__(self, step):
        self.step, self.calls = step, 0

    @property
    def variants(self):
        return self.calls // 2

    def place(self, cache):
        return self.step.place(cache)

    def __call__(self, *arguments):
        self.calls += 1
        return self.step(*arguments)


def test_the_counters_are_what_the_results_say(compiled):
    registry = hc.MemoryRegistry()
    engine = Engine(
        Growing(compiled),
        PLAN,
        IDENTITY,
        vocab_size=VOCABULARY,
        buckets=BUCKETS,
        policy=SHARED,
        metrics=hc.Metrics(registry),
    )

    def value(name, **labels):
        return registry.value(f"hybridcache_{name}", **labels)

    engine.warm_up()
    assert value("admissions_total") == value("retraces_total") == 0
    before = engine.compiled_shapes
    requests = [
        Request(prompt(40, 0), max_new_tokens=3),
        Request(prompt(40, 7, 5), max_new_tokens=4),
        Request(prompt(40, 9, 6), max_new_tokens=1, reuse=False),
        Request(prompt(0, 5, 7), max_new_tokens=2),
    ]
    results = []
    for number, request in enumerate(requests * 2):
        if number == 4:
            engine.cache = engine.prefixes.evict(engine.cache, hc.Form.SWA_WINDOW)
        results += engine.run([request])
    results += engine.run(requests)
    plans = [result.plan for result in results]
    prompts = value("prompt_tokens_total")
    assert prompts == 3 * sum(len(request.tokens) for request in requests)
    run = value("run_tokens_total", phase="prefill")
    replayed = value("run_tokens_total", phase="replay")
    assert run + replayed == sum(result.tokens_run for result in results)
    assert replayed == sum(plan.length - plan.start for plan in plans) > 0
    assert replayed == value("hit_tokens_total", tier="replayed")
    assert value("hit_tokens_total") == sum(plan.length for plan in plans)
    assert value("saved_tokens_total") + replayed + run == prompts
    # The last token of a request is not run.
    decoded = sum(len(result.tokens) - 1 for result in results)
    assert value("run_tokens_total", phase="decode") == decoded
    asked = [plan for plan in plans if plan.reason != hc.Reason.REUSE_OFF]
    assert value("lookups_total") == value("verdicts_total") == len(asked) == 9
    assert value("admissions_total") == len(plans) == value("pin_ticks")
    assert value("retraces_total") == engine.compiled_shapes - before > 0
    assert value("step_rows_total") == value("step_rows_total", status="OK")
    # As of the end of the last request.
    for pool, states in engine.prefixes.account(engine.cache).items():
        assert value("blocks", pool=pool) == states["total"]
        assert value("blocks", pool=pool, state="pinned") == 0
    assert value("index_tokens") == engine.prefixes.stored_tokens > 0


def test_evicted_windows_change_verdict_and_reason_not_the_answer(make_engine):
    engine, request = make_engine(), Request(prompt(50, 9), max_new_tokens=6)
    want = engine.run([request])[0].tokens
    engine.cache = engine.prefixes.evict(engine.cache, hc.Form.SWA_WINDOW)
    result = engine.run([request])[0]
    plan = result.plan
    # Two window layers of 10: an exact replay starts 18 before the point.
    assert plan.verdict == hc.Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (56, 38)
    assert plan.reason == hc.Reason.EVICTED
    assert [report.form for report in plan.limiting] == [hc.Form.SWA_WINDOW]
    assert result.tokens == want
    assert result.tokens_run == 59 - 38


def test_changed_weights_find_nothing_and_answer_for_themselves(make_engine, compiled):
    engine, request = make_engine(), Request(prompt(50, 0), max_new_tokens=6)
    old = engine.run([request])[0].tokens
    identity = dataclasses.replace(IDENTITY, weights="other")
    engine.update_model(compiled.with_model(random_model(1)), identity)
    result = engine.run([request])[0]
    assert result.plan.verdict == hc.Verdict.NEEDS_FULL_RECOMPUTE
    assert result.plan.reason == hc.Reason.PRODUCER_CHANGED
    assert result.plan.changed == ("weights",)
    assert result.tokens == cold(engine, request).tokens
    assert result.tokens != old
    engine.update_model(compiled, IDENTITY)
    result = engine.run([request])[0]
    assert (result.plan.verdict, result.tokens) == (hc.Verdict.RESUMABLE, old)


def test_weights_do_not_change_under_running_requests(make_engine, compiled):
    engine = make_engine()
    engine.submit(Request(prompt(5, 0)))
    with pytest.raises(ValueError, match="not finished"):
        engine.update_model(compiled, dataclasses.replace(IDENTITY, weights="x"))
    engine.run([])
    with pytest.raises(ValueError, match="did not change"):
        engine.update_model(compiled, IDENTITY)


def test_a_block_that_changes_hands_is_met_with_a_new_proof(make_engine):
    """Fault: a held block's epoch moves on under a running request."""
    engine, request = make_engine(), Request(prompt(50, 0), max_new_tokens=8)
    want = cold(make_engine(), request).tokens
    number = engine.submit(request)
    seen = []

    def listen(progress):
        seen.append(progress.kind)

    while seen.count("token") < 3:
        engine.step(listen)
    row = int(np.flatnonzero(np.array(engine.cache.rows.live))[0])
    block = int(engine.cache.rows.blocks[1][row, 2])
    table = engine.cache.tables[1]
    table = dataclasses.replace(table, epoch=table.epoch.at[block].add(1))
    tables = (engine.cache.tables[0], table)
    engine.cache = dataclasses.replace(engine.cache, tables=tables)
    while "finished" not in seen:
        engine.step(listen)
    result = engine._results[number]
    assert result.tokens == want
    # What lies behind the lost block was run again.
    assert result.plan.length <= 8


def test_stop_tokens_end_the_answer(make_engine):
    engine = make_engine()
    request = Request(prompt(20, 0), max_new_tokens=8)
    tokens = cold(engine, request).tokens
    stop = dataclasses.replace(request, stop_tokens=(tokens[3],))
    result = engine.run([stop])[0]
    assert result.finish == "stop"
    assert result.tokens == tokens[: tokens.index(tokens[3])]


def test_sampling_does_not_depend_on_batch_or_reuse(make_engine):
    sampling = SamplingParams(temperature=1.3, top_p=0.9, seed=7)
    request = Request(prompt(33, 4), max_new_tokens=8, sampling=sampling)
    other = dataclasses.replace(request, sampling=SamplingParams(1.3, 0.9, seed=8))
    want = cold(make_engine(), request).tokens
    engine = make_engine()
    first = engine.run([other, request, Request(prompt(3, 9))])
    assert first[1].tokens == want
    assert first[0].tokens != want
    again = engine.run([request])[0]
    assert again.plan.verdict == hc.Verdict.RESUMABLE
    assert again.tokens == want


def test_more_requests_than_rows_and_blocks(make_engine):
    """Small pools: requests wait, stored prefixes are evicted, answers stay right."""
    # Room for one longest sequence and a little more.
    engine = make_engine(blocks=(PLAN.blocks[0], 26 + 10))
    requests = [Request(prompt(0, 60, n), max_new_tokens=4) for n in range(6)]
    results = engine.run(requests)
    for request, result in zip(requests, results, strict=True):
        assert result.tokens == cold(make_engine(), request).tokens
    assert violations(engine.cache) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(np.array([], np.int32)), "prompt is empty"),
        (Request(np.array([1, VOCABULARY])), "position 1 lies outside the vocabulary"),
        (Request(np.array([-1])), "lies outside the vocabulary"),
        (Request(BASE, max_new_tokens=60), "plan a larger max_length"),
        (Request(BASE, max_new_tokens=0), "max_new_tokens must be >= 1"),
    ],
)
def test_bad_requests_are_refused_and_lose_nothing(make_engine, request_, message):
    engine = make_engine()
    engine.run([Request(prompt(40, 0), max_new_tokens=2)])
    with pytest.raises(ValueError, match=message):
        engine.run([Request(prompt(40, 3)), request_])
    assert engine.run([Request(prompt(40, 3), max_new_tokens=2)])[0].plan.length == 40
    assert violations(engine.cache) == []


def test_buckets_larger_than_the_plan_are_refused(compiled):
    plan = dataclasses.replace(PLAN, max_chunk=8)
    with pytest.raises(ValueError, match="exceeds the plan's max_chunk"):
        Engine(
            compiled,
            plan,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=BUCKETS,
            policy=SHARED,
        )


def test_new_models_reuse_within_a_request_only(compiled):
    """By default; within a session or a tenant if the policy says so."""
    for scope, hits in [("request", 0), ("session", 1), ("namespace", 2)]:
        engine = Engine(
            compiled,
            PLAN,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=BUCKETS,
            policy=hc.ReusePolicy(scope),
        )
        results = [
            engine.run([Request(BASE, max_new_tokens=2, session=session)])[0]
            for session in ("one", "one", "other", "")
        ]
        reused = [result.plan.length > 0 for result in results]
        assert reused[:3] == [False, hits > 0, hits > 1]
        assert len({result.tokens for result in results}) == 1
        want = {
            "request": hc.Reason.NOT_STORED,
            "session": hc.Reason.SCOPE_UNKNOWN,
            "namespace": hc.Reason.OK,
        }
        assert results[3].plan.reason == want[scope]
        assert violations(engine.cache) == []


def test_progress_tells_every_token(make_engine):
    engine, seen = make_engine(), []
    request = Request(prompt(40, 0), max_new_tokens=3)
    result = engine.run([request], seen.append)[0]
    kinds = [progress.kind for progress in seen]
    assert kinds == ["admitted", "prefill", "prefill", *["token"] * 3, "finished"]
    assert tuple(p.token for p in seen if p.kind == "token") == result.tokens
    assert 0 < result.seconds_to_first_token <= result.seconds


def test_what_a_replay_warmed_up_is_never_offered(make_engine):
    """A live replay row publishes only what lies past its resume point.

    Its window blocks below the point are exact only near the point; were they
    claimed, another request would resume on warm-up rows while the row lives.
    """
    engine, tokens = make_engine(), prompt(60, 20, 4)
    engine.run([Request(tokens[:60], max_new_tokens=1)])
    prefixes = engine.prefixes
    cache = prefixes.evict(engine.cache, hc.Form.SWA_WINDOW)
    plan = prefixes.match(cache, tokens[:61], IDENTITY)
    assert plan.verdict == hc.Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.length, plan.start) == (60, 42)
    cache, lease = prefixes.acquire(cache, plan)
    for start in range(plan.start, 74, 16):
        inputs = hc.batch_inputs(
            [(lease, tokens[start : start + 16])], batch=1, width=16
        )
        cache, _ = engine.compiled_step(cache, inputs, sampling_inputs([], 1))
        cache = prefixes.publish(cache, lease)
    assert cache.rows.length[lease.row] == 74
    # Windows of 10 reach back to 60, the resume point, from 69 on: 72 is the first
    # grid point whose window the row itself wrote past the point.
    for length in range(49, 76):
        found = prefixes.match(cache, tokens[:length], IDENTITY)
        if found.verdict == hc.Verdict.RESUMABLE:
            assert found.length >= 72
    assert found.length == 72


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "stored"), [(1, 0), (2, 12), (3, 4)])
def test_the_smallest_plans_serve(compiled, rows, stored):
    """What plan_capacity calls enough is enough, published blocks included."""
    plan = hc.plan_capacity(
        PLAN.spec,
        budget="8MiB",
        max_sequences=rows,
        max_length=96,
        max_chunk=16,
        stored_tokens=stored,
    )
    # The compiled step of the session has the shapes of another plan: one is enough.
    engine = Engine(
        compiled, plan, IDENTITY, vocab_size=VOCABULARY, buckets=BUCKETS, policy=SHARED
    )
    requests = [Request(prompt(0, 60, n), max_new_tokens=3) for n in range(rows + 1)]
    for result in engine.run(requests):
        assert len(result.tokens) == 3
    assert violations(engine.cache) == []


def test_values_of_another_branch_are_refused(make_engine, compiled):
    """Claims follow one line of cache values; a fork, a rollback, a reset are told.

    Both branches count their epochs alike, so a claim of one would be true of the
    other by accident and its content wrong.
    """
    engine = make_engine()
    prefixes, old = engine.prefixes, engine.cache
    plan = prefixes.match(old, BASE, IDENTITY)
    newer, lease = prefixes.acquire(old, plan)
    for stale in (old, hc.init(PLAN)):
        for call in (
            lambda cache: prefixes.match(cache, BASE, IDENTITY),
            lambda cache: prefixes.acquire(cache, plan),
            lambda cache: prefixes.publish(cache, lease),
            lambda cache: prefixes.release(cache, lease),
            lambda cache: prefixes.evict(cache, hc.Form.FULL_KV),
        ):
            with pytest.raises(hc.StaleCacheError, match="newest value"):
                call(stale)
    newest = prefixes.release(newer, lease)
    with pytest.raises(hc.StaleCacheError):
        prefixes.match(newer, BASE, IDENTITY)
    assert violations(newest) == []
    # A new PrefixCache takes any cache: it claims nothing yet.
    fresh = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
    assert fresh.match(newest, BASE, IDENTITY).length == 0
