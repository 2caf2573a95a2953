"""Runs a recurrent hybrid over the real cache, beside its reference outputs."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.models.parameters import from_params
from hybridcache_jax.testing.audit import row_state, violations

GOLDENS = Path(__file__).parents[1] / "goldens"
TOLERANCE = 2e-3
BLOCK, WIDTH, TOKENS = 5, 41, 150


@dataclasses.dataclass(frozen=True)
class Golden:
    """One reference fixture and the classes that it is a fixture of."""

    name: str
    make_config: Any
    make_model: Callable

    @property
    def folder(self) -> Path:
        return GOLDENS / self.name

    @functools.cached_property
    def expected(self):
        return load_file(self.folder / "expected.safetensors")

    @functools.cached_property
    def config(self):
        return self.make_config.from_hf(read_json(self.folder / "config.json"))

    def tensors(self, file):
        """Tensors of a weight file, without the prefix of the body."""
        tensors = load_file(self.folder / file)
        return {key.removeprefix("model."): value for key, value in tensors.items()}

    @functools.cached_property
    def runner(self):
        return Runner(self)


class Runner:
    """A model on a cache of its own plan, with its step compiled once per shape."""

    def __init__(self, golden, **changes):
        config = dataclasses.replace(golden.config, **changes)
        params = golden.tensors("model.safetensors")
        graph, state = nnx.split(from_params(golden.make_model, config, params))
        spec = hc.CacheSpec.from_layers(config.layers("float32"), block_tokens=BLOCK)
        self.golden = golden
        self.plan = hc.plan_capacity(
            spec,
            budget="64MiB",
            max_sequences=2,
            max_length=TOKENS + BLOCK,
            max_chunk=TOKENS,
            stored_tokens=2 * TOKENS,
        )
        self.identity = hc.Identity(
            weights=golden.name, config=config.digest, layout=spec.fingerprint
        )

        def step(state, cache, inputs):
            view = hc.begin_step(cache, inputs, config.vocab_size)
            model = nnx.merge(graph, state)
            with jax.default_matmul_precision("highest"):
                hidden, view = model(jnp.clip(inputs.tokens, 0, 63), view)
                logits = model.logits(hidden)
            return hc.end_step(view), view.status, logits

        jitted = jax.jit(step, donate_argnums=1)
        self.step = lambda cache, inputs: jitted(state, cache, inputs)

    def admit(self, cache, prefixes, tokens):
        plan = prefixes.match(cache, tokens, self.identity)
        return plan, *prefixes.acquire(cache, plan)

    def run(self, cache, lease, tokens, sizes, width):
        """Runs tokens in steps; the cache and the logits of each position."""
        logits, at = [], 0
        for size in sizes:
            part = tokens[at : at + size]
            inputs = hc.batch_inputs([(lease, part)], batch=1, width=width)
            cache, status, out = self.step(cache, inputs)
            assert status[0] == hc.Status.OK
            logits.append(np.array(out)[0, : len(part)])
            at += size
        return cache, np.concatenate(logits)

    def run_alone(self, row, sizes, width):
        """The same for one reference sequence in an empty cache; its row is last."""
        tokens = self.golden.expected["tokens"][row][: sum(sizes)]
        prefixes = hc.PrefixCache(self.plan, policy=hc.ReusePolicy("namespace"))
        _, cache, lease = self.admit(hc.init(self.plan), prefixes, tokens)
        cache, logits = self.run(cache, lease, tokens, sizes, width)
        assert violations(cache) == []
        return cache, logits, lease.row

    def assert_state(self, cache, row, length, golden_row):
        """Everything that ``row`` holds against what the reference holds."""
        prefix = "cache" if length == TOKENS else f"cache_at_{length}"
        found = row_state(cache, row)
        for pool in self.plan.spec.pools:
            for plane in pool.entry.planes:
                want = np.stack(
                    [
                        self._wanted(f"{prefix}.layer{layer}", plane.name, golden_row)
                        for layer in pool.layers
                    ]
                )
                got = found[pool.name][plane.name]
                np.testing.assert_allclose(got, want, atol=TOLERANCE)

    def _wanted(self, prefix, plane, row):
        """One layer's reference rows ``[n, heads, dim]``."""
        stored, arrange = PLANES[plane]
        return arrange(self.golden.expected[f"{prefix}.{stored}"][row])


# Per plane: the reference tensor, and how it lies as entries ``[n, heads, dim]``.  The
# reference keeps one more input of the convolution than is ever read.
PLANES = {
    "state": ("recurrent_state", lambda x: x.reshape(1, len(x), -1)),
    "conv": ("conv_state", lambda x: x[:, -3:].T.reshape(1, 1, -1)),
    "k": ("keys", lambda x: np.moveaxis(x, 0, 1)),
    "v": ("values", lambda x: np.moveaxis(x, 0, 1)),
    "latent": ("latent", lambda x: x[:, None]),
    "rope": ("rope_key", lambda x: x[:, None]),
}


