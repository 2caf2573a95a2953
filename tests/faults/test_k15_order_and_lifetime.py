"""K15, K16: order and lifetime; publish after write; duplicates.  On the device.

Whatever the order of lookups, leases, steps that donate their cache, evictions and
publications: each call uses its arguments as they were when it was made, a prefix is
found only after the step that wrote it and its publication, a lookup that an eviction
overtook is refused or right, and equal prompts in flight all end like a cold run.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import Form, LeaseError, NoRoomError, Status, Verdict

# Prompts that share 12, 6 and no tokens with the first.
PROMPTS = (
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7],
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 1, 1],
    [3, 1, 4, 1, 5, 9, 0, 0, 0, 0],
    [2, 7, 1, 8, 2, 8, 1, 8, 2],
)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["match", "acquire", "step", "publish", "end", "evict"]),
        st.integers(0, 11),
    ),
    min_size=6,
    max_size=24,
)


@functools.cache
def donating_step():
    return jax.jit(toy.only_full().body, donate_argnums=0)


class Caller:
    """Lends its buffers to every call and overwrites them as soon as it returns."""

    def __init__(self, session):
        self.session = session
        self.buffers = np.zeros((3, 24), np.int32)
        self.live = []
        self.published = {}  # number of a prompt to tokens published of it

    def lent(self, tokens, place=0):
        self.buffers[place, : len(tokens)] = tokens
        return self.buffers[place, : len(tokens)]

    def match(self, which):
        """A plan, which claims no more than was published of any prompt."""
        prompt = PROMPTS[which]
        plan = self.session.match(self.lent(prompt))
        self.buffers[:] = 9
        found = [shared(prompt, PROMPTS[n][:k]) for n, k in self.published.items()]
        assert plan.claimed_length <= max(found, default=0)
        return plan

    def step(self, leases, count):
        """Runs up to ``count`` tokens of each; the cache that went in is donated."""
        session, parts = self.session, []
        for place, (lease, which) in enumerate(leases):
            at = session.length(lease)
            tokens = PROMPTS[which][at : at + count]
            parts.append((lease, self.lent(tokens, place)))
        inputs, before = session.inputs(parts), session.cache
        cache, status, _ = session.step(before, inputs)
        self.buffers[:] = 9
        assert before.pools[0]["v"].is_deleted()
        session.put(cache)
        for one, (_, tokens) in zip(status, parts, strict=False):
            assert one == (Status.OK if len(tokens) else Status.IDLE)

    def publish(self, lease, which):
        done = self.session.length(lease)
        self.published[which] = max(done, self.published.get(which, 0))
        self.session.publish(lease)


def shared(a, b):
    same = [x == y for x, y in zip(a, b, strict=False)]
    return same.index(False) if False in same else len(same)


@pytest.mark.kind("K15")
@pytest.mark.kind("K16")
@settings(max_examples=30)
@given(acts=ACTS)
def test_any_order_of_calls_is_right_or_refused(acts):
    model = toy.only_full()
    cache = jax.tree.map(jnp.copy, model.empty)
    session = toy.Session(model, cache, step=donating_step())
    caller, plans = Caller(session), []
    for act, number in acts:
        if act == "match":
            which = number % len(PROMPTS)
            plans.append((caller.match(which), which))
        elif act == "acquire" and plans:
            plan, which = plans.pop(number % len(plans))
            try:
                lease = session.acquire(plan)
            except (LeaseError, NoRoomError):
                continue
            assert session.length(lease) == plan.start
            caller.live.append((lease, which))
        elif act == "step":
            caller.step(caller.live[: 1 + number % 3], 1 + number % 8)
        elif act == "publish" and caller.live:
            caller.publish(*caller.live[number % len(caller.live)])
        elif act == "end" and caller.live:
            lease, which = caller.live.pop(number % len(caller.live))
            if number % 2:
                caller.publish(lease, which)
            session.release(lease, publish=False)
        elif act == "evict":
            session.evict(Form.FULL_KV)
        for lease, which in caller.live:
            session.check(lease, PROMPTS[which][: session.length(lease)])
    for lease, _ in caller.live:
        session.release(lease, publish=False)
    for which, prompt in enumerate(PROMPTS):
        lease = session.acquire(caller.match(which))
        session.check(lease, prompt[: lease.plan.start])
        session.release(lease, publish=False)


def test_a_cancelled_row_publishes_nothing():
    session = toy.Session(toy.only_full())
    lease = session.admit(toy.P)
    session.feed(lease, toy.P)
    assert session.match(toy.P).claimed_length == 0  # run, and not yet published
    session.release(lease, publish=False)
    plan = session.match(toy.P)
    assert (plan.claimed_length, plan.shared_length) == (0, 0)
    assert session.prefixes.stored_tokens == 0
    for counts in session.prefixes.account(session.cache).values():
        assert counts["free"] == counts["total"]


def test_publishing_again_changes_nothing():
    session = toy.Session(toy.only_full())
    lease = session.admit(toy.P)
    session.feed(lease, toy.P)
    session.publish(lease)
    before, claims = session.cache, session.match([*toy.P, 1]).claims
    session.publish(lease)
    assert toy.unchanged(before, session.cache)
    again = session.match([*toy.P, 1]).claims
    assert toy.leaves_equal(
        (claims.blocks, claims.epochs), (again.blocks, again.epochs)
    )


@pytest.mark.parametrize("first", [0, 1])
def test_b64_two_equal_prompts_in_one_batch(first):
    """Both equal cold; one copy is listed; when it goes, the other is still good."""
    session = toy.Session(toy.fine())
    leases = [session.admit(toy.P[:8]) for _ in range(2)]
    statuses, reads = session.run(*[(lease, toy.P[:8]) for lease in leases])
    assert statuses == [Status.OK, Status.OK]
    for place, lease in enumerate(leases):
        session.check(lease, toy.P[:8])
        want = toy.cold(session.model, toy.P[:8]).reads
        toy.assert_same_reads(reads[:, place, :8], want)
    listed, other = leases[first], leases[1 - first]
    session.publish(listed)
    session.publish(other)
    assert session.prefixes.stored_tokens == 8
    plan = session.match(toy.P[:9])
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)

    # The listed copy goes, and its row with it.
    session.release(listed, publish=False)
    for form in (Form.SWA_WINDOW, Form.FULL_KV):
        session.evict(form)
    assert session.match(toy.P[:9]).length == 0
    session.check(other, toy.P[:8])
    session.feed(other, toy.P[8:9])
    session.check(other, toy.P[:9])
    session.release(other)
    lease = session.admit(toy.P)
    assert (lease.plan.verdict, lease.plan.length) == (Verdict.RESUMABLE, 9)
    session.check(lease, toy.P[:9])
