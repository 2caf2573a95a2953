"""K09: input identity and keys.

Prefixes are equal exactly where their sequences of (token id, content id) pairs and
their namespaces are.  Ids are compared whole: nothing is hashed or folded into a key
that two contents could share, and what is found does not depend on what else was ever
stored or asked.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import Identity, Verdict
from hybridcache_jax.contents import ContentKeys, Contents
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key

SPEC = toy.library.CacheSpec.from_layers(
    [hc.LayerSpec(global_=hc.Entries(hc.Entry.kv(1, 1)))], block_tokens=1
)
TENANTS = tuple(Key(Identity("w", "c", "l").within(name)) for name in ("a", "b"))
A, B = 0x10ABC, 0x20ABC  # equal in their low 16 bits
# Some are equal as text, some have one hash in Python.
IDS = (A, B, A + 2**61 - 1, str(A), "1", b"1", 1, 2**200, b"", "", 0, -1, -2)
PAIRS = st.lists(
    st.tuples(st.sampled_from([1, 2, 9]), st.sampled_from([None, *IDS])),
    min_size=1,
    max_size=6,
)
# Prompts, most of which begin alike.
PROMPTS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1]), PAIRS, st.integers(0, 6), st.booleans()),
    min_size=1,
    max_size=10,
)


def spans(pairs, cut=False):
    """Spans of the pairs that have content; equal neighbours in one, or each alone."""
    found = []
    for place, (_, content) in enumerate(pairs):
        if content is None:
            continue
        last = found[-1] if found else None
        same = last and last[1] == place and type(last[2]) is type(content)
        if same and last[2] == content and not cut:
            found[-1] = (last[0], place + 1, content)
        else:
            found.append((place, place + 1, content))
    return found


def ids(pairs):
    return np.array([token for token, _ in pairs], np.int32)


def common(one, other):
    """Leading pairs that are equal, the types of their content ids too."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if (a[0], type(a[1]), a[1]) != (b[0], type(b[1]), b[1]):
            return place
    return min(len(one), len(other))


def never(pool, ids, epochs, first):
    return np.zeros(len(ids), bool)


def put(index, tenant, pairs, cut=False):
    block = np.arange(len(pairs), dtype=np.int32)
    contents = Contents.of(spans(pairs, cut), len(pairs))
    index.insert(TENANTS[tenant], ids(pairs), [block], [block], never, contents)


def find(index, tenant, pairs, cut=False):
    contents = Contents.of(spans(pairs, cut), len(pairs))
    return index.lookup(TENANTS[tenant], ids(pairs), contents)


@pytest.mark.kind("K09")
@settings(max_examples=200)
@given(steps=PROMPTS)
def test_prefixes_are_equal_exactly_where_their_pairs_are(steps):
    index, stored, trunk = PrefixIndex(SPEC), [], []
    for tenant, pairs, keep, cut in steps:
        pairs = trunk[:keep] + pairs
        trunk = pairs
        for who in (0, 1):
            claims = find(index, who, pairs, cut)
            mine = [other for owner, other in stored if owner == who]
            shared = max((common(pairs, other) for other in mine), default=0)
            assert (claims.length, claims.shared) == (shared, shared)
            assert claims.tokens.tolist() == [token for token, _ in pairs[:shared]]
            # What the store has there is a real token and its own content.
            where = (claims.stored_token, claims.stored_content)
            beyond = [o[shared] for o in mine if common(pairs, o) == shared < len(o)]
            assert where in beyond if beyond else where == (-1, None)
        put(index, tenant, pairs, cut)
        stored.append((tenant, pairs))


@settings(max_examples=50)
@given(stored=PAIRS, asked=PAIRS, foreign=st.lists(PAIRS, max_size=4))
def test_what_others_stored_or_asked_is_not_observable(stored, asked, foreign):
    """Keys are given in another order: what is found is the same."""
    plain, crowded = PrefixIndex(SPEC), PrefixIndex(SPEC)
    for pairs in foreign:
        put(crowded, 1, pairs)
        find(crowded, 0, pairs)
    results = []
    for index in (plain, crowded):
        put(index, 0, stored)
        claims = find(index, 0, asked)
        where = claims.shared, claims.stored_token, claims.stored_content
        results.append((claims.length, *where, claims.tokens.tolist()))
    assert results[0] == results[1]


