"""Engines over a tier and a store: requests wait for blocks, and for nothing else."""

import dataclasses

import numpy as np
import pytest
from small_model import PLAN, VOCABULARY

import hybridcache_jax as hc
from hybridcache_jax.serving.request import Request
from hybridcache_jax.store.prefix_store import StoreError
from hybridcache_jax.testing.audit import violations
from hybridcache_jax.testing.faults import FaultyTier
from hybridcache_jax.testing.stores import MemoryStore

BASE = np.random.default_rng(1).integers(0, VOCABULARY, 60, dtype=np.int32)


def prompt(shared, *own):
    return np.concatenate([BASE[:shared], np.array(own, np.int32)])


def tier():
    return FaultyTier(PLAN, budget="1MiB", known_tokens=2 * PLAN.max_length)


def cold(make_engine, request):
    return make_engine().run([dataclasses.replace(request, reuse=False)])[0]


@pytest.fixture
def store(make_engine):
    """A store to which one engine has saved a prompt of 40 tokens."""
    store, left = MemoryStore(), []
    engine = make_engine(tier(), store)
    engine.run([Request(prompt(40), max_new_tokens=4)])
    engine.flush(left.append)
    assert left[-1] == engine.prefixes.saving == 0
    engine.prefixes.close()
    return store


def test_an_engine_resumes_what_another_one_saved(make_engine, store):
    engine = make_engine(tier(), store)
    request = Request(prompt(40, 7, 7, 7), max_new_tokens=5)
    heard = []
    (result,) = engine.run([request], lambda progress: heard.append(progress.kind))
    assert heard[:2] == ["loading", "admitted"]
    assert result.waited is not None
    assert (result.waited.verdict, result.waited.length) == (hc.Verdict.NEEDS_IO, 40)
    assert (result.plan.verdict, result.plan.length) == (hc.Verdict.RESUMABLE, 40)
    assert result.tokens_run == 3
    assert result.tokens == cold(make_engine, request).tokens
    assert violations(engine.cache) == []


def test_what_is_written_back_is_saved_by_a_flush(make_engine):
    store = MemoryStore()
    engine = make_engine(tier(), store, write_back=True)
    for own in (1, 2):
        engine.run([Request(prompt(40, own), max_new_tokens=4)])
    assert store.objects == {}
    engine.flush(timeout=0)
    assert engine.prefixes.saving > 0
    engine.flush()
    assert engine.prefixes.saving == 0
    request = Request(prompt(40, 1, 7), max_new_tokens=5)
    (result,) = make_engine(tier(), store).run([request])
    assert result.plan.verdict == hc.Verdict.RESUMABLE
    assert result.tokens == cold(make_engine, request).tokens


def test_who_waits_keeps_nobody_waiting(make_engine, store):
    engine = make_engine(late := tier(), store)
    late.delay(10**6)
    heard = []
    waits, other = Request(prompt(40, 7), max_new_tokens=2), Request(prompt(0, 1, 2, 3))

    def listen(progress):
        heard.append((progress.request, progress.kind))
        if heard[-1] == (1, "finished"):
            late.delay(0)

    first, second = engine.run([waits, other], listen)
    assert heard.index((1, "finished")) < heard.index((0, "admitted"))
    assert first.plan.verdict == hc.Verdict.RESUMABLE
    assert first.tokens == cold(make_engine, waits).tokens
    assert second.tokens == cold(make_engine, other).tokens


def test_a_store_that_fails_makes_a_request_run_cold(make_engine, store):
    engine = make_engine(broken := tier(), store)
    broken.fail(StoreError("no way there"))
    request = Request(prompt(40, 7), max_new_tokens=3)
    (result,) = engine.run([request])
    assert result.waited is not None
    assert result.plan.verdict == hc.Verdict.NEEDS_FULL_RECOMPUTE
    assert result.tokens == cold(make_engine, request).tokens


def test_ten_equal_requests_load_once(make_engine, store):
    engine = make_engine(tier(), store)
    parts, get = [], store.get
    store.get = lambda name, *part: parts.append((name, *part)) or get(name, *part)
    request = Request(prompt(40, 7), max_new_tokens=2)
    results = engine.run([request] * 10)
    parts = [part for part in parts if part[0].startswith("packs/")]
    assert len(parts) == len(set(parts)) > 0
    want = cold(make_engine, request).tokens
    for result in results:
        assert result.tokens == want
        assert result.plan.length == 40


def test_what_was_evicted_comes_back_from_host_memory(make_engine):
    engine = make_engine(tier())
    request = Request(prompt(40, 7), max_new_tokens=3)
    first = engine.run([request])[0]
    for form in hc.Form:
        engine.cache = engine.prefixes.evict(engine.cache, form)
    again = engine.run([request])[0]
    assert again.waited is not None
    assert again.plan.verdict == hc.Verdict.RESUMABLE
    assert again.tokens == first.tokens == cold(make_engine, request).tokens


def test_what_is_loaded_for_one_request_is_not_promised_to_another(make_engine):
    """A runs, B waits for its blocks: C has to wait although A and C would fit."""
    full = next(n for n, p in enumerate(PLAN.spec.pools) if p.form == hc.Form.FULL_KV)
    blocks = tuple(26 if n == full else c for n, c in enumerate(PLAN.blocks))
    plan = dataclasses.replace(PLAN, blocks=blocks)
    engine = make_engine(hc.HostTier(plan, budget="1MiB"), blocks=blocks)
    long = Request(prompt(40), max_new_tokens=8)
    engine.run([dataclasses.replace(long, max_new_tokens=1)])
    for form in hc.Form:
        engine.cache = engine.prefixes.evict(engine.cache, form)
    # Waiting for a load costs next to nothing, so that it is what is chosen.
    engine.prefixes.cost = hc.CostModel(1.0, 1e-12)
    requests = [
        Request(prompt(0, *range(8)), max_new_tokens=40),
        long,
        Request(prompt(0, *range(20, 28)), max_new_tokens=44),
    ]
    heard = []
    results = engine.run(requests, lambda p: heard.append((p.request, p.kind)))
    # The one that filled the cache was number 0.
    assert heard.index((2, "loading")) < heard.index((2, "finished"))
    assert heard.index((2, "finished")) < heard.index((3, "admitted"))
    for request, result in zip(requests, results, strict=True):
        assert result.tokens == cold(make_engine, request).tokens
