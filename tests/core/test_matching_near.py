"""The deepest points are solved first: the plan is that of solving all at once."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax import matching
from hybridcache_jax.bench.stored import VERSION, Store, five_groups
from hybridcache_jax.codes import Stage, Verdict
from hybridcache_jax.cost import CostModel
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


def plan(near, lost):
    """The plan where some blocks are gone and so many points are tried first."""
    store = Store(SPEC, KEY, len(PROMPT))
    store.put(PROMPT)
    for pool, block in lost:
        np.asarray(store.tables[pool].stage)[block] = int(Stage.EVICTING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_NEAR", near)
        return matching.make_plan(
            SPEC,
            HostFacts(SPEC, store.tables),
            store.index,
            PROMPT,
            KEY,
            VERSION,
            CostModel(),
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), LOST)
def test_trying_the_deepest_first_changes_no_plan(near, lost):
    one, whole = plan(near, lost), plan(10**6, lost)
    # Below the point that was found nothing matters that is lost.
    assert max(one.lost_length, one.length) == max(whole.lost_length, whole.length)
    left_out = {"alternatives", "claims", "loads", "lost_length"}
    for field in dataclasses.fields(one):
        if field.name not in left_out:
            assert getattr(one, field.name) == getattr(whole, field.name), field.name


def test_a_hole_far_before_the_deepest_points_is_seen():
    full = next(n for n, pool in enumerate(SPEC.pools) if pool.form.name == "FULL_KV")
    assert plan(4, set()).verdict == Verdict.RESUMABLE
    assert plan(4, {(full, 3)}).length <= 3 * 64
