"""What is no whole number, or out of range, is refused where it is given."""

import numpy as np
import pytest

import hybridcache_jax as hc
from hybridcache_jax.bench.stored import five_groups
from hybridcache_jax.rollout import LONGEST_ID, Rollout

ENTRY = hc.Entry.kv(heads=1, dim=2)
LAYERS = [
    hc.LayerSpec(local=hc.Window(8, ENTRY)),
    hc.LayerSpec(global_=hc.Entries(ENTRY)),
]
SPEC = hc.CacheSpec.from_layers(LAYERS, block_tokens=4)


def plan(spec=SPEC, **changed):
    sizes = {"budget": "4GiB", "max_sequences": 2, "max_length": 64, "max_chunk": 8}
    return hc.plan_capacity(spec, **{**sizes, **changed})


@pytest.mark.parametrize("retention", [hc.Retention.ends(), hc.Retention.none()])
@pytest.mark.parametrize(
    "changed",
    [
        {"max_length": 0},
        {"max_length": 24.5},
        {"max_sequences": 1.5},
        {"max_chunk": 0},
        {"stored_length": 0},
        {"stored_length": 2**31},
        {"stored_length": 2**70},
        {"stored_tokens": -1},
        {"stored_tokens": 2**31},
        {"rollback": -1},
        {"rollback": 0.5},
        {"staging_blocks": -1},
        {"staging_blocks": 1.0},
    ],
    ids=str,
)
def test_sizes_of_a_plan(changed, retention):
    (name,) = changed
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        plan(retention=retention, **changed)


def test_what_numpy_counts_is_whole():
    assert plan(max_length=np.int64(64), stored_tokens=np.int32(64)) == plan(
        max_length=64, stored_tokens=64
    )


@pytest.mark.parametrize("wrong", ["x", 4.0, 0, -4, {hc.Form.FULL_KV: 4.0}])
def test_block_sizes(wrong):
    with pytest.raises(ValueError, match=r"block_tokens for .* must be a whole number"):
        hc.CacheSpec.from_layers(LAYERS, block_tokens=wrong)


@pytest.mark.parametrize("name", ["FULL_KV", 7.5, None])
def test_a_block_size_for_what_is_no_form_is_not_ignored(name):
    with pytest.raises(ValueError, match="no form"):
        hc.CacheSpec.from_layers(LAYERS, block_tokens={name: 4})


@pytest.mark.parametrize(
    "make",
    [
        lambda wrong: hc.Window(wrong, ENTRY),
        lambda wrong: hc.LayerSpec(local=hc.Window(wrong, ENTRY)),
        hc.Retention.every,
    ],
)
@pytest.mark.parametrize("wrong", [1.5, 64.0, "4", 0, -1, 2**31, None, True])
def test_windows_and_distances(make, wrong):
    with pytest.raises(ValueError, match="must be a whole number"):
        make(wrong)


@pytest.mark.parametrize("rates", [(np.float32("nan"), 0), (np.float32(-1), 0)])
def test_rates_of_numpy_are_checked_too(rates):
    with pytest.raises(ValueError, match="CostModel needs"):
        hc.CostModel(*rates)


def test_a_budget_that_nobody_has_is_refused_like_a_large_one():
    small = plan(stored_tokens=64, staging_blocks=1)
    for budget in (2**62, 2**63, 2**100):
        with pytest.raises(ValueError, match="more than int32 can name"):
            hc.HostTier(small, budget=budget)


def test_names_that_the_index_would_keep_are_bounded():
    rollout = Rollout(hc.ReusePolicy())
    producer = hc.Identity("w", "c", five_groups().fingerprint)
    longest = "n" * LONGEST_ID
    assert rollout.key(producer.within(longest), request=longest).owner == longest
    for name in ("request", "session"):
        with pytest.raises(ValueError, match=f"{name} must be a string of at most"):
            rollout.key(producer, **{name: longest + "n"})
    with pytest.raises(ValueError, match="namespace must be a string of at most"):
        rollout.key(producer.within(longest + "n"))
