"""The deepest point is looked at first: the plan is that of solving all of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import matching
from hybridcache_jax.bench.stored import VERSION, Store, five_groups
from hybridcache_jax.codes import Provenance, Stage, Verdict
from hybridcache_jax.cost import CostModel
from hybridcache_jax.holdings import solve_claims
from hybridcache_jax.host_facts import HostFacts
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key

SPEC = five_groups(block_tokens=64)
KEY = Key(Identity(weights="w", config="c", layout=SPEC.fingerprint))
BLOCKS = 40
PROMPT = np.arange(BLOCKS * 64 + 5, dtype=np.int32)
LOST = st.sets(
    st.tuples(st.integers(0, len(SPEC.pools) - 1), st.integers(0, BLOCKS - 1)),
    max_size=3,
)


def stored(lost):
    """A stored prompt of which some blocks are gone, and the facts."""
    store = Store(SPEC, KEY, len(PROMPT))
    store.put(PROMPT)
    for pool, block in lost:
        np.asarray(store.tables[pool].stage)[block] = int(Stage.EVICTING)
    return store, HostFacts(SPEC, store.tables)


def plan(lost):
    store, facts = stored(lost)
    return matching.make_plan(
        SPEC, facts, store.index, PROMPT, KEY, VERSION, CostModel()
    )


def solved(lost):
    """What the solver says of all points."""
    store, facts = stored(lost)
    claims = store.index.lookup(KEY, PROMPT)
    points = np.arange(0, claims.length + 1, SPEC.grid, dtype=np.int32)
    reasons = [
        facts.reasons(
            number,
            claims.blocks[number],
            claims.epochs[number],
            np.int32(VERSION),
            np.arange(BLOCKS, dtype=np.int32) * 64,
            Provenance.EXACT,
        )
        for number in range(len(SPEC.pools))
    ]
    nowhere = [np.zeros(len(reason), bool) for reason in reasons]
    return solve_claims(SPEC, points, len(PROMPT), reasons, nowhere, CostModel())


@settings(max_examples=60, deadline=None)
@given(LOST)
def test_looking_at_the_deepest_point_first_changes_no_plan(lost):
    one, whole = plan(lost), solved(lost)
    assert one.verdict == whole.verdict
    assert (one.length, one.start) == (whole.point, whole.start)
    assert one.history_length == whole.history_point
    assert one.bytes_to_load == whole.bytes_to_load
    # Below the point that was found nothing matters that is lost.
    assert max(one.lost_length, one.length) == max(whole.lost_point, whole.point)
    each = [report.held for report in one.forms]
    assert each == whole.per_pool[:, -1].tolist()


def test_a_hole_far_before_the_deepest_point_is_seen():
    full = next(n for n, pool in enumerate(SPEC.pools) if pool.form.name == "FULL_KV")
    assert plan(set()).verdict == Verdict.RESUMABLE
    assert plan({(full, 3)}).length <= 3 * 64


def test_b39_the_plan_names_what_was_stored_and_what_was_asked():
    """Where they part; the difference of text is nobody's business."""
    store, facts = stored(set())
    prompt = PROMPT.copy()
    prompt[100] = 7
    ask = SPEC, facts, store.index, prompt, KEY, VERSION, CostModel()
    found = matching.make_plan(*ask)
    named = found.shared_length, found.stored_token, found.asked_token
    assert named == (100, 100, 7)
    said = found.to_dict()
    assert tuple(map(said.get, ("shared_length", "stored_token", "asked_token"))) == (
        100,
        100,
        7,
    )
    assert "position 100, where token 100 is stored and 7 asked" in found.explain()
    shorter = SPEC, facts, store.index, PROMPT[:100], KEY, VERSION, CostModel()
    ends = matching.make_plan(*shorter)
    assert (ends.shared_length, ends.stored_token, ends.asked_token) == (100, 100, -1)
