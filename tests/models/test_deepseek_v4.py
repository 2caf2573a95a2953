"""DeepSeek-V4 over the real cache, against reference outputs.

Logits, selections and every cached tensor within 1e-4, however the tokens are split
into steps and wherever a stored prefix is resumed.  Resumed runs go on to the end: a
lost tail shows when the open block closes, not at the first token.
"""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.configs.deepseek_v4 import DeepseekV4Config
from hybridcache_jax.models.deepseek_v4 import DeepseekV4
from hybridcache_jax.models.parameters import from_params
from hybridcache_jax.testing.audit import row_state, violations

GOLDENS = Path(__file__).parents[1] / "goldens"
TINY, REAL = "deepseek_v4_tiny", "deepseek_v4_real_ratio"
TOLERANCE = 1e-4
BLOCK = {TINY: 8, REAL: None}
TOKENS = {TINY: 120, REAL: 400}
PREFIXES = {TINY: (3, 85, 120), REAL: (130, 349, 400)}


def stored(name, file):
    """Tensors of a file, without the prefix of the body."""
    tensors = load_file(GOLDENS / name / file)
    return {key.removeprefix("model."): value for key, value in tensors.items()}


@functools.cache
def golden(name):
    return load_file(GOLDENS / name / "expected.safetensors")


@functools.cache
def config_of(name, file="config.json"):
    return DeepseekV4Config.from_hf(json.loads((GOLDENS / name / file).read_text()))


class Runner:
    """A model on a cache of its own plan, with its step compiled once per shape."""

    def __init__(self, name, cache_format="float32", block=None):
        config = config_of(name)
        self.name = name
        self.spec = hc.CacheSpec.from_layers(
            config.layers(cache_format), block_tokens=block or BLOCK[name]
        )
        self.plan = hc.plan_capacity(
            self.spec,
            budget="64MiB",
            max_sequences=2,
            max_length=TOKENS[name],
            max_chunk=TOKENS[name],
            stored_tokens=2 * TOKENS[name],
        )
        self.identity = hc.Identity(
            weights=name, config=config.digest, layout=self.spec.fingerprint
        )
        self.params = stored(name, "model.safetensors")
        graph, self.state = nnx.split(from_params(DeepseekV4, config, self.params))

        def step(state, cache, inputs):
            view = hc.begin_step(cache, inputs, config.vocab_size)
            model = nnx.merge(graph, state)
            hidden, view = model(inputs.tokens, view)
            return (
                hc.end_step(view),
                view.status,
                model.logits(hidden),
                view.selections,
            )

        self.jitted = jax.jit(step, donate_argnums=1)

    def with_parameters(self, changes):
        """The same compiled step with other values of some parameters."""
        config = config_of(self.name)
        model = from_params(DeepseekV4, config, {**self.params, **changes})
        other = object.__new__(Runner)
        other.__dict__.update(self.__dict__, state=nnx.split(model)[1])
        return other

    def step(self, cache, inputs):
        with jax.default_matmul_precision("highest"):
            return self.jitted(self.state, cache, inputs)

    def admit(self, cache, prefixes, tokens):
        plan = prefixes.match(cache, tokens, self.identity)
        return plan, *prefixes.acquire(cache, plan)

    def run(self, cache, parts, width):
        """One step over ``(lease, tokens)`` of some rows.

        Returns:
          The cache, and per row the logits and the selections of its tokens.
        """
        inputs = hc.batch_inputs(parts, batch=len(parts), width=width)
        cache, status, logits, chosen = self.step(cache, inputs)
        assert status.tolist() == [hc.Status.OK] * len(parts)
        logits = np.array(logits)
        chosen = {layer: np.array(units)[:, :, 0] for layer, units in chosen.items()}
        return cache, [
            (
                logits[row, : len(part)],
                {k: v[row, : len(part)] for k, v in chosen.items()},
            )
            for row, (_, part) in enumerate(parts)
        ]

    def run_split(self, cache, lease, tokens, sizes, width):
        """Steps of one row: the cache, logits and selections of all its tokens."""
        results, at = [], 0
        for size in sizes:
            part = tokens[at : at + size]
            cache, (result,) = self.run(cache, [(lease, part)], width)
            results.append(result)
            at += size
        layers = results[0][1]
        return (
            cache,
            np.concatenate([logits for logits, _ in results]),
            {k: np.concatenate([chosen[k] for _, chosen in results]) for k in layers},
        )

    def run_alone(self, tokens, sizes, width):
        """The same in an empty cache; the row's number comes last."""
        prefixes = hc.PrefixCache(self.plan, policy=hc.ReusePolicy("namespace"))
        _, cache, lease = self.admit(hc.init(self.plan), prefixes, tokens)
        cache, logits, chosen = self.run_split(cache, lease, tokens, sizes, width)
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


