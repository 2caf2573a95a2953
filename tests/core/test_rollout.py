"""Reuse scopes: who finds what a request stored, and what a change of scope does.

The oracle is a table of who may read whom, written down by hand.
"""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import hybridcache_jax as hc
from hybridcache_jax.approximate import marked
from hybridcache_jax.codes import Reason, Verdict
from hybridcache_jax.forms import Form
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, LayerSpec
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key, ReusePolicy, Rollout, Scope

ROW = hc.Entry.kv(1, 1)
SPEC = hc.CacheSpec.from_layers([LayerSpec(global_=Entries(ROW))], block_tokens=4)
PLAN = hc.plan_capacity(
    SPEC, budget="1MiB", max_sequences=1, max_length=16, stored_tokens=64, backend="cpu"
)
ME = Identity("w", "c", SPEC.fingerprint)
OTHER = Identity("w2", "c", SPEC.fingerprint)
P = (3, 1, 4, 1, 5, 9, 2, 6, 5)

# Four readers of what the first one stored, and from which scope on each finds it.
STORER = {"namespace": "a", "session": "s", "request": "1"}
READERS = [
    ({"namespace": "a", "session": "s", "request": "1"}, Scope.REQUEST),
    ({"namespace": "a", "session": "s", "request": "2"}, Scope.SESSION),
    ({"namespace": "a", "session": "t", "request": "2"}, Scope.NAMESPACE),
    ({"namespace": "b", "session": "t", "request": "2"}, Scope.GLOBAL),
    # Ids of other tenants say nothing.
    ({"namespace": "b", "session": "s", "request": "1"}, Scope.GLOBAL),
    ({"namespace": "", "session": "s", "request": "1"}, Scope.GLOBAL),
]


def key_of(rollout, who, identity=ME):
    return rollout.key(
        identity.within(who["namespace"]),
        request=who["request"],
        session=who["session"],
    )


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope != Scope.OFF])
@pytest.mark.parametrize(("reader", "narrowest"), READERS)
def test_keys_are_equal_exactly_where_reuse_is_allowed(scope, reader, narrowest):
    """Request ids are unique in an engine, and a session's requests are many."""
    rollout = Rollout(ReusePolicy(scope))
    allowed = scope >= narrowest
    assert (key_of(rollout, reader) == key_of(rollout, STORER)) == allowed
    assert key_of(rollout, reader).reason == Reason.OK
    assert key_of(rollout, reader, OTHER) != key_of(rollout, STORER)


def test_ids_do_not_run_into_each_other_across_scopes():
    """A request called like a session or a tenant is neither."""
    keys = {
        Rollout(ReusePolicy(scope)).key(ME.within("x"), request="x", session="x")
        for scope in Scope
    }
    assert len(keys) == len(Scope)
    empty = Rollout(ReusePolicy("global")).key(ME.within("x"))
    assert empty != Rollout(ReusePolicy("namespace")).key(ME.within(""))


@pytest.mark.parametrize(
    ("scope", "given", "reason"),
    [
        ("off", {"request": "1", "session": "s"}, Reason.REUSE_OFF),
        ("request", {"session": "s"}, Reason.SCOPE_UNKNOWN),
        ("session", {"request": "1"}, Reason.SCOPE_UNKNOWN),
        ("namespace", {}, Reason.OK),
        ("global", {}, Reason.OK),
    ],
)
def test_a_scope_says_what_it_lacks(scope, given, reason):
    rollout = Rollout(ReusePolicy(scope))
    key = rollout.key(ME, **given)
    assert key.reason == reason
    assert rollout.holds(key) == (reason == Reason.OK)
    plan = hc.PrefixCache(PLAN, policy=ReusePolicy(scope)).match(
        hc.init(PLAN), P, ME, **given
    )
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert plan.reason == (Reason.NOT_STORED if reason == Reason.OK else reason)
    if reason != Reason.OK:
        assert reason.explanation in plan.explain()


def test_an_unknown_producer_shares_nothing_in_any_scope():
    stranger = dataclasses.replace(ME, weights=None)
    for scope in Scope:
        key = Rollout(ReusePolicy(scope)).key(stranger, request="1", session="s")
        assert key.reason != Reason.OK


