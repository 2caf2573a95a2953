"""The compiled step: in place, and silent about rows that did not run."""

import dataclasses

import jax
import numpy as np
import pytest
from small_model import BUCKETS, CONFIG, IDENTITY, PLAN, VOCABULARY, random_model

import hybridcache_jax as hc
from hybridcache_jax._compat import aliased_bytes, temporary_bytes
from hybridcache_jax.serving.sampling import sampling_inputs
from hybridcache_jax.serving.step import CompiledStep


def run(compiled, cache, parts, batch=3, width=16):
    inputs = hc.batch_inputs(parts, batch=batch, width=width)
    return compiled(cache, inputs, sampling_inputs([], batch))


def admit(prefixes, cache, tokens):
    return prefixes.acquire(cache, prefixes.match(cache, tokens, IDENTITY))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_is_written_in_place(dtype):
    """Every pool is aliased, and the scratch is a small part of any pool."""
    spec = hc.CacheSpec.from_layers(CONFIG.layers(dtype), block_tokens=4)
    plan = hc.plan_capacity(
        spec,
        budget="128MiB",
        max_sequences=3,
        max_length=96,
        max_chunk=BUCKETS.max_chunk,
        stored_tokens=100_000,
    )
    inputs = hc.batch_inputs([], batch=1, width=1)
    step = CompiledStep(random_model(0), VOCABULARY)
    cache = hc.init(plan)
    compiled = step.lower(cache, inputs, sampling_inputs([], 1)).compile()
    assert sum(plan.pool_bytes) == sum(x.nbytes for x in jax.tree.leaves(cache.pools))
    assert aliased_bytes(compiled) >= sum(plan.pool_bytes)
    assert temporary_bytes(compiled) < min(plan.pool_bytes) / 10


def test_a_stale_row_yields_no_values_and_moves_nothing(compiled):
    prefixes = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
    cache, good = admit(prefixes, hc.init(PLAN), np.arange(9))
    cache, bad = admit(prefixes, cache, np.arange(9))
    stale = dataclasses.replace(bad, ticket=bad.ticket + 1)
    before = jax.device_get(cache)
    parts = [(stale, np.arange(9)), (good, np.arange(9))]
    cache, output = run(compiled, cache, parts)
    assert output.status.tolist() == [hc.Status.STALE, hc.Status.OK, hc.Status.IDLE]
    assert np.isnan(output.logits[0]).all()
    assert np.isnan(output.logits[2]).all()
    assert np.isfinite(output.logits[1]).all()
    assert output.tokens[0] == output.tokens[2] == -1
    assert 0 <= output.tokens[1] < VOCABULARY
    assert cache.rows.length[bad.row] == 0
    assert cache.rows.length[good.row] == 9
    for old, new in zip(before.rows.blocks, cache.rows.blocks, strict=True):
        np.testing.assert_array_equal(old[bad.row], new[bad.row])


def test_a_foreign_id_is_told_and_changes_nothing(compiled):
    prefixes = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
    cache, lease = admit(prefixes, hc.init(PLAN), np.arange(5))
    for wrong in (-1, VOCABULARY, 2**31 - 1):
        cache, output = run(compiled, cache, [(lease, [1, wrong, 2])])
        assert output.status[0] == hc.Status.BAD_TOKEN
    assert cache.rows.length[lease.row] == 0
    cache, output = run(compiled, cache, [(lease, [1, 2])])
    assert output.status[0] == hc.Status.OK


def test_another_structure_is_refused(compiled):
    other = dataclasses.replace(CONFIG, hidden_size=32)
    from flax import nnx

    from hybridcache_jax.models.gemma3 import Gemma3

    with pytest.raises(ValueError, match="structure differs"):
        compiled.with_model(Gemma3(other, rngs=nnx.Rngs(0)))
