"""K17: values, not references: fork, reorder, share.

States are values: for any tree of forks and appends, each leaf equals a cold run of its
own tokens, parents and siblings unchanged, over every form.  Stored records never
change.  A fork is two leases that resume the same stored prefix and diverge.
"""

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, NoRoomError, Status

MODELS = {"mixed": toy.mixed, "fine": toy.fine}
DIGITS = st.integers(1, 3)  # few digits, so that prompts share prefixes
TOKENS = st.lists(DIGITS, min_size=1, max_size=8)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), TOKENS),
        st.tuples(st.just("fork"), st.integers(0, 2), TOKENS),
        st.tuples(st.just("append"), st.integers(0, 2), TOKENS),
        st.tuples(st.just("publish"), st.integers(0, 2)),
        st.tuples(st.just("release"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("evict"), st.sampled_from([Form.SWA_WINDOW, Form.FULL_KV])),
    ),
    min_size=4,
    max_size=14,
)


class Forest:
    """Live leases with their tokens, and every stored block ever seen."""

    def __init__(self, model):
        self.session = toy.Session(model)
        self.limit = model.max_length
        self.live = []  # pairs [lease, tokens]
        self.records = {}

    def start(self, tokens):
        tokens = tokens[: self.limit]
        try:
            lease = self.session.admit(tokens)
        except NoRoomError:
            assert len(self.live) == self.session.model.rows
            return
        self.session.feed(lease, tokens[lease.plan.start :], [4, 8])
        self.live.append([lease, tokens])

    def apply(self, op, *args):
        if op == "new":
            self.start(args[0])
        elif op == "evict":
            self.session.evict(args[0])
        elif args[0] < len(self.live):
            lease, tokens = self.live[args[0]]
            if op == "fork":
                self.session.publish(lease)
                self.start(tokens + args[1])
            elif op == "append":
                more = args[1][: self.limit - len(tokens)]
                self.session.feed(lease, more)
                self.live[args[0]][1] = tokens + more
            elif op == "publish":
                self.session.publish(lease)
            else:
                self.session.release(lease, publish=args[1])
                del self.live[args[0]]

    def check(self):
        for lease, tokens in self.live:
            self.session.check(lease, tokens)
        for key, content in toy.kept_bytes(self.session.cache).items():
            assert self.records.setdefault(key, content) == content


@pytest.mark.kind("K17")
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=30)
@given(ops=OPS)
def test_every_leaf_of_a_forest_equals_cold(name, ops):
    forest = Forest(MODELS[name]())
    for op in ops:
        forest.apply(*op)
        forest.check()


@settings(max_examples=25)
@given(
    trunk=st.lists(DIGITS, min_size=5, max_size=12),
    left=st.lists(DIGITS, min_size=1, max_size=8),
    right=st.lists(DIGITS, min_size=1, max_size=8),
)
def test_two_forks_of_one_record_do_not_see_each_other(trunk, left, right):
    """Both resume the same blocks; appends of one never show in the other."""
    session = toy.Session(toy.fine())
    session.store(trunk, [1], each=True)
    a, b = session.admit(trunk + left), session.admit(trunk + right)
    stored = toy.kept_bytes(session.cache)
    # Each may hit further than the trunk only as far as it is stored.
    assert a.plan.length == b.plan.length == len(trunk)
    for k in range(8):
        parts = [(x, t[k : k + 1]) for x, t in ((a, left), (b, right)) if k < len(t)]
        if parts:
            statuses, _ = session.run(*parts)
            assert set(statuses) == {Status.OK}
    session.check(a, trunk + left)
    session.check(b, trunk + right)
    assert toy.kept_bytes(session.cache) == stored


def test_b68_a_kept_state_does_not_move():
    """s5 keeps length 5; s5 extended with 0 is not affected by s6 = extend(s5, 9)."""
    session = toy.Session(toy.fine())
    lease = session.admit(toy.P)
    session.feed(lease, toy.P[:5])
    session.publish(lease)
    s5 = session.cache
    kept_length, kept = s5.rows.length[lease.row], toy.kept_bytes(s5)

    session.feed(lease, [9])
    s6 = session.cache
    assert (int(kept_length), session.length(lease)) == (5, 6)
    session.branch(s5)
    session.check(lease, toy.P[:5])
    session.feed(lease, [0])
    session.check(lease, [*toy.P[:5], 0])

    for cache in (s5, s6, session.cache):
        session.branch(cache)
        assert session.match([*toy.P[:5], 9, 9]).length == 5
        now = toy.kept_bytes(cache)
        assert {key: now[key] for key in kept} == kept
    session.branch(s6)
    session.check(lease, [*toy.P[:5], 9])


def test_b68_a_record_does_not_grow_with_its_first_user():
    """The record of 5 tokens still has 5 after the row that made it goes on."""
    session = toy.Session(toy.fine())
    lease = session.admit(toy.P)
    session.feed(lease, toy.P[:5])
    session.publish(lease)
    before = toy.kept_bytes(session.cache)
    session.feed(lease, toy.P[5:9], [1])
    assert session.prefixes.stored_tokens == 5
    assert toy.kept_bytes(session.cache) == before
    other = session.admit([*toy.P[:5], 7])
    assert other.plan.length == 5
    values = session.state(other).v[2]
    np.testing.assert_array_equal(values.max(axis=(1, 2)), [3, 11, 24, 31, 45])