def split(total, *sizes):
    """Steps of the given sizes, again and again, that add up to ``total``."""
    result = []
    while sum(result) < total:
        result.append(min(sizes[len(result) % len(sizes)], total - sum(result)))
    return result


WAYS = {
    "token-by-token": (split(TOKENS, 1), 1),
    "ragged": (split(TOKENS, 5, 3, 1, WIDTH), WIDTH),
    "a token or two in padded steps": (split(TOKENS, 1, 2), WIDTH),
}
"""Ways of splitting a sequence into steps: their sizes and their padded width."""


def check_logits(golden, way):
    sizes, width = WAYS[way]
    for row in range(2):
        cache, logits, place = golden.runner.run_alone(row, sizes, width)
        want = golden.expected["logits"][row]
        np.testing.assert_allclose(logits, want, atol=TOLERANCE)
        golden.runner.assert_state(cache, place, TOKENS, row)


def check_state(golden, length):
    """However the tokens are split, the row ends in the state of the reference."""
    for row in range(2):
        for sizes in (split(length, WIDTH), split(length, 7, 2)):
            cache, _, place = golden.runner.run_alone(row, sizes, WIDTH)
            golden.runner.assert_state(cache, place, length, row)


def check_resumed(golden):
    """From every stored checkpoint, to the end."""
    run, stride = golden.runner, 5 * BLOCK
    tokens, expected = golden.expected["tokens"][0], golden.expected["logits"][0]
    prefixes = hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace"))
    _, cache, lease = run.admit(hc.init(run.plan), prefixes, tokens)
    for start in range(0, TOKENS, stride):
        part = tokens[start : start + stride]
        cache, _ = run.run(cache, lease, part, [stride], WIDTH)
        cache = prefixes.publish(cache, lease)
    cache = prefixes.release(cache, lease)
    for point in range(stride, TOKENS, stride):
        plan, cache, lease = run.admit(cache, prefixes, tokens[: point + 1])
        assert (plan.verdict, plan.length) == (hc.Verdict.RESUMABLE, point)
        rest = tokens[point:]
        cache, logits = run.run(cache, lease, rest, split(len(rest), WIDTH), WIDTH)
        np.testing.assert_allclose(logits, expected[point:], atol=TOLERANCE)
        run.assert_state(cache, lease.row, TOKENS, 0)
        cache = prefixes.release(cache, lease, publish=False)
        assert violations(cache) == []


def check_batch(golden, steps):
    """Both reference sequences in one batch of one width.

    Padding of one row, and the other row, disturb nothing.

    Args:
      golden: the fixture.
      steps: for each step how many tokens each row runs.
    """
    run, expected = golden.runner, golden.expected
    prefixes, cache = (
        hc.PrefixCache(run.plan, policy=hc.ReusePolicy("namespace")),
        hc.init(run.plan),
    )
    leases = []
    for row in range(2):
        _, cache, lease = run.admit(cache, prefixes, expected["tokens"][row])
        leases.append(lease)
    at = [0, 0]
    for sizes in steps:
        ends = [start + size for start, size in zip(at, sizes, strict=True)]
        parts = [
            (lease, expected["tokens"][row][at[row] : ends[row]])
            for row, lease in enumerate(leases)
        ]
        inputs = hc.batch_inputs(parts, batch=2, width=TOKENS)
        cache, status, out = run.step(cache, inputs)
        assert status.tolist() == [hc.Status.OK, hc.Status.OK]
        for row in range(2):
            want = expected["logits"][row][at[row] : ends[row]]
            got = np.array(out)[row, : sizes[row]]
            np.testing.assert_allclose(got, want, atol=TOLERANCE)
        at = ends
    for row, lease in enumerate(leases):
        run.assert_state(cache, lease.row, at[row], row)


def check_published_names(golden, published_names):
    """Every stored tensor is used once, and gives the parameter bit by bit."""
    wanted = golden.tensors("model.safetensors")
    published = golden.tensors("hub_names.safetensors")
    recipes = published_names(golden.config)
    assert recipes.keys() == wanted.keys()
    for parameter, recipe in recipes.items():
        made = recipe.make([published[tensor] for tensor in recipe.names])
        np.testing.assert_array_equal(made, wanted[parameter])
    used = [tensor for recipe in recipes.values() for tensor in recipe.names]
    assert sorted(used) == sorted(published)
