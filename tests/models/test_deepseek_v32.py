"""DeepSeek-V3.2 and GLM-5 over the real cache, against reference outputs.

Logits, selections and every cached tensor within 1e-4, however the tokens are split
into steps and wherever a stored prefix is resumed.
"""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.configs.deepseek_v32 import DeepseekV32Config
from hybridcache_jax.models.deepseek_v32 import DeepseekV32
from hybridcache_jax.models.parameters import from_params
from hybridcache_jax.testing.audit import row_state, violations

GOLDENS = Path(__file__).parents[1] / "goldens"
NAMES = ("deepseek_v32", "glm_moe_dsa")
TOLERANCE = 1e-4
BLOCK, WIDTH, TOKENS = 4, 24, 96
PREFIXES = {"deepseek_v32": (4, 61, 96), "glm_moe_dsa": (5, 62, 96)}


def stored(name, file) -> dict[str, Any]:
    """Tensors of a file, without the prefix of the body."""
    tensors = load_file(GOLDENS / name / file)
    return {key.removeprefix("model."): value for key, value in tensors.items()}


@functools.cache
def golden(name):
    return load_file(GOLDENS / name / "expected.safetensors")


@functools.cache
def config_of(name):
    return DeepseekV32Config.from_hf(
        json.loads((GOLDENS / name / "config.json").read_text())
    )


def plan_of(config, cache_format="float32"):
    return hc.plan_capacity(
        hc.CacheSpec.from_layers(config.layers(cache_format), block_tokens=BLOCK),
        budget="16MiB",
        max_sequences=2,
        max_length=104,
        max_chunk=TOKENS,
        stored_tokens=400,
    )


class Runner:
    """A model on a cache of its own plan, with its step compiled once per shape."""

    def __init__(self, name, cache_format="float32"):
        config = config_of(name)
        model = from_params(DeepseekV32, config, stored(name, "model.safetensors"))
        graph, state = nnx.split(model)
        self.name = name
        self.plan = plan_of(config, cache_format)
        self.spec = self.plan.spec
        self.identity = hc.Identity(
            weights=name, config=config.digest, layout=self.spec.fingerprint
        )

        def step(state, cache, inputs):
            view: Any = hc.begin_step(cache, inputs, config.vocab_size)
            model = nnx.merge(graph, state)
            with jax.default_matmul_precision("highest"):
                hidden, view = model(jnp.clip(inputs.tokens, 0, 63), view)
                logits = model.logits(hidden)
            return hc.end_step(view), view.status, logits, view.selections

        jitted = jax.jit(step, donate_argnums=1)
        self.step = lambda cache, inputs: jitted(state, cache, inputs)

    def admit(self, cache, prefixes, tokens):
        plan = prefixes.match(cache, tokens, self.identity)
        return plan, *prefixes.acquire(cache, plan)

    def run(self, cache, lease, tokens, sizes, width=WIDTH):
        """Runs tokens in chunks: the cache, logits and selections per position."""
        logits, chosen, at = [], [], 0
        for size in sizes:
            part = tokens[at : at + size]
            inputs = hc.batch_inputs([(lease, part)], batch=2, width=max(width, size))
            cache, status, out, picks = self.step(cache, inputs)
            assert status[0] == hc.Status.OK
            logits.append(np.array(out)[0, : len(part)])
            chosen.append({k: np.array(v)[0, : len(part), 0] for k, v in picks.items()})
            at += size
        joined = {k: np.concatenate([c[k] for c in chosen]) for k in chosen[0]}
        return cache, np.concatenate(logits), joined

    def run_alone(self, tokens, sizes, width=WIDTH):
        """The same for one sequence in an empty cache; its row comes last."""
        prefixes = hc.PrefixCache(self.plan, policy=hc.ReusePolicy("namespace"))
        _, cache, lease = self.admit(hc.init(self.plan), prefixes, tokens)
        cache, logits, chosen = self.run(cache, lease, tokens, sizes, width)
        assert violations(cache) == []
        return cache, logits, chosen, lease.row


@functools.cache
def runner(name):
    return Runner(name)


def split(total, *sizes):
    result = []
    while sum(result) < total:
        result.append(min(sizes[len(result) % len(sizes)], total - sum(result)))
    return result


def reference_state(run, prefix, row):
    """Reference rows per pool and plane, as ``row_state`` gives them."""
    named = {"latent": "latent", "rope": "rope_key", "k": "index_keys"}
    expected = golden(run.name)
    return {
        pool.name: {
            plane.name: np.stack(
                [
                    expected[f"{prefix}.layer{layer}.{named[plane.name]}"][row]
                    for layer in pool.layers
                ]
            )[:, :, None]
            for plane in pool.entry.planes
        }
        for pool in run.spec.pools
    }


