"""K05: all forms agree.

RESUMABLE(m) means for every form of the model: present, complete, for exactly m.
Losing any block of any form that m requires turns it into another verdict that names
the form and the position, and a plan from before is refused.  The joint m does not
depend on the order of the forms.
"""

import itertools

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import Form, LeaseError, Reason, Verdict
from hybridcache_jax.forms import RULES, Remedy
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.matching import make_plan
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.rollout import Key

MODELS = {"csa": toy.csa, "sparse": toy.sparse, "recurrent": toy.recurrent}
POINT = 16
DIGITS = st.integers(0, 9)
PROMPT = [p * 7 % 10 for p in range(POINT + 1)]


def stored(model, prompt, sizes=(4,), *, each=True):
    """A session that stored all of a prompt but its last token."""
    session = toy.Session(model)
    session.store(prompt[:-1], sizes, each=each)
    return session


def required_blocks(model, point):
    """Every block that resuming at ``point`` needs: layer, part, block."""
    for layer, part in model.parts:
        lo, hi = model.kinds[layer].required(part, point)
        size = model.block(layer, part)
        if lo < hi:
            for block in range(lo // size, -(-hi // size)):
                yield layer, part, block


def pool_name(model, layer, part):
    return model.plan.spec.pools[model.pool_of(layer, part)].name


def follow(session, plan, prompt):
    """Does what a plan says; the row then holds what a cold run leaves."""
    lease = session.acquire(plan)
    reads = session.feed(lease, prompt[plan.start :])
    exact = plan.length - plan.start
    want = toy.cold(session.model, prompt).reads[:, plan.length :]
    toy.assert_same_reads(reads[:, exact:], want)
    session.check(lease, prompt)


@pytest.mark.parametrize("name", toy.marked(MODELS, "recurrent"))
def test_any_block_of_any_form_is_missed(name):
    """One block at a time; the plan is the best that is left, and is exact."""
    model = MODELS[name]()
    whole = stored(model, PROMPT)
    fresh = whole.cache
    plan = whole.match(PROMPT)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, POINT)
    assert plan.reason == Reason.OK
    held = toy.stored_parts(model, fresh)
    tried = set()
    for layer, part, block in required_blocks(model, POINT):
        session = whole
        session.branch(fresh)
        session.lose(layer, block, PROMPT, part)
        less = session.match(PROMPT)
        assert (less.verdict, less.length) != (Verdict.RESUMABLE, POINT)
        (report,) = less.limiting
        assert report.pool == pool_name(model, layer, part)
        lo, hi = model.kinds[layer].required(part, POINT)
        assert report.required == (lo, hi)
        assert report.reason == less.reason == Reason.EVICTED
        assert report.position == max(lo, block * model.block(layer, part))
        assert report.pool in less.explain()

        with pytest.raises(LeaseError, match="match again"):
            session.acquire(plan)
        lost = {
            where: blocks - {block}
            if pool_name(model, *where) == report.pool
            else blocks
            for where, blocks in held.items()
        }
        want = toy.expected_plan(model, len(PROMPT), POINT, lost)
        assert (less.verdict, less.length, less.start) == want
        follow(session, less, PROMPT)
        tried.add((layer, part))
    assert tried == {
        where
        for where in model.parts
        if np.subtract(*model.kinds[where[0]].required(where[1], POINT)) < 0
    }


@pytest.mark.kind("K05")
@pytest.mark.parametrize("name", toy.marked(MODELS, "recurrent"))
@settings(max_examples=12)
@given(data=st.data())
def test_whatever_is_lost_the_plan_is_the_best_that_is_left(name, data):
    """Several blocks of several forms, and a prompt that turns off somewhere."""
    model = MODELS[name]()
    history = data.draw(st.lists(DIGITS, min_size=24, max_size=24))
    session = toy.Session(model)
    sizes = data.draw(st.sampled_from([[4], [8], [3, 5], [4, 3, 1]]))
    session.store(history, sizes, each=data.draw(st.booleans()))
    same = data.draw(st.integers(0, 24))
    prompt = [*history[:same], *[t % 9 + 1 for t in history[same:]]][:24]
    held = toy.stored_parts(model, session.cache)
    places = [(*where, b) for where, blocks in held.items() for b in sorted(blocks)]
    for layer, part, block in data.draw(
        st.lists(st.sampled_from(places), max_size=3, unique=True)
    ):
        if block in toy.stored_parts(model, session.cache)[layer, part]:
            session.lose(layer, block, [*history, 1][:24], part)
    held = toy.stored_parts(model, session.cache)
    shared = next((n for n in range(24) if prompt[n] != history[n]), 24)
    common = shared - shared % model.grid
    plan = session.match(prompt)
    want = toy.expected_plan(model, len(prompt), common, held)
    assert (plan.verdict, plan.length, plan.start) == want
    follow(session, plan, prompt)


# What goes with a form: no point and no replay can use it without.  No replay goes on
# from tails, so nothing goes with them.
GO_WITH = {
    Form.UNCOMPRESSED_TAIL: set(),
    Form.SWA_WINDOW: {Form.UNCOMPRESSED_TAIL},
    Form.RECURRENT_STATE: {Form.UNCOMPRESSED_TAIL, Form.SWA_WINDOW},
}