def test_new_models_start_at_request():
    assert ReusePolicy().scope is Scope.REQUEST
    assert hc.PrefixCache(PLAN).scope(ME) is Scope.REQUEST


def test_a_policy_can_be_copied_and_pickled():
    policy = ReusePolicy("session", {ME: "global"}, 0.25, 7, 0.5)
    for same in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert same == policy != ReusePolicy()
        with pytest.raises(TypeError):
            same.producers[ME] = Scope.OFF


def test_scopes_are_ordered_and_have_names():
    names = ["off", "request", "session", "namespace", "global"]
    assert [Scope.of(name) for name in names] == sorted(Scope)
    assert [ReusePolicy(name).scope for name in names] == list(Scope)
    for wrong in ("tenant", "GLOBAL", "", None, 7):
        with pytest.raises(ValueError, match="expected one of off, request"):
            ReusePolicy(wrong)
        with pytest.raises(ValueError, match="expected one of off, request"):
            Rollout(ReusePolicy()).set_scope(ME, wrong)
    with pytest.raises(ValueError, match="request must be a string"):
        Rollout(ReusePolicy()).key(ME, request=7)


def test_producers_have_scopes_of_their_own_whatever_the_namespace():
    policy = ReusePolicy("off", {ME.within("a"): "namespace"})
    rollout = Rollout(policy)
    assert rollout.scope(ME) == rollout.scope(ME.within("b")) == Scope.NAMESPACE
    assert rollout.scope(OTHER) == Scope.OFF
    rollout.set_scope(OTHER.within("c"), "global")
    assert (rollout.scope(OTHER), rollout.scope(ME)) == (Scope.GLOBAL, Scope.NAMESPACE)
    # The policy itself is a value, and stays.
    assert policy.producers == {ME: Scope.NAMESPACE}
    assert Rollout(policy).scope(OTHER) == Scope.OFF
    with pytest.raises(TypeError):
        policy.producers[OTHER] = Scope.GLOBAL


@pytest.mark.parametrize("between", ["off", "request", "session", "global"])
def test_nothing_from_before_a_change_is_found_after_it(between):
    """Not even after coming back to the scope it was stored in."""
    rollout = Rollout(ReusePolicy("namespace"))
    before, other = rollout.key(ME), rollout.key(OTHER)
    assert rollout.holds(before)
    assert rollout.set_scope(ME, between)
    assert not rollout.holds(before)
    assert rollout.key(ME, request="1", session="s") != before
    assert rollout.set_scope(ME, Scope.NAMESPACE)
    assert not rollout.holds(before)
    assert rollout.key(ME) != before
    assert rollout.holds(rollout.key(ME))
    assert rollout.key(OTHER) == other
    assert rollout.holds(other)


def test_the_same_scope_again_is_no_change():
    rollout = Rollout(ReusePolicy("namespace"))
    before = rollout.key(ME)
    assert not rollout.set_scope(ME, "namespace")
    assert rollout.key(ME) == before
    assert rollout.holds(before)


def never(pool, ids, epochs, first):
    return np.zeros(len(ids), bool)


# --- over a cache -------------------------------------------------------------------


def stored(prefixes, identity=ME, **ids):
    """Puts true claims for ``P[:8]`` in, as a run that published would."""
    key = prefixes.cold_plan(P, identity, **ids).key
    cache = hc.init(PLAN)
    table, version = cache.tables[0], prefixes._version(cache, key.identity)
    ids_of = np.arange(2, dtype=np.int32)
    columns = {"stage": 2, "form": int(Form.FULL_KV), "version": version, "kept": True}
    table = dataclasses.replace(
        table,
        first=table.first.at[ids_of].set(ids_of * 4),
        **{k: getattr(table, k).at[ids_of].set(v) for k, v in columns.items()},
        num_free=table.num_free - 2,
    )
    prefixes._index.insert(
        key, np.array(P[:8], np.int32), [ids_of], [ids_of * 0], never
    )
    return dataclasses.replace(cache, tables=(table,))