def test_asking_remembers_nothing_and_what_goes_is_forgotten():
    """Pairs beyond twice those that stored prefixes name, and 256, are forgotten."""
    keys, index = ContentKeys(), PrefixIndex(SPEC)
    keys.asked(ids([(9, None)] * 3), Contents.of([(0, 3, b"picture")], 3))
    assert len(keys) == 0
    put(index, 0, [(1, "stays"), (2, "stays")])
    for number in range(2000):
        put(index, 0, [(3, number), (9, None)])
        index.prune(lambda _: never, [])
        put(index, 0, [(1, "stays"), (2, "stays")])
        assert len(index._content_keys) <= 2 * 3 + 256 + 2
    assert find(index, 0, [(1, "stays"), (2, "stays")]).length == 2
    assert find(index, 0, [(3, 1999)]).length == 0


def test_a_key_that_is_given_again_stands_for_the_new_pair_alone():
    keys = ContentKeys()
    old = keys.stored(ids([(9, None)]), Contents.of([(0, 1, "old")], 1))
    keys.keep(np.zeros(0, np.int32))
    new = keys.stored(ids([(9, None)]), Contents.of([(0, 1, "new")], 1))
    assert old.tolist() == new.tolist()
    asked = keys.asked(ids([(9, None)]), Contents.of([(0, 1, "old")], 1))
    assert asked.tolist() != new.tolist()


def test_a_token_below_zero_is_never_a_key():
    index = PrefixIndex(SPEC)
    put(index, 0, [(9, A), (9, B)])
    for number in range(-5, 0):
        assert find(index, 0, [(number, None)]).shared == 0


def test_identities_have_one_digest_in_every_process():
    """A constant, so that neither seed nor platform is in it."""
    identity = Identity("w", "c", "l", "t", "a", "n", "s", 1)
    want = "2cba53494435c0249b220f63b4f4c39900dba20727ed50cccbfeebf64a7d3fe6"
    assert identity.digest == want


WRONG = {
    "empty": [(1, 1, A)],
    "backwards": [(2, 1, A)],
    "before the start": [(-1, 1, A)],
    "past the end": [(3, 5, A)],
    "overlapping": [(2, 4, A), (1, 3, B)],
    "one twice": [(1, 3, A), (1, 3, A)],
    "no id": [(1, 3, None)],
    "a truth value": [(1, 3, True)],
    "a number with a fraction": [(1, 3, 1.5)],
    "a mutable id": [(1, 3, bytearray(b"1"))],
    "a long text": [(1, 3, "é" * 129)],
    "long bytes": [(1, 3, b"1" * 129)],
    "a long number": [(1, 3, -(2**1024))],
}


@pytest.mark.parametrize("what", WRONG)
def test_contents_that_are_none_are_refused(what):
    session = toy.Session(toy.fine())
    with pytest.raises(ValueError, match=r"span \[|content id (is|has)"):
        match(session, PICTURE, WRONG[what])


def test_the_longest_content_ids_are_taken():
    session = toy.Session(toy.fine())
    for content in ("é" * 128, b"1" * 128, 2**1024 - 1):
        match(session, PICTURE, [(1, 3, content)])


# Through the façade, with blocks of one token.

PICTURE = [1, 9, 9, 2]


def match(session, tokens, contents=()):
    identity = session.model.identity
    return session.prefixes.match(session.cache, tokens, identity, contents=contents)


def store(session, tokens, contents=()):
    """Token by token, so that every position can be resumed."""
    plan = match(session, tokens, contents)
    lease = session.acquire(plan)
    for token in tokens[plan.start :]:
        session.feed(lease, [token])
        session.publish(lease)
    session.release(lease)


