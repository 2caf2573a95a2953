"""Mutations that must be rejected: each makes a resumed sequence wrong, none raises.

Every mutation is made behind the back of the index, as a lost block, a claim that is
not true, or a request that looks alike.  What must catch it is the verdict, with the
form and the reason named, and once more the check at admission, which refuses the plan
of before.
"""

import dataclasses

import numpy as np
import pytest
import toy

import hybridcache_jax as hc
from hybridcache_jax import Entry, Form, LeaseError, Plane, Reason, Verdict
from hybridcache_jax.rollout import Key

PROMPT = [p * 7 % 10 for p in range(17)]
LINE = [*toy.P, 7]


def stored(model, prompt, sizes=(4,)):
    """A session that stored all of a prompt but its last token, after every step."""
    session = toy.Session(model)
    session.store(prompt[:-1], sizes, each=True)
    return session


def assert_rejected(session, before, prompt, *, form, reason, position):
    """The deepest point of ``before`` is no longer resumed, and the reason is named."""
    plan = session.match(prompt)
    assert (plan.verdict, plan.length) != (before.verdict, before.length)
    (report,) = plan.limiting
    assert (report.form, report.reason, report.position) == (form, reason, position)
    assert report.pool in plan.explain()
    cache = session.cache
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(before)
    assert session.cache is cache
    # What the plan says instead is exact.
    lease = session.acquire(plan)
    session.feed(lease, prompt[plan.start :])
    if session.model.style:
        session.check(lease, prompt)


def resumable(session, prompt, point):
    """The plan before the mutation: it proves ``point``."""
    plan = session.match(prompt)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, point)
    return plan


def test_the_oldest_window_entry_is_dropped():
    """W=3 at 12 sees 10 and 11; without 10 it is not a window of 3."""
    session = stored(toy.fine(), LINE, [1])
    before = resumable(session, LINE, 12)
    session.lose(0, 10, LINE)
    assert_rejected(
        *(session, before, LINE),
        form=Form.SWA_WINDOW,
        reason=Reason.EVICTED,
        position=10,
    )


def test_the_window_is_off_by_one():
    """What a window of 3 keeps is too little for one of 4, and only for that one."""
    model = toy.fine()
    assert [kind.size for kind in model.kinds[:2]] == [3, 4]
    session = stored(model, LINE, [1])
    before = resumable(session, LINE, 12)
    session.lose(0, 9, LINE)
    resumable(session, LINE, 12)
    session.lose(1, 9, LINE)
    assert_rejected(
        *(session, before, LINE),
        form=Form.SWA_WINDOW,
        reason=Reason.EVICTED,
        position=9,
    )
    assert session.match(LINE).limiting[0].pool == "swa_window.1"


@pytest.mark.slow
def test_the_halo_of_the_index_is_dropped():
    """The halo of the entries is there, that of their index keys is not."""
    session = stored(toy.csa(), PROMPT)
    before = resumable(session, PROMPT, 16)
    session.lose(0, 3, PROMPT, "index_raw")
    assert_rejected(
        *(session, before, PROMPT),
        form=Form.UNCOMPRESSED_TAIL,
        reason=Reason.EVICTED,
        position=12,
    )
    assert session.match(PROMPT).limiting[0].pool.endswith(".index")


