"""Golden models of window, chunk and full layers, run one-shot over the real cache."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

import hybridcache_jax as hc
from hybridcache_jax.models.parameters import from_params
from hybridcache_jax.testing.audit import row_state, violations

GOLDENS = Path(__file__).parents[1] / "goldens"
TOLERANCE = 1e-4
LOCAL = {"Window": "window_", "Chunk": "chunk_", "NoneType": ""}


def read_config(name, file="config.json"):
    return json.loads((GOLDENS / name / file).read_text())


def stored(name, file):
    """Tensors of a file, without the prefix of the body."""
    tensors = load_file(GOLDENS / name / file)
    return {key.removeprefix("model."): value for key, value in tensors.items()}


def run(name, make, config):
    """Both sequences of a golden in one step over the real cache.

    Returns:
      Logits ``[B, T, V]``, the cache after the step, its plan, and the rows used.
    """
    params = stored(name, "model.safetensors")
    model = from_params(make, config, jax.tree.map(jnp.asarray, params))
    tokens = stored(name, "expected.safetensors")["tokens"]
    batch, length = tokens.shape
    spec = hc.CacheSpec.from_layers(config.layers("float32"), block_tokens=4)
    plan = hc.plan_capacity(
        spec,
        budget="16MiB",
        max_sequences=batch,
        max_length=80,
        max_chunk=length,
        stored_tokens=400,
    )
    identity = hc.Identity(weights=name, config=name, layout=spec.fingerprint)
    prefixes, cache, parts = (
        hc.PrefixCache(plan, policy=hc.ReusePolicy("namespace")),
        hc.init(plan),
        [],
    )
    for row in tokens:
        cache, lease = prefixes.acquire(cache, prefixes.cold_plan(row, identity))
        parts.append((lease, row))
    graph, state = nnx.split(model)

    @jax.jit
    def step(state, cache, inputs):
        model = nnx.merge(graph, state)
        view = hc.begin_step(cache, inputs, config.vocab_size)
        hidden, view = model(inputs.tokens, view)
        return hc.end_step(view), view.status, model.logits(hidden)

    inputs = hc.batch_inputs(parts, batch=batch, width=length)
    cache, status, logits = step(state, cache, inputs)
    assert status.tolist() == [hc.Status.OK] * batch
    assert violations(cache) == []
    return np.array(logits), cache, plan, [lease.row for lease, _ in parts]


def check_reference(name, make, config):
    """One-shot logits and every cached tensor equal the golden's."""
    expected = stored(name, "expected.safetensors")
    logits, cache, plan, rows = run(name, make, config)
    np.testing.assert_allclose(logits, expected["logits"], atol=TOLERANCE)
    for number, row in enumerate(rows):
        state = row_state(cache, row)
        for pool in plan.spec.pools:
            prefix = LOCAL[type(plan.spec.layers[pool.layers[0]].local).__name__]
            for place, layer in enumerate(pool.layers):
                for plane, what in (("k", "keys"), ("v", "values")):
                    want = expected[f"cache.layer{layer}.{prefix}{what}"][number]
                    np.testing.assert_allclose(
                        state[pool.name][plane][place],
                        np.moveaxis(want, 0, 1),
                        atol=TOLERANCE,
                    )
