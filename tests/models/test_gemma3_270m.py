"""Gemma 3 270M, real weights, through the engine's compiled step.

Greedy ids equal at every step, top-5 logits and logsumexp within 1e-3: a window off
by one changes no greedy id here but moves logits by 0.05 or more.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from hybridcache_jax.codes import Status, Verdict
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.lease import batch_inputs
from hybridcache_jax.models.bundled import GEMMA3_270M_SHA256, bundled_gemma3_270m
from hybridcache_jax.models.load import load_model
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.build import build_engine
from hybridcache_jax.serving.sampling import sampling_inputs

GOLDENS = Path(__file__).parents[1] / "goldens"
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def engine():
    try:
        path = bundled_gemma3_270m()
    except CheckpointError as error:
        pytest.skip(str(error))
    loaded = load_model(path, weights_digest=GEMMA3_270M_SHA256)
    with jax.default_matmul_precision("highest"):
        engine = build_engine(
            loaded,
            max_length=3072,
            max_sequences=1,
            stored_tokens=3072,
            buckets=Buckets(batch=(1,), chunk=(1, 256)),
            policy=ReusePolicy(scope="namespace"),
        )
    return engine


@pytest.fixture(scope="module")
def expected():
    return load_file(GOLDENS / "gemma3_270m_expected.safetensors")


def compare(logits, want, step):
    order = np.argsort(-logits)[:5]
    np.testing.assert_allclose(logits[order], want["top5_values"][step], atol=TOLERANCE)
    assert order[0] == want["top5_ids"][step][0]
    peak = logits.max()
    logsumexp = peak + np.log(np.exp(logits - peak, dtype=np.float64).sum())
    assert abs(logsumexp - want["logsumexp"][step]) < TOLERANCE


def golden(expected, number):
    start = f"prompt{number}."
    return {k[len(start) :]: v for k, v in expected.items() if k.startswith(start)}


def decode(engine, want, plan):
    """Runs a prompt under a plan and 48 greedy steps, each compared."""
    tokens = want["tokens"]
    cache, lease = engine.prefixes.acquire(engine.cache, plan)
    at, greedy = plan.start, sampling_inputs([], 1)
    room = [256 // pool.block_tokens + 1 for pool in engine.plan.spec.pools]
    while at < len(tokens):
        part = tokens[at : at + 256]
        inputs = batch_inputs([(lease, part)], batch=1, width=256)
        # Earlier prompts are stored and fill the pools.
        cache = engine.prefixes.make_room(cache, room)
        cache, output = engine.compiled_step(cache, inputs, greedy)
        assert output.status[0] == Status.OK
        cache = engine.prefixes.publish(cache, lease)
        at += len(part)
    for step, token in enumerate(want["continuation"]):
        assert output.status[0] == Status.OK
        assert output.tokens[0] == token
        compare(np.array(output.logits)[0], want, step)
        inputs = batch_inputs([(lease, [token])], batch=1, width=1)
        cache = engine.prefixes.make_room(cache, room)
        cache, output = engine.compiled_step(cache, inputs, greedy)
    engine.cache = engine.prefixes.release(cache, lease)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_cold_and_resumed_give_the_reference(engine, expected, number):
    want = golden(expected, number)
    cold = engine.prefixes.cold_plan(want["tokens"], engine.identity)
    decode(engine, want, cold)
    plan = engine.prefixes.match(engine.cache, want["tokens"], engine.identity)
    grid = engine.plan.spec.grid
    assert plan.verdict == Verdict.RESUMABLE
    assert plan.length == (len(want["tokens"]) - 1) // grid * grid
    decode(engine, want, plan)


def test_the_goldens_are_of_these_weights():
    meta = json.loads((GOLDENS / "gemma3_270m_meta.json").read_text())
    assert meta["gguf_sha256"] == GEMMA3_270M_SHA256