@pytest.mark.parametrize("layer", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_entry_count_of_one_pool_is_off_by_one(layer):
    """All pools hold 16 tokens but one, which lacks its last block."""
    session = stored(toy.csa(), PROMPT)
    before = resumable(session, PROMPT, 16)
    session.lose(layer, 1, PROMPT, "entries")
    assert_rejected(
        *(session, before, PROMPT),
        form=Form.COMPRESSED_KV,
        reason=Reason.EVICTED,
        position=8,
    )


@pytest.mark.parametrize("part", ["entries", "index", "index_raw", "local"])
def test_a_pool_never_held_its_last_block(part):
    """The same, where nothing was ever claimed for it: a tier without that form."""
    model = toy.csa()
    session = stored(model, PROMPT)
    claims = resumable(session, PROMPT, 16).claims
    pool, blocks = model.pool_of(0, part), list(claims.blocks)
    blocks[pool] = np.append(blocks[pool][:-1], np.iinfo(np.int32).max).astype(np.int32)
    forget(session)
    claim(session, claims.tokens, blocks, claims.epochs)
    plan = session.match(PROMPT)
    assert (plan.verdict, plan.length) != (Verdict.RESUMABLE, 16)
    (report,) = plan.limiting
    assert report.pool == model.plan.spec.pools[pool].name
    assert report.reason == Reason.NOT_RETAINED
    assert report.position == 16 - model.block(0, part)


def test_index_keys_are_missing_while_all_entries_are_selected():
    """At 8 the top 2 are all there is, with or without a ranking: still refused."""
    model, prompt = toy.csa(), PROMPT[:9]
    session = stored(model, prompt)
    before = resumable(session, prompt, 8)
    read = toy.cold(model, prompt).reads[0, 8]
    assert np.flatnonzero(read[40:]).tolist() == [0, 1]
    session.lose(0, 1, prompt, "index")
    assert_rejected(
        *(session, before, prompt),
        form=Form.INDEXER_STATE,
        reason=Reason.EVICTED,
        position=4,
    )


def test_the_gate_is_stored_with_and_without_its_bias():
    """Two conventions of one shape are two layouts: neither hits the other."""
    layers = toy.csa().plan.spec.layers
    identities = []
    for convention in ("gate with position bias", "gate without position bias"):
        first = layers[0]
        assert first.global_ is not None
        raw = Entry((Plane("x", 1, 1),), convention=convention)
        history = dataclasses.replace(first.global_, raw=raw)
        kinds = [dataclasses.replace(first, global_=history), *layers[1:]]
        layout = hc.CacheSpec.from_layers(kinds, block_tokens=8).fingerprint
        identities.append(dataclasses.replace(toy.csa().identity, layout=layout))
    for writer, reader in (identities, identities[::-1]):
        session = stored(dataclasses.replace(toy.csa(), identity=writer), PROMPT)
        resumable(session, PROMPT, 16)
        plan = session.prefixes.match(session.cache, PROMPT, reader)
        assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
        assert (plan.reason, plan.changed) == (Reason.PRODUCER_CHANGED, ("layout",))
        assert (plan.length, plan.claimed_length) == (0, 0)


@pytest.mark.parametrize("shared", [0, 4])
@pytest.mark.parametrize("build", [toy.fine, toy.csa, toy.recurrent])
def test_another_request_ends_in_the_same_tokens(build, shared):
    """Windows, tails and states depend on all before them, not on the last W tokens."""
    model = build()
    session = stored(model, PROMPT)
    other = [(t + 1) % 10 for t in PROMPT[shared:8]]
    prompt = [*PROMPT[:shared], *other, *PROMPT[8:]]
    assert prompt[-9:] == PROMPT[-9:]  # more than any window, halo or block
    plan = session.match(prompt)
    point = shared - shared % model.grid
    assert (plan.length, plan.start) == (point, point)
    lease = session.acquire(plan)
    session.feed(lease, prompt[point:])
    session.check(lease, prompt)


def claim(session, tokens, blocks, epochs):
    """Puts claims into the index that no run made."""
    session.prefixes._index.insert(
        Key(session.model.identity),
        np.asarray(tokens, np.int32),
        blocks,
        epochs,
        lambda number, ids, epochs, first: np.zeros(len(ids), bool),
    )


def forget(session):
    """Takes every claim out of the index; the blocks stay."""
    session.prefixes._index._roots.clear()


@pytest.mark.parametrize(
    "build",
    [pytest.param(toy.compressed, marks=pytest.mark.slow), toy.csa, toy.recurrent],
)
def test_the_start_is_shifted(build):
    """The same tokens without the first block, claimed with the blocks behind it."""
    model = build()
    session = stored(model, PROMPT)
    claims = resumable(session, PROMPT, 16).claims
    sizes = [pool.block_tokens for pool in model.plan.spec.pools]

    def behind(arrays):
        return [x[model.grid // n :] for x, n in zip(arrays, sizes, strict=True)]

    shifted = PROMPT[model.grid :]
    claim(session, shifted[:-1], behind(claims.blocks), behind(claims.epochs))
    plan = session.match(shifted)
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert plan.claimed_length == len(shifted) - 1
    assert {report.reason for report in plan.limiting} == {Reason.WRONG_FORM}
    needed = {
        report.pool for report in plan.forms if report.required[0] < report.required[1]
    }
    assert {report.pool for report in plan.limiting} == needed
    # A plan that believes its claims is refused at admission.
    bold = dataclasses.replace(
        plan, verdict=Verdict.RESUMABLE, length=len(shifted) - 1, start=len(shifted) - 1
    )
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(bold)


def test_the_scales_are_those_of_another_block():
    """Scales have no table of their own: another block's come with its whole block."""
    model = toy.three_forms()
    session = stored(model, LINE)
    pool, memory = model.plan.spec.pools[0], session.cache.pools[0]
    assert pool.form == Form.FULL_KV
    assert set(memory) == {plane.name for plane in pool.entry.planes}
    # One id finds values and scales: [layer, block, entry of the block].
    assert {plane.shape[:3] for plane in memory.values()} == {
        (1, model.plan.blocks[0], 4)
    }
    claims = resumable(session, LINE, 12).claims
    scales = np.asarray(memory["k_scale"])[0, claims.blocks[0]]
    assert len({block.tobytes() for block in scales}) == 3

    def swapped(arrays):
        return [arrays[0][[0, 2, 1]], *arrays[1:]]

    forget(session)
    claim(session, LINE[:12], swapped(claims.blocks), swapped(claims.epochs))
    plan = session.match(LINE)
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 4)
    (report,) = plan.limiting
    assert report.pool == pool.name
    assert (report.reason, report.position) == (Reason.WRONG_FORM, 4)
    bold = dataclasses.replace(plan, length=12, start=12)
    with pytest.raises(LeaseError, match="match again"):
        session.acquire(bold)