def test_b38_another_picture_of_the_same_size():
    """Stored with 0x10ABC: 0x20ABC may use one token, no id at most one."""
    session = toy.Session(toy.fine())
    store(session, PICTURE, [(1, 3, A)])
    same = match(session, [*PICTURE, 5], [(1, 3, A)])
    assert (same.verdict, same.length) == (Verdict.RESUMABLE, 4)
    lease = session.acquire(same)
    session.check(lease, PICTURE)  # the ids of a resumed row are token ids
    session.feed(lease, [5])

    other = match(session, [*PICTURE, 5], [(1, 3, B)])
    assert (other.verdict, other.length) == (Verdict.RESUMABLE, 1)
    assert other.shared_length == 1
    assert (other.stored_token, other.stored_content) == (9, A)
    assert f"(its content id: {A}, asked: {B})" in other.explain()
    assert other.to_dict()["stored_content"] == A

    none = match(session, [*PICTURE, 5])
    assert (none.length, none.shared_length) == (1, 1)
    assert f"(its content id: {A}, asked: none)" in none.explain()


def test_b38_a_placeholder_without_id_is_nothing_s_equal():
    """Where the cache knows the placeholders, forgetting their ids is a miss."""
    session = toy.Session(toy.fine())
    session.prefixes = hc.PrefixCache(
        session.model.plan, policy=hc.ReusePolicy("namespace"), placeholders=[9]
    )
    store(session, PICTURE)
    assert session.prefixes.stored_tokens == 1
    assert match(session, [*PICTURE, 5]).length == 1
    store(session, PICTURE, [(1, 3, A)])
    assert session.prefixes.stored_tokens == 4
    assert match(session, [*PICTURE, 5], [(1, 3, A)]).length == 4
    assert match(session, [*PICTURE, 5], [(1, 2, A)]).length == 2
    assert match(session, [*PICTURE, 5]).length == 1


@settings(max_examples=10)
@given(
    length=st.integers(0, 5),
    first=st.sampled_from([None, A]),
    second=st.sampled_from([None, A, B]),
)
def test_a_rewound_row_is_stored_with_what_it_ran_last(length, first, second):
    """Rewound into or before a picture and fed another: found by the other's id."""
    session = toy.Session(toy.fine(), hc.init(toy.fine().plan))
    before = [(1, 3, first)] if first is not None else []
    lease = session.acquire(match(session, [*PICTURE, 5], before))
    session.feed(lease, [*PICTURE, 5])
    cache, lease = session.prefixes.rewind(session.cache, lease, length)
    session.put(cache)
    pairs = [(t, first if 1 <= p < 3 else None) for p, t in enumerate([*PICTURE, 5])]
    pairs = [*pairs[:length], (9, second), (9, second), (2, None)]
    if second is not None:
        lease = lease.with_contents([(length, length + 2, second)])
    session.feed(lease, [9, 9, 2])
    child_cache, child = session.prefixes.fork(session.cache, lease)
    session.put(child_cache)
    session.release(lease, publish=False)
    session.release(child)
    for third in (None, A, B):
        asked = [*pairs[:length], (9, third), (9, third), (2, None), (4, None)]
        plan = match(session, ids(asked), spans(asked))
        assert plan.shared_length == common(asked, pairs)


def test_contents_of_a_row_lie_behind_what_it_was_admitted_with():
    session = toy.Session(toy.fine())
    store(session, PICTURE, [(1, 3, A)])
    lease = session.acquire(match(session, [*PICTURE, 5], [(1, 3, A)]))
    for wrong in ([(1, 3, B)], [(3, 5, B)], [(4, 4, B)]):
        with pytest.raises(ValueError, match="span"):
            lease.with_contents(wrong)
    assert lease.with_contents([(5, 6, B)]).plan.contents.spans == (
        (1, 3, A),
        (5, 6, B),
    )
    cold = session.prefixes.cold_plan(
        PICTURE, session.model.identity, contents=[(1, 3, B)]
    )
    assert cold.contents.at(2) == B
    assert cold.contents.at(3) is None


def test_b39_two_spellings_of_one_text():
    """7 spells what 1 and 2 spell: one token is shared, and the report says why."""
    session = toy.Session(toy.fine())
    store(session, [5, 7])
    plan = match(session, [5, 1, 2])
    assert (plan.shared_length, plan.stored_token, plan.length) == (1, 7, 1)
    assert "position 1, where token 7 is stored" in plan.explain()
