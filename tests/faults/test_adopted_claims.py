"""A PrefixCache that goes on from a snapshot answers as the one that was saved did.

The snapshot goes through everything but Orbax here: arrays, metadata as JSON text and
back.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import Saved
from tiered import FORMS

import hybridcache_jax as hc
from hybridcache_jax import Verdict, eviction
from hybridcache_jax.codes import Stage
from hybridcache_jax.lineage import with_tables
from hybridcache_jax.saved_claims import SavedClaims
from hybridcache_jax.store.snapshot_arrays import (
    cache_leaves,
    cache_of,
    claim_arrays,
    claim_leaves,
)
from hybridcache_jax.store.snapshot_manifest import decode, encode

P = list(toy.P)


def carried(session):
    """Cache and claims as another process gets them."""
    plan = session.model.plan
    claims = session.prefixes.saved_claims(session.cache)
    text = json.dumps(encode(plan, claims, (0,) * len(claims.keys), {}))
    said = decode(json.loads(text))
    leaves = claim_leaves(plan, claims)
    copies = {name: np.array(leaf) for name, leaf in leaves.items()}
    again = SavedClaims(
        keys=said.keys,
        versions=said.versions,
        contents=said.contents,
        stamp=claims.stamp,
        **claim_arrays(plan, copies),
    )
    arrays = {name: np.array(x) for name, x in cache_leaves(session.cache).items()}
    cache = jax.device_put(cache_of(plan, arrays), may_alias=False)
    return cache, again


def adopted(session, **options):
    after = toy.Session(session.model, **options)
    after.put(after.prefixes.adopt(*carried(session)))
    return after


def answers(session, prompts):
    plans = map(session.match, prompts)
    return [(plan.verdict, plan.length, plan.start) for plan in plans]


def same_answers(before, after, prompts):
    assert answers(after, prompts) == answers(before, prompts)
    for prompt in prompts:
        lease = after.admit(prompt)
        after.feed(lease, prompt[lease.plan.start :])
        state = toy.library.held(after.model, after.cache, lease.row)
        want = toy.cold(after.model, prompt)
        assert toy.library.differences(state, want) == []
        after.release(lease, publish=False)


@settings(max_examples=3)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(range(3)), min_size=1, max_size=12),
            st.sampled_from([None, *FORMS]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_prompt_is_answered_as_before(history):
    before = toy.Session(toy.fine())
    for tokens, form in history:
        before.store(tokens)
        if form is not None:
            before.evict(form)
    # Rows that run say nothing of what is stored.
    running = before.admit([9, 9, 9])
    before.feed(running, [9, 9, 9])
    prompts = [[*tokens, 7] for tokens, _ in history]
    same_answers(before, adopted(before), prompts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparse", "recurrent"])
def test_layers_of_every_kind(name):
    before = toy.Session(toy.EVERY_KIND[name]())
    for tokens in (P, [*P[:6], 0, 1, 2, 3, 4], [7] * 9):
        before.store(tokens)
    prompts = [[*P, 0], [*P[:6], 0, 1, 2, 3, 4, 5], [7] * 9, [7] * 5]
    after = adopted(before)
    same_answers(before, after, prompts)
    for form in FORMS[::2]:
        after.evict(form)
    # A restart of a restart.
    same_answers(after, adopted(after), prompts)


def test_an_eviction_that_was_begun_is_settled():
    before = toy.Session(toy.fine())
    before.store(P)
    tables = [
        eviction.begin(t, np.int32(3), np.zeros(t.stage.shape, bool))[0]
        for t in before.cache.tables
    ]
    before.cache = with_tables(before.cache, tables)
    assert any((np.asarray(t.stage) == Stage.EVICTING).any() for t in tables)
    after = adopted(before)
    assert after.match([*P, 0]).verdict == Verdict.RESUMABLE
    assert not any((np.asarray(t.stage) > 2).any() for t in after.cache.tables)


@pytest.mark.slow
def test_what_lies_in_a_store_is_found_there():
    before = Saved(toy.fine(), store=None)
    before.store(P)
    before.save()
    before.move_out()
    other = [8, 8, 2, 8, 8, 8]
    before.store(other)
    assert before.match([*P, 0]).verdict == Verdict.NEEDS_IO
    # Over the store it is found there.
    both = before.restarted()
    both.put(both.prefixes.adopt(*carried(before)))
    assert both.match([*other, 0]).verdict == Verdict.RESUMABLE
    lease = both.admit([*P, 0])
    assert lease.plan.length == len(P)
    state = toy.library.held(both.model, both.cache, lease.row)
    want = toy.cold(both.model, P)
    assert toy.library.differences(state, want) == []


def test_places_of_an_outer_tier_are_not_claimed_of_another_tier():
    before = Saved(toy.fine())
    before.store(P)
    before.evict(hc.Form.SWA_WINDOW)
    assert before.match([*P, 0]).verdict == Verdict.NEEDS_IO
    after = Saved(toy.fine())
    after.put(after.prefixes.adopt(*carried(before)))
    # Other windows come to lie at the same places, at the same epochs and positions.
    after.store([8 - token % 2 for token in P])
    after.evict(hc.Form.SWA_WINDOW)
    assert after.match([*P, 0]).verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE


@pytest.mark.parametrize(
    ("some", "count", "out"), [(toy.only_full, 7, True), (toy.only_window, 12, False)]
)
def test_no_more_is_claimed_than_a_reader_believes(some, count, out):
    """Beside an outer tier an index knows more tokens than the plan alone allows."""
    before = Saved(some())
    most = before.model.plan.index_tokens
    prompts = [[n % 9, n // 9, *P[2:]] for n in range(count)]
    for prompt in prompts:
        before.store(prompt)
        if out and prompt != prompts[-1]:
            before.move_out()
    assert before.prefixes.stored_tokens > most
    claims = before.prefixes.saved_claims(before.cache)
    # What lies outside alone takes no room that what is here needs.
    assert len(claims.tokens) == (len(P) if out else most)
    after = Saved(before.model)
    after.put(after.prefixes.adopt(*carried(before)))
    same = after.match([*prompts[-1], 0])
    assert (same.verdict, same.length) == (Verdict.RESUMABLE, len(P))


def test_placeholders_of_today_are_not_stored_without_content():
    before = toy.Session(toy.fine())
    before.store(P, (1,), each=True)
    where = P.index(9)
    assert before.match([*P[:where], 0]).length == where
    after = adopted(before, placeholders=[9])
    assert after.match([*P[:where], 0]).length == where
    assert after.prefixes.stored_tokens == where


def test_adopted_blocks_count_as_stored():
    before = toy.Session(toy.fine())
    before.store(P)
    registry = hc.MemoryRegistry()
    after = adopted(before, metrics=hc.Metrics(registry))
    samples = registry.snapshot()["hybridcache_stored_blocks_total"]["samples"]
    kept = sum(int(np.asarray(table.kept).sum()) for table in after.cache.tables)
    assert sum(sample["value"] for sample in samples) == kept > 0


def test_leases_of_before_do_not_run_after():
    before = toy.Session(toy.fine())
    lease = before.admit([1, 2, 3])
    before.feed(lease, [1, 2, 3])
    after = adopted(before)
    row = after.admit([4, 4])
    assert row.row == lease.row
    _, status, _ = after.step(after.cache, after.inputs([(lease, [4])]))
    assert hc.Status(int(status[0])) == hc.Status.STALE
    with pytest.raises(hc.LeaseError):
        after.prefixes.release(after.cache, lease, publish=False)
    with pytest.raises(hc.LeaseError):
        after.prefixes.publish(after.cache, lease)


def test_claims_of_another_plan_or_an_older_value_are_refused():
    before = toy.Session(toy.fine())
    older = before.cache
    before.store(P)
    with pytest.raises(hc.StaleCacheError):
        before.prefixes.saved_claims(older)
    cache, claims = carried(before)
    other = hc.PrefixCache(dataclasses.replace(before.model.plan, stored_tokens=49))
    with pytest.raises(hc.StaleCacheError, match="another plan"):
        other.adopt(cache, claims)
    twin = toy.Session(toy.fine())
    twin.store(P[::-1])
    third = hc.PrefixCache(twin.model.plan)
    with pytest.raises(hc.StaleCacheError, match="claims are of another cache"):
        third.adopt(twin.cache, claims)
    # It follows none yet.
    third.adopt(*carried(twin))