def test_a_demotion_takes_effect_at_once():
    prefixes = hc.PrefixCache(PLAN, policy=ReusePolicy("namespace"))
    cache = stored(prefixes)
    plan = prefixes.match(cache, P, ME)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)
    prefixes.set_scope(ME.within("elsewhere"), "request")
    assert prefixes.scope(ME) is Scope.REQUEST
    assert prefixes.stored_tokens == 0
    for request in ("1", "2"):
        again = prefixes.match(cache, P, ME, request=request)
        assert (again.length, again.reason) == (0, Reason.NOT_STORED)
    # Nor by a plan that was matched before.
    with pytest.raises(
        hc.LeaseError,
        match="was given up since it was matched, or its reuse scope changed",
    ):
        prefixes.acquire(cache, plan)
    prefixes.set_scope(ME, "namespace")
    assert prefixes.match(cache, P, ME).reason == Reason.NOT_STORED
    with pytest.raises(
        hc.LeaseError,
        match="was given up since it was matched, or its reuse scope changed",
    ):
        prefixes.acquire(cache, plan)


def test_only_the_demoted_producer_loses_what_it_stored():
    prefixes = hc.PrefixCache(PLAN, policy=ReusePolicy("namespace"))
    cache = stored(prefixes)
    prefixes.set_scope(OTHER, "off")
    assert prefixes.match(cache, P, ME).length == 8
    assert prefixes.match(cache, P, OTHER).reason == Reason.REUSE_OFF


def test_who_may_not_read_learns_nothing():
    """Not even that another producer stored the same tokens for somebody else."""
    prefixes = hc.PrefixCache(PLAN, policy=ReusePolicy("request"))
    cache = stored(prefixes, request="1")
    assert prefixes.match(cache, P, ME, request="1").length == 8
    for identity in (ME, OTHER):
        plan = prefixes.match(cache, P, identity, request="2")
        assert (plan.reason, plan.changed) == (Reason.NOT_STORED, ())
        assert plan.shared_length == plan.claimed_length == 0
    mine = prefixes.match(cache, P, OTHER, request="1")
    assert (mine.reason, mine.changed) == (Reason.PRODUCER_CHANGED, ("weights",))


def test_a_request_that_is_over_leaves_nothing_to_find():
    for scope, left in [("request", 0), ("session", 8), ("namespace", 8)]:
        prefixes = hc.PrefixCache(PLAN, policy=ReusePolicy(scope))
        ids = {"request": "1", "session": "s"}
        cache = stored(prefixes, **ids)
        plan = prefixes.match(cache, P, ME, **ids)
        assert plan.length == 8
        prefixes.end_request(prefixes.cold_plan(P, ME, request="2", session="s"))
        assert prefixes.stored_tokens == 8
        prefixes.end_request(plan)
        assert prefixes.stored_tokens == left


def test_what_an_approximate_replay_stored_goes_with_its_request():
    prefixes = hc.PrefixCache(PLAN, policy=ReusePolicy("request"))
    plan, none = prefixes.cold_plan(P, ME, request="1"), [np.zeros(1, np.int32)]
    for key in (plan.key, marked(plan).key):
        prefixes._index.insert(key, np.array(P[:4], np.int32), none, none, never)
    assert prefixes.stored_tokens == 8
    prefixes.end_request(plan)
    assert prefixes.stored_tokens == 0


def test_what_all_share_is_of_one_version_in_every_namespace():
    prefixes = hc.PrefixCache(PLAN, policy=ReusePolicy("global"))
    cache = stored(prefixes, ME.within("a"))
    for namespace in ("a", "b", ""):
        assert prefixes.match(cache, P, ME.within(namespace)).length == 8


def test_an_index_drops_the_keys_it_is_told():
    index, none = PrefixIndex(SPEC), [np.zeros(1, np.int32)]
    a, b = Key(ME), Key(OTHER)
    for key in (a, b):
        index.insert(key, np.array(P[:4], np.int32), none, none, never)
    index.drop(lambda key: key == a)
    assert index.stored_keys() == (b,)
    assert index.stored_tokens == 4
