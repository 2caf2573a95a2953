"""Who may reuse what: one field changed is a miss that names the field.

A tiny model without weights stores ``P[:8]`` once; each entry is ``10 p + t``.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridcache_jax as hc
from hybridcache_jax.codes import Reason, Status, Verdict
from hybridcache_jax.entry import Entry
from hybridcache_jax.identity import FORMAT_VERSION, Identity
from hybridcache_jax.layers import Entries, LayerSpec, Window

P = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
ROW = Entry.kv(1, 1)
SPEC = hc.CacheSpec.from_layers(
    [LayerSpec(local=Window(3, ROW)), LayerSpec(global_=Entries(ROW))], block_tokens=4
)
PLAN = hc.plan_capacity(
    SPEC,
    budget="1MiB",
    max_sequences=2,
    max_length=16,
    max_chunk=8,
    stored_tokens=64,
    backend="cpu",
)
SHARED = hc.ReusePolicy(scope="namespace")
ME = Identity(
    weights="w1",
    config="c1",
    layout=SPEC.fingerprint,
    tokenizer="t1",
    adapter="a1@1.0",
    numerics="highest",
    namespace="tenant-a",
)


@functools.partial(jax.jit, donate_argnums=0)
def step(cache, inputs):
    view = hc.begin_step(cache, inputs, 10)
    entry = (view.positions * 10 + inputs.tokens)[:, :, None, None]
    for layer in range(2):
        view = view.append(
            layer, k=entry.astype(jnp.float32), v=entry.astype(jnp.float32)
        )
    return hc.end_step(view), view.status


def run(prefixes, cache, identity, tokens, *, publish=True):
    """Runs a prompt from wherever it can be resumed, and gives the row back."""
    lease_plan = prefixes.match(cache, tokens, identity)
    cache, lease = prefixes.acquire(cache, lease_plan)
    rest = list(tokens[lease_plan.start :])
    cache, status = step(cache, hc.batch_inputs([(lease, rest)], batch=1, width=8))
    assert status.tolist() == [Status.OK]
    return prefixes.release(cache, lease, publish=publish)


@pytest.fixture(scope="module")
def store():
    """A store that holds ``P[:8]`` of ME and nothing else."""
    prefixes = hc.PrefixCache(PLAN, policy=SHARED)
    return prefixes, run(prefixes, hc.init(PLAN), ME, P[:8])


@pytest.fixture
def ask(store):
    prefixes, cache = store

    def match(identity, tokens=P[:9]):
        return prefixes.match(cache, tokens, identity)

    return match


def assert_hit(plan):
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)
    assert plan.reason == Reason.OK
    assert plan.changed == ()


def assert_miss(plan, reason, changed=()):
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert plan.length == plan.start == 0
    assert (plan.reason, plan.changed) == (reason, changed)
    assert plan.claimed_length == 0


# --- K08: one field at a time -------------------------------------------------------

PRODUCER = [
    field.name for field in dataclasses.fields(Identity) if field.name != "namespace"
]


def changed(field, value=None):
    if value is None:
        value = FORMAT_VERSION + 1 if field == "format_version" else "other"
    return dataclasses.replace(ME, **{field: value})


def test_the_producer_itself_hits(ask):
    assert_hit(ask(ME))
    assert_hit(ask(dataclasses.replace(ME)))


@pytest.mark.parametrize("field", PRODUCER)
def test_any_one_field_is_a_miss_that_names_it(ask, field):
    assert_hit(ask(ME))
    plan = ask(changed(field))
    assert_miss(plan, Reason.PRODUCER_CHANGED, (field,))
    assert f"differs in: {field}" in plan.explain()
    assert plan.to_dict()["changed"] == [field]
    assert plan.shared_length == 0


@pytest.mark.parametrize("field", ["tokenizer", "adapter", "numerics"])
def test_an_empty_field_is_a_value_too(ask, field):
    assert_miss(ask(changed(field, "")), Reason.PRODUCER_CHANGED, (field,))


def test_all_changed_fields_are_named(ask):
    other = dataclasses.replace(ME, weights="w2", adapter="")
    plan = ask(other)
    assert_miss(plan, Reason.PRODUCER_CHANGED, ("weights", "adapter"))


def test_other_tokens_are_not_a_change_of_producer(ask):
    """The other producer stored something, but not this."""
    plan = ask(changed("weights"), [9, 9, 9, 9, 9])
    assert_miss(plan, Reason.NOT_STORED)


def test_digest_and_differences_follow_the_fields():
    assert ME.digest == dataclasses.replace(ME).digest
    digests = {ME.digest}
    for field in [*PRODUCER, "namespace"]:
        other = changed(field)
        assert ME.differences(other) == other.differences(ME) == (field,)
        digests.add(other.digest)
    assert len(digests) == len(PRODUCER) + 2
    assert ME.differences(ME) == ()
    # Fields do not run into each other.
    one = dataclasses.replace(ME, tokenizer="ab", adapter="c")
    two = dataclasses.replace(ME, tokenizer="a", adapter="bc")
    assert one.digest != two.digest


def test_identity_is_fixed_when_the_work_starts():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ME.weights = "w2"


# --- B36: adapters ------------------------------------------------------------------


def test_b36_adapters_and_the_base_are_apart():
    prefixes = hc.PrefixCache(PLAN, policy=SHARED)
    base = dataclasses.replace(ME, adapter="")
    with_a = dataclasses.replace(ME, adapter="A@1.0#digest1")
    cache = run(prefixes, hc.init(PLAN), with_a, P[:8])
    for adapter, hits in [
        ("A@1.0#digest1", True),
        ("A@0.5#digest1", False),
        ("B@1.0#digest9", False),
        ("", False),
        ("A@1.0#digest2", False),  # reloaded under the same name, new weights
    ]:
        plan = prefixes.match(cache, P[:9], dataclasses.replace(ME, adapter=adapter))
        if hits:
            assert_hit(plan)
        else:
            assert_miss(plan, Reason.PRODUCER_CHANGED, ("adapter",))
    cache = run(prefixes, cache, base, P[:8])
    assert_hit(prefixes.match(cache, P[:9], base))
    assert_hit(prefixes.match(cache, P[:9], with_a))
    mine = prefixes.match(cache, P[:9], base).claims.blocks[1]
    theirs = prefixes.match(cache, P[:9], with_a).claims.blocks[1]
    assert not set(mine.tolist()) & set(theirs.tolist())


# --- K10, B41: tenants --------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["tenant-b", "", "tenant-a ", "TENANT-A"])
def test_b41_another_tenant_sees_nothing(ask, namespace):
    """Not even that there was something: the plan is that of an empty store."""
    stranger = ME.within(namespace)
    plan = ask(stranger)
    assert_miss(plan, Reason.NOT_STORED)
    assert plan.shared_length == plan.claimed_length == plan.history_length == 0
    empty = hc.PrefixCache(PLAN, policy=SHARED).match(hc.init(PLAN), P[:9], stranger)
    assert plan.to_dict() == empty.to_dict()
    assert plan.explain() == empty.explain()
    # The paired check: a cache that never hits would pass the above.
    assert_hit(ask(stranger.within("tenant-a")))


def test_b41_another_tenant_with_other_weights_learns_nothing(ask):
    """A changed producer is only named inside the namespace."""
    stranger = dataclasses.replace(ME, namespace="tenant-b", weights="w2")
    assert_miss(ask(stranger), Reason.NOT_STORED)
    assert_miss(ask(stranger.within("tenant-a")), Reason.PRODUCER_CHANGED, ("weights",))


def test_b41_tenants_share_nothing_they_store():
    prefixes = hc.PrefixCache(PLAN, policy=SHARED)
    cache = hc.init(PLAN)
    tenants = [ME.within(name) for name in ("a", "b", None)]
    for number, tenant in enumerate(tenants):
        assert_miss(prefixes.match(cache, P[:9], tenant), Reason.NOT_STORED)
        cache = run(prefixes, cache, tenant, P[:8])
        for other, identity in enumerate(tenants):
            plan = prefixes.match(cache, P[:9], identity)
            if other <= number:
                assert_hit(plan)
            else:
                assert_miss(plan, Reason.NOT_STORED)
    blocks = [
        set(prefixes.match(cache, P[:9], tenant).claims.blocks[1].tolist())
        for tenant in tenants
    ]
    assert len(set.union(*blocks)) == sum(map(len, blocks)) == 6


@pytest.mark.parametrize("namespace", [0, False, 0.0, b"", (), 1])
def test_a_namespace_that_is_no_name_is_not_the_shared_one(namespace):
    with pytest.raises(ValueError, match="namespace must be a string"):
        ME.within(namespace)
    with pytest.raises(ValueError, match="namespace must be a string"):
        dataclasses.replace(ME, namespace=namespace)


def test_no_namespace_and_the_empty_one_are_the_same():
    assert ME.within(None) == ME.within("")
    assert ME.within(None).digest == ME.within("").digest
    assert ME.within(None).namespace == ""
    assert ME.within("tenant-a") == ME
    prefixes = hc.PrefixCache(PLAN, policy=SHARED)
    cache = run(prefixes, hc.init(PLAN), ME.within(None), P[:8])
    assert_hit(prefixes.match(cache, P[:9], ME.within("")))
    assert_hit(prefixes.match(cache, P[:9], ME.within(None)))


# --- an identity that is not known --------------------------------------------------

UNKNOWN = [("weights", None), ("config", None), ("weights", ""), ("layout", "")]


@pytest.mark.parametrize(("field", "value"), UNKNOWN)
def test_an_incomplete_identity_never_hits(ask, field, value):
    stranger = dataclasses.replace(ME, **{field: value})
    assert not stranger.complete
    plan = ask(stranger)
    assert_miss(plan, Reason.IDENTITY_UNKNOWN)
    assert plan.shared_length == 0


@pytest.mark.parametrize(("field", "value"), UNKNOWN[:2])
def test_an_incomplete_identity_stores_nothing(field, value):
    """It runs, but neither it nor anybody else finds what it ran."""
    stranger = dataclasses.replace(ME, **{field: value})
    prefixes = hc.PrefixCache(PLAN, policy=SHARED)
    cache = run(prefixes, hc.init(PLAN), stranger, P[:8])
    assert prefixes.stored_tokens == 0
    for counts in prefixes.account(cache).values():
        assert counts["free"] == counts["total"]
    assert_miss(prefixes.match(cache, P[:9], stranger), Reason.IDENTITY_UNKNOWN)
    assert_miss(prefixes.match(cache, P[:9], ME), Reason.NOT_STORED)


def test_completeness_asks_for_content_only():
    assert ME.complete
    assert Identity("w", "c", "l").complete
    for field, value in UNKNOWN:
        assert not dataclasses.replace(ME, **{field: value}).complete


# --- B35 and what else a lookup must not claim --------------------------------------


def test_b35_same_content_is_the_same_producer(ask):
    """Nothing but content is in an identity: no path, host, name or time."""
    names = {field.name for field in dataclasses.fields(Identity)}
    assert names == {
        "weights",
        "config",
        "layout",
        "tokenizer",
        "adapter",
        "numerics",
        "namespace",
        "format_version",
    }
    assert_hit(ask(Identity(**dataclasses.asdict(ME))))


def test_a_layout_that_differs_in_a_block_size_is_another(ask):
    other = hc.CacheSpec.from_layers(SPEC.layers, block_tokens=8)
    assert other.fingerprint != SPEC.fingerprint
    plan = ask(dataclasses.replace(ME, layout=other.fingerprint))
    assert_miss(plan, Reason.PRODUCER_CHANGED, ("layout",))


def test_prompts_that_cannot_hit_say_why(ask):
    assert_miss(ask(ME, []), Reason.EMPTY_PROMPT)
    assert_miss(ask(ME, P[:4]), Reason.SHORTER_THAN_GRID)
    assert_miss(ask(ME, [9, *P[1:9]]), Reason.NOT_STORED)
    assert (ask(ME, P[:5]).length, ask(ME, P[:8]).length) == (4, 4)


def test_b39_the_first_difference_of_a_prompt(ask):
    plan = ask(ME, [*P[:6], 0, 0, 0])
    assert (plan.length, plan.shared_length) == (4, 6)
    assert plan.alignment_loss == 2
    assert (plan.stored_token, P[6]) == (2, 2)
    assert "position 6, where token 2 is stored" in plan.explain()
    assert ask(ME.within("tenant-b"), [*P[:6], 0, 0, 0]).stored_token == -1


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[1, 2], [3, 4]], "flat sequence"),
        ([1.0, 2.0], "flat sequence"),
        (np.array([1, 2**31]), "must fit int32"),
        (np.array([1, -(2**40)]), "must fit int32"),
        (list(range(17)), "max_length"),
    ],
)
def test_prompts_that_are_none(ask, tokens, message):
    with pytest.raises(ValueError, match=message):
        ask(ME, tokens)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint32])
def test_the_dtype_of_the_prompt_does_not_matter(ask, dtype):
    assert_hit(ask(ME, np.array(P[:9], dtype)))


def test_matching_changes_nothing(store, ask):
    prefixes, cache = store
    before = jax.tree.map(np.array, cache)
    stored = prefixes.stored_tokens
    first = ask(ME).to_dict()
    for identity in (changed("weights"), ME.within("b"), changed("config", "")):
        ask(identity)
    assert ask(ME).to_dict() == first
    assert prefixes.stored_tokens == stored == 8
    for now, then in zip(jax.tree.leaves(cache), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(now, then)


def test_an_id_below_zero_is_never_stored(ask):
    """It fits int32, so it is asked for as it is, and a step reports it."""
    plan = ask(ME, [*P[:4], -1, *P[5:9]])
    assert plan.shared_length == 4
    assert plan.length <= 4