def assert_state(run, cache, row, prefix, golden_row):
    state = row_state(cache, row)
    for pool, planes in reference_state(run, prefix, golden_row).items():
        for plane, want in planes.items():
            np.testing.assert_allclose(state[pool][plane], want, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("sizes", "width"),
    [((TOKENS,), TOKENS), ((1,), 1), ((5, 3, 7, 1, 24), WIDTH)],
    ids=["one-shot", "token-by-token", "ragged"],
)
def test_every_way_of_running_gives_the_reference_logits(name, sizes, width):
    expected = golden(name)
    for row in range(2):
        _, logits, chosen, _ = runner(name).run_alone(
            expected["tokens"][row], split(TOKENS, *sizes), width
        )
        np.testing.assert_allclose(logits, expected["logits"][row], atol=TOLERANCE)
        for layer, picks in chosen.items():
            want = np.sort(expected[f"selection.layer{layer}"][row])
            np.testing.assert_array_equal(np.sort(picks), want)


@pytest.mark.parametrize(
    "name", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.slow)]
)
def test_cache_tensors_equal_the_reference(name):
    run = runner(name)
    for length in PREFIXES[name]:
        prefix = "cache" if length == TOKENS else f"cache_at_{length}"
        for row in range(2):
            tokens = golden(name)["tokens"][row][:length]
            cache, _, _, place = run.run_alone(tokens, split(length, WIDTH))
            assert_state(run, cache, place, prefix, row)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_resumed_at_every_legal_point(name):
    run, expected = runner(name), golden(name)
    tokens = expected["tokens"][0]
    prefixes = hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    _, cache, lease = run.admit(hc.init(run.plan), prefixes, tokens)
    for start in range(0, TOKENS, WIDTH):
        part = tokens[start : start + WIDTH]
        cache, _, _ = run.run(cache, lease, part, [WIDTH])
        cache = prefixes.publish(cache, lease)
    cache = prefixes.release(cache, lease)
    for point in range(BLOCK, TOKENS, BLOCK):
        plan, cache, lease = run.admit(cache, prefixes, tokens[: point + 1])
        assert (plan.verdict, plan.length) == (hc.Verdict.RESUMABLE, point)
        rest = tokens[point:]
        cache, logits, _ = run.run(cache, lease, rest, split(len(rest), WIDTH))
        want = expected["logits"][0][point:]
        np.testing.assert_allclose(logits, want, atol=TOLERANCE)
        assert_state(run, cache, lease.row, "cache", 0)
        cache = prefixes.release(cache, lease, publish=False)
        assert violations(cache) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_unequal_length_in_one_batch(name):
    """Padding of one row, and the other row, disturb nothing."""
    run, expected = runner(name), golden(name)
    prefixes, cache = (
        hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace")),
        hc.init(run.plan),
    )
    leases = []
    for row in range(2):
        _, cache, lease = run.admit(cache, prefixes, expected["tokens"][row])
        leases.append(lease)
    at = [0, 0]
    for sizes in ((24, 5), (3, 24), (24, 17)):
        parts = [
            (lease, expected["tokens"][row][at[row] : at[row] + sizes[row]])
            for row, lease in enumerate(leases)
        ]
        inputs = hc.batch_inputs(parts, batch=2, width=WIDTH)
        cache, status, out, _ = run.step(cache, inputs)
        assert status.tolist() == [hc.Status.OK, hc.Status.OK]
        for row in range(2):
            want = expected["logits"][row][at[row] : at[row] + sizes[row]]
            got = np.array(out)[row, : sizes[row]]
            np.testing.assert_allclose(got, want, atol=TOLERANCE)
            at[row] += sizes[row]


def test_the_quantised_cache_holds_the_first_layer_within_its_rounding():
    """The first layer's entries depend on no cached value: only rounding differs."""
    run, expected = Runner("deepseek_v32", "fp8"), golden("deepseek_v32")
    tokens = expected["tokens"][0]
    cache, logits, _, row = run.run_alone(tokens, split(TOKENS, WIDTH))
    assert np.isfinite(logits).all()
    state = row_state(cache, row)
    entries, keys = (state[pool.name] for pool in run.spec.pools)
    for planes, plane, want in (
        (entries, "latent", "latent"),
        (keys, "k", "index_keys"),
    ):
        values = planes[plane][0, :, 0].astype(np.float32)
        got = values * planes[f"{plane}_scale"][0, :, 0]
        want = expected[f"cache.layer0.{want}"][0]
        # Half a step of three mantissa bits at the largest value of the run.
        bound = np.abs(want).max(axis=-1, keepdims=True) / 16
        assert (np.abs(got - want) <= bound).all()
    got = entries["rope"][0, :, 0].astype(np.float32)
    np.testing.assert_allclose(got, expected["cache.layer0.rope_key"][0], rtol=2**-8)
