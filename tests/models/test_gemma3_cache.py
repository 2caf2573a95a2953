"""Gemma 3 over the real cache, against reference outputs, in every way of running.

One-shot, token by token, ragged chunks, batches of unequal lengths, and resumed at
every legal point; logits within 1e-4 and the saved cache tensors too.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from test_gemma3_golden import TINY, tiny_model

import hybridcache_jax as hc
from hybridcache_jax.testing.audit import row_state, violations

TOLERANCE = 1e-4
BLOCK, WIDTH = 4, 24
LAYERS = tiny_model().config.layers("float32")
SPEC = hc.CacheSpec.from_layers(LAYERS, block_tokens=BLOCK)
PLAN = hc.plan_capacity(
    SPEC,
    budget="16MiB",
    max_sequences=2,
    max_length=80,
    max_chunk=72,
    stored_tokens=400,
)
IDENTITY = hc.Identity(weights="tiny", config="tiny", layout=SPEC.fingerprint)


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


def make_step(model):
    graph, state = nnx.split(model)

    def step(state, cache, inputs):
        view = hc.begin_step(cache, inputs, 64)
        model = nnx.merge(graph, state)
        hidden, view = model(jnp.clip(inputs.tokens, 0, 63), view)
        return hc.end_step(view), view.status, model.logits(hidden)

    jitted = jax.jit(step, donate_argnums=1)
    return lambda cache, inputs: jitted(state, cache, inputs)


@pytest.fixture(scope="module")
def step():
    return make_step(tiny_model())


def run(step, cache, lease, tokens, sizes, width=WIDTH):
    """Runs tokens in chunks; logits of each position."""
    logits, at = [], 0
    for size in sizes:
        part = tokens[at : at + size]
        inputs = hc.batch_inputs([(lease, part)], batch=1, width=max(width, size))
        cache, status, out = step(cache, inputs)
        assert status[0] == hc.Status.OK
        logits.append(np.array(out)[0, : len(part)])
        at += size
    return cache, np.concatenate(logits)


def admit(cache, prefixes, tokens):
    return prefixes.acquire(cache, prefixes.match(cache, tokens, IDENTITY))


def split(total, *sizes):
    result = []
    while sum(result) < total:
        result.append(min(sizes[len(result) % len(sizes)], total - sum(result)))
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "width"),
    [((72,), 72), ((1,), 1), ((5, 3, 7, 1, 24), 24)],
    ids=["one-shot", "token-by-token", "ragged"],
)
def test_every_way_of_running_gives_the_reference_logits(step, expected, sizes, width):
    for row in range(2):
        tokens = expected["tokens"][row]
        prefixes = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
        cache, lease = admit(hc.init(PLAN), prefixes, tokens)
        cache, logits = run(step, cache, lease, tokens, split(72, *sizes), width)
        np.testing.assert_allclose(logits, expected["logits"][row], atol=TOLERANCE)
        assert violations(cache) == []


def golden_state(expected, prefix, row, layers, kind):
    """Reference rows ``[L, n, heads, dim]`` of the layers of one pool."""
    return np.stack(
        [
            np.moveaxis(expected[f"{prefix}.layer{layer}.{kind}"][row], 0, 1)
            for layer in layers
        ]
    )


@pytest.mark.parametrize("length", [4, 47, 72])
def test_cache_tensors_equal_the_reference(step, expected, length):
    prefix = "cache" if length == 72 else f"cache_at_{length}"
    for row in range(2):
        tokens = expected["tokens"][row][:length]
        prefixes = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
        cache, lease = admit(hc.init(PLAN), prefixes, tokens)
        cache, _ = run(step, cache, lease, tokens, split(length, 24))
        state = row_state(cache, lease.row)
        for pool in SPEC.pools:
            local = "window_" if pool.form == hc.Form.SWA_WINDOW else ""
            for plane, name in (("k", "keys"), ("v", "values")):
                want = golden_state(
                    expected, prefix, row, pool.layers, f"{local}{name}"
                )
                got = state[pool.name][plane]
                np.testing.assert_allclose(got, want, atol=TOLERANCE)


def test_resumed_at_every_legal_point(step, expected):
    tokens = expected["tokens"][0]
    prefixes = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
    cache, lease = admit(hc.init(PLAN), prefixes, tokens)
    for start in range(0, 72, 24):
        part = tokens[start : start + 24]
        cache, _ = run(step, cache, lease, part, [24])
        cache = prefixes.publish(cache, lease)
    cache = prefixes.release(cache, lease)
    for point in range(BLOCK, 72, BLOCK):
        # The prompt leaves the stored one right behind `point`: no longer match.
        prompt = tokens.copy()
        plan = prefixes.match(cache, prompt[: point + 1], IDENTITY)
        assert (plan.verdict, plan.length) == (hc.Verdict.RESUMABLE, point)
        cache, lease = prefixes.acquire(cache, plan)
        rest = tokens[point:]
        cache, logits = run(step, cache, lease, rest, split(len(rest), 24))
        np.testing.assert_allclose(
            logits, expected["logits"][0][point:], atol=TOLERANCE
        )
        resumed = row_state(cache, lease.row)
        for pool in SPEC.pools:
            name = "window_keys" if pool.geometry.local else "keys"
            want = golden_state(expected, "cache", 0, pool.layers, name)
            np.testing.assert_allclose(resumed[pool.name]["k"], want, atol=TOLERANCE)
        cache = prefixes.release(cache, lease, publish=False)
        assert violations(cache) == []


@pytest.mark.slow
def test_rows_of_unequal_length_in_one_batch(step, expected):
    tokens, logits = expected["tokens"], expected["logits"]
    prefixes = hc.PrefixCache(PLAN, policy=hc.ReusePolicy("namespace"))
    cache, first = admit(hc.init(PLAN), prefixes, tokens[0])
    cache, second = admit(cache, prefixes, tokens[1])
    at = [0, 0]
    for sizes in ((24, 5), (3, 24), (24, 17)):
        parts = [
            (lease, tokens[row][at[row] : at[row] + sizes[row]])
            for row, lease in enumerate((first, second))
        ]
        inputs = hc.batch_inputs(parts, batch=2, width=24)
        cache, status, out = step(cache, inputs)
        assert status.tolist() == [hc.Status.OK, hc.Status.OK]
        for row in range(2):
            end = at[row] + sizes[row]
            np.testing.assert_allclose(
                np.array(out)[row, : sizes[row]],
                logits[row][at[row] : end],
                atol=TOLERANCE,
            )
            at[row] = end


@pytest.mark.parametrize("change", [-1, pytest.param(1, marks=pytest.mark.slow)])
def test_a_window_off_by_one_is_seen(expected, change):
    """The window is the cache's business: a wrong spec must move the logits."""
    config = tiny_model().config
    wrong = dataclasses.replace(config, sliding_window=8 + change).layers("float32")
    plan = hc.plan_capacity(
        hc.CacheSpec.from_layers(wrong, block_tokens=BLOCK),
        budget="16MiB",
        max_sequences=1,
        max_length=80,
        max_chunk=72,
        stored_tokens=0,
    )
    prefixes = hc.PrefixCache(plan, policy=hc.ReusePolicy("namespace"))
    tokens = expected["tokens"][0]
    cache, lease = prefixes.acquire(hc.init(plan), prefixes.cold_plan(tokens, IDENTITY))
    _, logits = run(make_step(tiny_model()), cache, lease, tokens, [72], 72)
    gap = np.abs(logits - expected["logits"][0])
    # The first eight queries see whole windows either way (seven with a smaller one).
    assert gap[: 8 + min(change, 0)].max() < TOLERANCE
    assert gap.max() > 0.05