def assert_state(run, cache, row, prefix, golden_row):
    """Everything that ``row`` holds against what the reference holds."""
    expected, found = golden(run.name), row_state(cache, row)
    for pool in run.spec.pools:
        for place, layer in enumerate(pool.layers):

            def want(what, layer=layer):
                return expected[f"{prefix}.layer{layer}.{what}"][golden_row]

            planes = {
                plane.name: found[pool.name][plane.name][place, :, 0]
                for plane in pool.entry.planes
            }
            if pool.form == hc.Form.UNCOMPRESSED_TAIL:
                kind = "indexer" if pool.part == "index_raw" else "entries"
                _assert_tail(planes, want, kind, run.params, layer, pool.geometry)
                continue
            what = {
                "local": "window_rows",
                "entries": "compressed_entries",
                "index": "index_keys",
            }[pool.part]
            got = np.concatenate([planes[p.name] for p in pool.entry.planes], axis=-1)
            np.testing.assert_allclose(got, want(what), atol=TOLERANCE)


def _assert_tail(planes, want, kind, params, layer, geometry):
    """Raw rows: both halves of the open block, the first half of the block before."""
    prefix, module = ("index_", "indexer.") if kind == "indexer" else ("", "")
    tail = want(f"{prefix}tail_value")
    overlap = len(planes["value"]) - len(tail)
    np.testing.assert_allclose(planes["value"][overlap:], tail, atol=TOLERANCE)
    gate = want(f"{prefix}tail_gate")
    np.testing.assert_allclose(planes["gate"][overlap:], gate, atol=TOLERANCE)
    if not geometry.halo:
        assert overlap == 0
        return
    value = want(f"{prefix}overlap_value")
    dim = value.shape[1]
    assert overlap == len(value)
    np.testing.assert_allclose(planes["value"][:overlap, :dim], value, atol=TOLERANCE)
    if overlap:
        # The reference keeps this gate with the position bias added.
        name = f"layers.{layer}.self_attn.compressor.{module}position_bias"
        gate = planes["gate"][:overlap, :dim] + params[name][:, :dim]
        want_gate = want(f"{prefix}overlap_gate")
        np.testing.assert_allclose(gate, want_gate, atol=TOLERANCE)


def assert_results(name, row, start, logits, chosen):
    """Logits and selections of the tokens from ``start`` on."""
    expected, end = golden(name), start + len(logits)
    want = expected["logits"][row, start:end]
    np.testing.assert_allclose(logits, want, atol=TOLERANCE)
    for layer, units in chosen.items():
        want = expected[f"selection.layer{layer}"][row, start:end]
        np.testing.assert_array_equal(np.sort(units), np.sort(want))


@pytest.mark.slow
def test_one_shot():
    """Both sequences in one step."""
    run, tokens = runner(TINY), golden(TINY)["tokens"]
    prefixes, cache, parts = (
        hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace")),
        hc.init(run.plan),
        [],
    )
    for row in range(2):
        _, cache, lease = run.admit(cache, prefixes, tokens[row])
        parts.append((lease, tokens[row]))
    cache, results = run.run(cache, parts, TOKENS[TINY])
    assert violations(cache) == []
    for row, (logits, chosen) in enumerate(results):
        assert_results(TINY, row, 0, logits, chosen)
        assert_state(run, cache, parts[row][0].row, "cache", row)


