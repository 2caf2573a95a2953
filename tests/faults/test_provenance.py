"""Provenance: what an approximate replay makes is marked, and exact readers pass by.

The oracle is the plain cold run: an exact reader holds its state bit for bit, however
many approximate rows ran before.
"""

import dataclasses

import numpy as np
import pytest
import toy

import hybridcache_jax as hc
from hybridcache_jax.approximate import bounded
from hybridcache_jax.codes import Provenance, Reason, Stage, Verdict
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.prefix_index import Claims
from hybridcache_jax.testing.audit import exact_claims, violations

PROMPT = [*toy.P, 7]
EXACT, APPROXIMATE = Provenance.EXACT, Provenance.APPROXIMATE


def chain():
    """Windows of 3 and 4 that are read, so that what is lost is missed later."""
    return toy.model(toy.FINE, blocks=1, style="chain")


def lost(model):
    """A session with ``toy.P`` stored and every window lost."""
    session = toy.Session(model)
    session.store(toy.P)
    session.evict(hc.Form.SWA_WINDOW)
    return session


def ask(session, replay, tokens=PROMPT):
    return session.prefixes.match(
        session.cache, tokens, session.model.identity, approximate_replay=replay
    )


def grades(session):
    """Per pool, provenance of the blocks that are in use."""
    return [
        set(np.asarray(table.provenance)[np.asarray(table.stage) != Stage.FREE])
        for table in session.cache.tables
    ]


def test_a_bounded_replay_is_asked_for_and_says_what_it_is():
    """Windows of 3 and 4: exactly from 12 - 5 = 7; the windows alone need 9 and 10."""
    session = lost(chain())
    exact = session.match(PROMPT)
    assert (exact.length, exact.start, exact.provenance) == (12, 7, EXACT)
    plan = ask(session, 1)
    assert (plan.verdict, plan.length) == (Verdict.NEEDS_PARTIAL_RECOMPUTE, 12)
    # Every position that is read is run: no fewer than the widest window needs.
    assert (plan.start, plan.provenance) == (9, APPROXIMATE)
    assert plan.tokens_to_run == 4
    assert ask(session, 4).start == 8
    assert "APPROXIMATE" in plan.explain()
    assert plan.to_dict()["provenance"] == "APPROXIMATE"
    assert plan.alternatives[0].start == 9
    # As long as the exact one, or longer: that one is taken, and is exact.
    for enough in (5, 6, 100):
        assert ask(session, enough).to_dict() == exact.to_dict()
    with pytest.raises(ValueError, match="approximate_replay must be a whole number"):
        ask(session, 0)


def test_what_an_approximate_row_writes_is_marked_and_no_exact_reader_finds_it():
    session = lost(chain())
    lease = session.acquire(ask(session, 1))
    session.feed(lease, PROMPT[9:])
    session.feed(lease, (2, 4, 6))
    assert APPROXIMATE in grades(session)[0] | grades(session)[1]
    # It really is another state than the cold run's.
    got = session.state(lease)
    assert toy.library.differences(got, toy.cold(session.model, [*PROMPT, 2, 4, 6]))
    session.release(lease)
    assert exact_claims(session.cache, session.prefixes) == []
    longer = [*PROMPT, 2, 4, 6, 8]
    plan = session.match(longer)
    assert (plan.length, plan.start, plan.provenance) == (12, 7, EXACT)
    lease = session.acquire(plan)
    session.feed(lease, longer[plan.start :])
    session.check(lease, longer)
    session.release(lease)
    assert session.match([*longer, 1]).verdict == Verdict.RESUMABLE
    assert exact_claims(session.cache, session.prefixes) == []


def test_who_opts_in_finds_approximate_prefixes_and_stays_approximate():
    session = lost(chain())
    lease = session.acquire(ask(session, 1))
    session.feed(lease, PROMPT[9:])
    session.feed(lease, (2, 4, 6))
    session.release(lease)
    plan = ask(session, 1, [*PROMPT, 2, 4, 6, 8])
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 16)
    assert plan.provenance == APPROXIMATE
    lease = session.acquire(plan)
    cache, child = session.prefixes.fork(session.cache, lease)
    session.put(cache)
    rows = np.asarray(session.cache.rows.provenance)
    assert rows[lease.row] == rows[child.row] == APPROXIMATE
    for one in (lease, child):
        session.feed(one, (8,))
        session.release(one)
    assert not np.asarray(session.cache.rows.provenance).any()
    # Where an exact prefix is as good it is preferred.
    assert ask(session, 1, PROMPT[:3]).provenance == EXACT


def test_an_exact_lease_on_approximate_blocks_is_refused():
    """Even with a forged plan: the facts know."""
    session = lost(chain())
    lease = session.acquire(ask(session, 1))
    session.feed(lease, PROMPT[9:])
    exact = dataclasses.replace(lease.plan.key, provenance=EXACT)
    forged = dataclasses.replace(lease, plan=dataclasses.replace(lease.plan, key=exact))
    with pytest.raises(hc.LeaseError, match="is approximate and its lease says exact"):
        session.prefixes.publish(session.cache, forged)
    session.release(lease)
    plan = ask(session, 1, [*PROMPT, 2])
    assert plan.provenance == APPROXIMATE
    forged = dataclasses.replace(plan, key=exact)
    with pytest.raises(hc.LeaseError, match="match again"):
        session.acquire(forged)