@pytest.mark.parametrize("name", toy.marked(MODELS, "sparse", "recurrent"))
def test_a_form_that_is_gone_is_named(name):
    """All blocks of a form evicted, through the front door."""
    model = MODELS[name]()
    needed = {model.pool_of(*where[:2]) for where in required_blocks(model, POINT)}
    forms = {model.plan.spec.pools[number].form for number in needed}
    for form in sorted(forms):
        session = stored(model, PROMPT)
        session.evict(form)
        plan = session.match(PROMPT)
        assert (plan.verdict, plan.length) != (Verdict.RESUMABLE, POINT)
        if RULES[form].remedy is Remedy.REPLAY:
            gone = forms & {form, *GO_WITH[form]}
            assert {report.form for report in plan.limiting} == gone
        else:
            # Without its history a prefix is worth nothing, and the index forgets it.
            assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
            assert session.prefixes.stored_tokens == 0
        follow(session, plan, PROMPT)


def test_b22_a_window_that_was_reused_by_another_is_absent():
    """Entries {69,242} and the full history are there, the window {62,76} is not."""
    model = toy.compressed()
    session = toy.Session(model)
    session.store(toy.P[:8], [8])
    session.evict(Form.SWA_WINDOW)
    table = session.cache.tables[model.pool_of(3)]
    assert int(table.num_free) == table.stage.shape[0]
    other = session.admit([7] * 8)
    session.feed(other, [7] * 8)  # takes the blocks over

    prompt = toy.P[:9]
    plan = session.match(prompt)
    # The window of 3 needs 6 and 7, the halo of the overlapping entries 4..7.
    assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
    assert (plan.start, plan.length) == (4, 8)
    # No replay goes on from the halo alone, so it went with the window.
    assert {report.form: report.required for report in plan.limiting} == {
        Form.SWA_WINDOW: (6, 8),
        Form.UNCOMPRESSED_TAIL: (4, 8),
    }
    lease = session.acquire(plan)
    reads = session.feed(lease, prompt[4:])
    want = toy.cold(model, prompt)
    toy.assert_same_reads(reads[:, -1:], want.reads[:, -1:])
    window = np.flatnonzero(reads[3, -1])
    assert window.tolist() == [6, 7, 8]
    np.testing.assert_allclose(reads[3, -1, window] * 3, [62, 76, 85], rtol=1e-6)
    # Both rows of {69,242} are read, and nothing that holds 7, 17, 27, ...
    np.testing.assert_allclose(reads[0, -1, :3] * 2, [69, 242, 0], rtol=1e-6)
    session.check(lease, prompt)


def states_at(session, layer, points, prompt):
    """Drops every window block that none of the points requires."""
    kind, size = session.model.kinds[layer], session.model.block(layer)
    needed = {q // size for p in points for q in range(kind.first(p), p)}
    held = toy.stored_parts(session.model, session.cache)[layer, "local"]
    for block in held - needed:
        session.lose(layer, block, prompt)


def in_order(session, order, prompt):
    """The plan of a model whose layers stand in another order, by the same facts."""
    model, claims = session.model, session.match(prompt).claims
    layers = [model.plan.spec.layers[n] for n in order]
    blocks = {pool.form: pool.block_tokens for pool in model.plan.spec.pools}
    spec = hc.CacheSpec.from_layers(layers, block_tokens=blocks)
    tables = session.cache.tables
    index = PrefixIndex(spec)
    index.insert(
        Key(model.identity),
        claims.tokens,
        [claims.blocks[n] for n in order],
        [claims.epochs[n] for n in order],
        lambda number, ids, epochs, first: np.zeros(len(ids), bool),
    )
    return make_plan(
        spec,
        HostFacts(spec, tuple(tables[n] for n in order)),
        index,
        np.array(prompt, np.int32),
        Key(model.identity),
        int(tables[0].version.max()),
        hc.CostModel(),
    )


def test_b23_the_joint_point_does_not_depend_on_the_order():
    """Full to 12, W=3 at 4, 8 and 12, W=6 only at 4: m is 4, in any order.

    Nothing deeper is resumed as it is; a replay of the few positions that the windows
    of 3 and 6 reach back from 12 is proved as well, and runs less.
    """
    prompt = [*toy.P, 7]
    session = toy.Session(toy.three_forms())
    session.store(toy.P, [4], each=True)
    states_at(session, 1, (4, 8, 12), prompt)
    states_at(session, 2, (4,), prompt)
    plans = [
        in_order(session, order, prompt) for order in itertools.permutations(range(3))
    ]
    for plan in (session.match(prompt), *plans):
        ready = [way for way in plan.alternatives if way.verdict == Verdict.RESUMABLE]
        assert [(way.length, way.start) for way in ready] == [(4, 4)]
        assert plan.verdict == Verdict.NEEDS_PARTIAL_RECOMPUTE
        assert (plan.length, plan.start) == (12, 12 - 2 - 5)
        (report,) = plan.limiting
        assert report.form == Form.SWA_WINDOW
        assert report.required == (7, 12)


def test_b23_without_the_wide_window():
    """The full history and W=3 (and entries, which have all): m is 12."""
    session = toy.Session(toy.compressed())
    prompt = [*toy.P, 7]
    session.store(toy.P, [4], each=True)
    states_at(session, 3, (4, 8, 12), prompt)
    plan = session.match(prompt)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 12)