@pytest.mark.slow
def test_rows_of_unequal_length_in_one_batch():
    """Padding of one row, and the other row, disturb nothing."""
    run, tokens = runner(TINY), golden(TINY)["tokens"]
    prefixes, cache, leases = (
        hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace")),
        hc.init(run.plan),
        [],
    )
    for row in range(2):
        _, cache, lease = run.admit(cache, prefixes, tokens[row])
        leases.append(lease)
    at = [0, 0]
    for sizes in ((24, 5), (3, 24), (1, 17), (60, 1)):
        parts = [
            (lease, tokens[row][at[row] : at[row] + sizes[row]])
            for row, lease in enumerate(leases)
        ]
        cache, results = run.run(cache, parts, TOKENS[TINY])
        for row, (logits, chosen) in enumerate(results):
            assert_results(TINY, row, at[row], logits, chosen)
            at[row] += sizes[row]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "width"),
    [
        (TINY, (1,), 1),
        (TINY, (5, 3, 7, 1, 24), 24),
        (REAL, (400,), 400),
        (REAL, (130, 1, 60, 37, 5, 128), 400),
    ],
    ids=["tiny-token-by-token", "tiny-ragged", "real-one-shot", "real-ragged"],
)
def test_every_way_of_running_gives_the_reference_logits(name, sizes, width):
    tokens = golden(name)["tokens"][0]
    sizes = split(TOKENS[name], *sizes)
    cache, logits, chosen, row = runner(name).run_alone(tokens, sizes, width)
    assert_results(name, 0, 0, logits, chosen)
    assert_state(runner(name), cache, row, "cache", 0)


@pytest.mark.parametrize(
    ("name", "width"), [(TINY, 24), pytest.param(REAL, 400, marks=pytest.mark.slow)]
)
def test_cache_tensors_equal_the_reference(name, width):
    run = runner(name)
    for length in PREFIXES[name]:
        prefix = "cache" if length == TOKENS[name] else f"cache_at_{length}"
        tokens = golden(name)["tokens"][0][:length]
        cache, _, _, row = run.run_alone(tokens, split(length, width), width)
        assert_state(run, cache, row, prefix, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width"), [(TINY, 24), (REAL, 400)])
def test_resumed_at_every_legal_point(name, width):
    run, tokens = runner(name), golden(name)["tokens"][0]
    prefixes, total, grid = (
        hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace")),
        TOKENS[name],
        run.spec.grid,
    )
    _, cache, lease = run.admit(hc.init(run.plan), prefixes, tokens)
    for start in range(0, total, max(grid, 24)):
        part = tokens[start : start + max(grid, 24)]
        cache, _ = run.run(cache, [(lease, part)], width)
        cache = prefixes.publish(cache, lease)
    cache = prefixes.release(cache, lease)
    for point in range(grid, total, grid):
        plan, cache, lease = run.admit(cache, prefixes, tokens[: point + 1])
        assert (plan.verdict, plan.length) == (hc.Verdict.RESUMABLE, point)
        rest = tokens[point:]
        cache, logits, chosen = run.run_split(
            cache, lease, rest, split(len(rest), width), width
        )
        assert_results(name, 0, point, logits, chosen)
        assert_state(run, cache, lease.row, "cache", 0)
        cache = prefixes.release(cache, lease, publish=False)
        assert violations(cache) == []


@pytest.mark.parametrize(
    "part",
    ["position_bias", "sinks", "tid2eid", "correction_bias", "hc.base", "hc.scale"],
)
def test_parameters_that_a_slip_could_ignore_matter(part):
    run, tokens = runner(TINY), golden(TINY)["tokens"][0]
    changes = {
        name: np.zeros_like(value)
        for name, value in run.params.items()
        if name.endswith(part)
    }
    assert changes
    _, logits, _, _ = run.with_parameters(changes).run_alone(
        tokens, split(TOKENS[TINY], 24), 24
    )
    assert np.abs(logits - golden(TINY)["logits"][0]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("cache_format", ["fp8", "fp8_fp4", "bfloat16"])
def test_a_narrow_cache_holds_the_first_layer_within_its_rounding(cache_format):
    """The first layer's rows depend on no cached value: only rounding differs."""
    run, tokens = Runner(TINY, cache_format, block=16), golden(TINY)["tokens"][0]
    cache, logits, _, row = run.run_alone(tokens, split(TOKENS[TINY], 24), 24)
    assert np.isfinite(logits).all()
    (window,) = (pool for pool in run.spec.pools if pool.layers == (0,))
    planes = row_state(cache, row)[window.name]
    still = planes["k"][0, :, 0].astype(np.float32)
    turned = planes["k_rope"][0, :, 0].astype(np.float32)
    if cache_format != "bfloat16":
        still = still * planes["k_scale"][0, :, 0, :1].astype(np.float32)
    want = golden(TINY)["cache.layer0.window_rows"][0]
    dim = still.shape[1]
    # Half a step of three mantissa bits at the largest value of the run.
    bound = np.abs(want[:, :dim]).max(axis=-1, keepdims=True) / 16
    assert (np.abs(still - want[:, :dim]) <= bound).all()
    np.testing.assert_allclose(turned, want[:, dim:], rtol=2**-8)