def test_a_claim_under_an_exact_key_does_not_make_a_block_exact():
    """The index may say what it likes; the reason names the provenance."""
    session = lost(chain())
    lease = session.acquire(ask(session, 1))
    session.feed(lease, PROMPT[9:])
    session.release(lease)
    claims = ask(session, 1, [*PROMPT, 2]).claims
    assert claims.length == 13
    key = session.match(PROMPT).key
    session.prefixes._index.insert(
        key,
        claims.tokens,
        claims.blocks,
        claims.epochs,
        lambda pool, ids, epochs, first: np.zeros(len(ids), bool),
    )
    plan = session.match([*PROMPT, 2])
    assert plan.length <= 12
    assert Reason.APPROXIMATE in {report.reason for report in plan.forms}
    assert "approximate replay" in plan.explain()
    assert exact_claims(session.cache, session.prefixes) != []


def test_the_laws_see_a_block_that_lost_its_mark():
    session = lost(chain())
    lease = session.acquire(ask(session, 1))
    session.feed(lease, PROMPT[9:11])
    rows = session.cache.rows
    exact = dataclasses.replace(rows, provenance=rows.provenance * 0)
    found = violations(dataclasses.replace(session.cache, rows=exact))
    assert any("an exact row refers to an approximate block" in law for law in found)


def test_a_rewound_approximate_row_stays_approximate():
    session = lost(chain())
    lease = session.acquire(ask(session, 1))
    session.feed(lease, PROMPT[9:])
    cache, lease = session.prefixes.rewind(session.cache, lease, 12)
    session.put(cache)
    assert int(session.cache.rows.provenance[lease.row]) == APPROXIMATE
    session.feed(lease, PROMPT[12:])
    session.release(lease)
    assert exact_claims(session.cache, session.prefixes) == []
    assert session.match([*PROMPT, 2]).length <= 12


def test_a_bounded_replay_waits_for_no_history():
    """Windows and history of 12 tokens are claimed, and nothing lies on the device."""
    model = chain()
    spec, facts = model.plan.spec, HostFacts(model.plan.spec, model.empty.tables)
    blocks = tuple(np.arange(12, dtype=np.int32) for _ in spec.pools)
    claims = Claims(12, 12, -1, (np.array(toy.P, np.int32),), blocks, blocks)
    plan = hc.PrefixCache(model.plan).cold_plan(PROMPT, model.identity)
    plan = dataclasses.replace(plan, lost_length=12, claims=claims)
    assert bounded(spec, facts, plan, 1, 1, hc.CostModel()) is plan


def test_models_with_recurrent_layers_have_no_bounded_replay():
    """A state needs its checkpoint: the exact plan stays, whatever is asked for."""
    model = toy.model((toy.STATE, *toy.FINE), blocks=1, style="chain")
    prefixes = hc.PrefixCache(model.plan)
    plan = prefixes.cold_plan(PROMPT, model.identity)
    plan = dataclasses.replace(plan, lost_length=12)
    facts = HostFacts(model.plan.spec, model.empty.tables)
    assert bounded(model.plan.spec, facts, plan, 0, 1, hc.CostModel()) is plan


def windows_alone(stored, **options):
    """Two windows of 3 over a full layer in blocks of 4; no window is ever stored."""
    layers = toy.window(3), toy.window(3), toy.FULL
    return toy.model(
        layers,
        blocks=4,
        style="chain",
        stored=stored,
        max_length=32,
        retention=hc.Retention.none(),
        **options,
    )


def test_the_approximate_way_is_taken_only_where_it_is_the_cheapest():
    """Exact: run 13 of 25 tokens.  Approximate: load for 15 and run 5, or run 11."""
    model = windows_alone(96)
    session = toy.Session(model, tier=hc.HostTier(model.plan, budget="1MiB"))
    prompt = np.random.default_rng(0).integers(0, 10, 25).tolist()
    session.store(prompt[:17])
    lease = session.acquire(ask(session, 2, prompt))
    session.feed(lease, prompt[lease.plan.start :])
    session.release(lease)
    session.evict(hc.Form.FULL_KV)
    cold = session.acquire(session.prefixes.cold_plan(prompt[:17], model.identity))
    session.feed(cold, prompt[:17])
    session.release(cold)
    block = model.plan.spec.pools[-1].block_bytes
    session.prefixes.cost = hc.CostModel(1.0, 15 / (6 * block))
    exact, plan = session.match(prompt), ask(session, 2, prompt)
    assert (exact.provenance, exact.seconds) == (EXACT, 13.0)
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.provenance, plan.seconds) == (APPROXIMATE, 11.0)
    # All that was weighed is said, the chosen one first and the others by cost.
    seconds = [way.seconds for way in plan.alternatives]
    assert seconds[0] == 11.0
    assert seconds[1:] == sorted(seconds[1:])
    assert set(exact.alternatives) < set(plan.alternatives)


def test_claims_that_are_made_twice_stay_within_the_plan_of_the_index():
    """The approximate prefix claims the exact blocks before it once more."""
    session = toy.Session(windows_alone(0))
    prompt = np.random.default_rng(0).integers(0, 10, 32).tolist()
    session.store(prompt[:25])
    lease = session.acquire(ask(session, 2, prompt))
    session.feed(lease, prompt[lease.plan.start :])
    session.release(lease)
    assert session.prefixes.stored_tokens <= session.model.plan.index_tokens
    assert not violations(session.cache)
