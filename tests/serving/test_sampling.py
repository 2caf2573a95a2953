"""Sampling against its definition, and the settings it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridcache_jax.serving import sampling
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.sampling import SamplingParams, sampling_inputs

sample = jax.jit(sampling.sample)
LOGITS = np.array([2.0, 0.5, 1.0, -1.0, 1.5], np.float32)


def draws(count, **settings):
    params = [SamplingParams(seed=5, **settings)] * count
    positions = jnp.arange(count, dtype=jnp.int32)
    logits = jnp.broadcast_to(LOGITS, (count, len(LOGITS)))
    return np.array(sample(logits, sampling_inputs(params, count), positions))


def test_greedy_is_the_largest_logit():
    assert set(draws(8)) == {0}


def test_frequencies_follow_the_softmax():
    weights = np.exp(LOGITS / 0.7)
    counts = np.bincount(draws(20_000, temperature=0.7), minlength=5) / 20_000
    np.testing.assert_allclose(counts, weights / weights.sum(), atol=0.015)


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p():
    chance = np.exp(LOGITS) / np.exp(LOGITS).sum()
    order = np.argsort(-chance)
    for top_p in (0.3, 0.6, 0.8, 1.0):
        size = int(np.searchsorted(np.cumsum(chance[order]), top_p - 1e-6)) + 1
        seen = set(draws(4000, temperature=1.0, top_p=top_p))
        assert seen == set(order[:size].tolist())


def test_greedy_and_sampling_rows_mix():
    params = [SamplingParams(), SamplingParams(temperature=5.0, seed=1)]
    logits = jnp.broadcast_to(LOGITS, (2, 5))
    seen = {
        tuple(
            np.array(
                sample(logits, sampling_inputs(params, 2), jnp.full(2, p, jnp.int32))
            )
        )
        for p in range(30)
    }
    assert {row[0] for row in seen} == {0}
    assert len({row[1] for row in seen}) > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"seed": -1},
        {"seed": 2**31},
    ],
)
def test_impossible_settings_are_refused(settings):
    name = next(iter(settings))
    with pytest.raises(ValueError, match=name):
        SamplingParams(**settings)


def test_buckets_fit_the_smallest_shape():
    buckets = Buckets(batch=(1, 2, 4), chunk=(1, 64, 256))
    assert buckets.fit(3, 1) == (4, 1)
    assert buckets.fit(1, 65) == (1, 256)
    assert len(buckets.shapes()) == 9
    assert buckets.within(100).chunk == (1, 64)
    with pytest.raises(ValueError, match="exceed the largest bucket"):
        buckets.fit(5, 1)
    with pytest.raises(ValueError, match="ascending"):
        Buckets(batch=(2, 1))
