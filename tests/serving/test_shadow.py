"""Shadow runs of the engine: a wrong hit is found, narrowed, and never answered from.

Expected tokens come from cold runs of engines of their own.
"""

import numpy as np
import pytest
from small_model import BUCKETS, IDENTITY, PLAN, VOCABULARY

import hybridcache_jax as hc
from hybridcache_jax.rollout import Scope
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.testing import faults
from hybridcache_jax.testing.audit import violations

BASE = np.random.default_rng(1).integers(0, VOCABULARY, 60, dtype=np.int32)
FULL = [pool.form for pool in PLAN.spec.pools].index(hc.Form.FULL_KV)
STORED = Request(BASE[:40], max_new_tokens=1)


def question(seed, own=7, new=4, shared=40):
    extra = np.random.default_rng(seed).integers(0, VOCABULARY, own, dtype=np.int32)
    return Request(np.concatenate([BASE[:shared], extra]), max_new_tokens=new)


@pytest.fixture
def serve(compiled):
    def make(share=1.0, scope="namespace", **options):
        registry = hc.MemoryRegistry()
        policy = hc.ReusePolicy(scope, shadow_share=share, **options)
        engine = Engine(
            compiled,
            PLAN,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=BUCKETS,
            policy=policy,
            metrics=hc.Metrics(registry),
        )
        return engine, registry

    return make


@pytest.fixture(scope="module")
def cold(compiled):
    """Tokens of a request served alone, with nothing stored."""
    engine = Engine(
        compiled,
        PLAN,
        IDENTITY,
        vocab_size=VOCABULARY,
        buckets=BUCKETS,
        policy=hc.ReusePolicy("off"),
    )
    return lambda request: engine.run([request])[0].tokens


def counts(registry):
    """Hits that were chosen, compared, and found wrong."""
    names = ("sampled", "compared", "mismatches")
    return tuple(registry.value(f"hybridcache_shadow_{name}_total") for name in names)


def flip(engine, number=FULL, bit=30):
    """One bit of every stored block of a pool is another."""
    for block in faults.stored(engine.cache, number):
        engine.cache = faults.flip_bit(engine.cache, number, "k", block, bit)


def test_hits_that_are_right_stay(serve, cold):
    engine, registry = serve()
    engine.run([STORED])
    for seed in (1, 2):
        result = engine.run([question(seed)])[0]
        assert (result.plan.length, result.tokens_run) == (40, 7)
        assert result.tokens == cold(question(seed))
    assert counts(registry) == (2, 2, 0)
    assert engine.prefixes.scope(IDENTITY) is Scope.NAMESPACE
    assert violations(engine.cache) == []


@pytest.mark.parametrize("number", range(len(PLAN.spec.pools)))
def test_a_wrong_hit_is_answered_cold_and_never_met_again(serve, cold, number):
    engine, registry = serve()
    engine.run([STORED])
    flip(engine, number)
    for seed in (1, 2):
        result = engine.run([question(seed)])[0]
        assert result.tokens == cold(question(seed))
        assert (result.plan.length, result.tokens_run) == (0, 47)
        assert counts(registry) == (1, 1, 1)
    assert engine.prefixes.scope(IDENTITY) is Scope.REQUEST
    assert violations(engine.cache) == []


def test_what_a_shadow_run_is_for(serve, cold):
    """Without one the same fault is answered from, and nothing shows it."""
    engine, registry = serve(share=0.0)
    engine.run([STORED])
    flip(engine)
    result = engine.run([question(1)])[0]
    assert result.plan.length == 40
    assert result.tokens != cold(question(1))
    assert counts(registry) == (0, 0, 0)


def test_a_running_request_that_shares_the_blocks_starts_again(serve, cold):
    """It hit them while they were right; once they are not, it reads none of them."""
    first, second = question(1, new=12), question(2)
    # Of the first two hits this seed chooses the second one.
    engine, registry = serve(share=0.5, seed=0)
    engine.run([STORED])
    number = engine.submit(first)
    for _ in range(4):
        engine.step()
    (row,) = np.flatnonzero(np.asarray(engine.cache.rows.live)).tolist()
    block = int(engine.cache.rows.blocks[FULL][row, 0])
    engine.cache = faults.flip_bit(engine.cache, FULL, "k", block, 30)
    answer = engine.run([second])[0]
    assert counts(registry) == (1, 1, 1)
    assert answer.tokens == cold(second)
    while number not in engine._results:
        engine.step()
    assert engine._results[number].tokens == cold(first)
    assert violations(engine.cache) == []


def test_without_a_row_to_spare_the_sample_is_skipped(serve, cold):
    engine, registry = serve()
    engine.run([STORED])
    requests = [question(seed, own=3, new=2) for seed in (1, 2, 3)]
    for request, result in zip(requests, engine.run(requests), strict=True):
        assert result.tokens == cold(request)
        assert result.plan.length == 40
    assert counts(registry) == (3, 2, 0)


def test_a_replay_is_compared_where_it_ends(serve, cold):
    for broken in (False, True):
        engine, registry = serve()
        engine.run([STORED])
        engine.cache = engine.prefixes.evict(engine.cache, hc.Form.SWA_WINDOW)
        if broken:
            flip(engine)
        result = engine.run([question(1)])[0]
        assert counts(registry) == (1, 1, int(broken))
        assert (result.plan.length > result.plan.start) != broken
        assert result.tokens_run == 47 - result.plan.start
        assert result.tokens == cold(question(1))
        assert violations(engine.cache) == []


@pytest.mark.slow
def test_nothing_is_compiled_after_warm_up(serve, cold):
    engine, registry = serve()
    engine.warm_up()
    shapes = engine.compiled_shapes
    shadow = engine.prefixes._shadow
    functions = shadow._jitted, shadow.set_aside.jitted
    sizes = [function._cache_size() for function in functions]
    assert min(sizes) > 0  # warm: each of them has run
    engine.run([STORED])
    engine.run([question(1)])
    flip(engine)
    engine.run([question(2)])
    assert counts(registry) == (2, 2, 1)
    assert engine.compiled_shapes == shapes
    assert [function._cache_size() for function in functions] == sizes


@pytest.mark.slow
def test_a_soaked_share_never_shows_in_the_answers(serve, cold):
    """Random prompts, batches and evictions; some blocks go bad on the way.

    Every hit is sampled, so no wrong one is answered from unless no row was idle; one
    request at a time always has one.
    """
    for trial in range(6):
        rng = np.random.default_rng(trial)
        engine, registry = serve(scope="global", seed=trial)
        for turn in range(8):
            shared = int(rng.integers(1, 60))
            request = question(int(rng.integers(3)), own=5, new=3, shared=shared)
            assert engine.run([request])[0].tokens == cold(request)
            if rng.random() < 0.3:
                forms = [hc.Form.SWA_WINDOW, hc.Form.FULL_KV]
                form = forms[int(rng.integers(2))]
                engine.cache = engine.prefixes.evict(engine.cache, form)
            if turn == 5:
                flip(engine, int(rng.integers(len(PLAN.spec.pools))))
            assert violations(engine.cache) == []
        sampled, done, _ = counts(registry)
        assert sampled == done
