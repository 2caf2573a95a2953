"""Time to first token after a hit, against running the suffix's steps alone.

The floor runs the same compiled step over the same positions on a row that already
stands at the resume point: no match, no lease, no publication.
"""

import time

import jax
import numpy as np
from flax import nnx

from hybridcache_jax.bench.measure import Measurement, Report
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.codes import Verdict
from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.identity import Identity
from hybridcache_jax.lease import batch_inputs
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.rollout import ReusePolicy
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.serving.sampling import sampling_inputs
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.spec import CacheSpec

_PREFIX, _SUFFIX, _REPEAT = 4096, 96, 7
CONFIG = {
    "model_type": "gemma3_text",
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "sliding_window": 512,
    "max_position_embeddings": 8192,
}


def run() -> Report:
    """Serves a stored prefix with new suffixes, and the suffixes alone."""
    config = Gemma3Config.from_hf(CONFIG)
    spec = CacheSpec.from_layers(config.layers("float32"))
    buckets = Buckets(batch=(1,), chunk=(1, 128))
    plan = plan_capacity(
        spec,
        budget="4GiB",
        max_sequences=1,
        max_length=_PREFIX + _SUFFIX + 8,
        max_chunk=buckets.max_chunk,
        stored_tokens=2 * _PREFIX,
    )
    engine = Engine(
        CompiledStep(Gemma3(config, rngs=nnx.Rngs(0)), config.vocab_size),
        plan,
        Identity(weights="random", config=config.digest, layout=spec.fingerprint),
        vocab_size=config.vocab_size,
        buckets=buckets,
        policy=ReusePolicy(scope="namespace"),
    )
    engine.warm_up()
    rng = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        return rng.integers(3, config.vocab_size, count, dtype=np.int32)

    prefix = draw(_PREFIX)
    cold = _serve(engine, Request(prefix, max_new_tokens=1))
    resumed, alone = [], []
    for _ in range(_REPEAT):
        prompt = np.concatenate([prefix, draw(_SUFFIX)])
        result = _serve(engine, Request(prompt, max_new_tokens=1))
        if result.plan.verdict != Verdict.RESUMABLE:
            raise AssertionError(f"The bench missed: {result.plan.explain()}")
        resumed.append(result.seconds_to_first_token)
        prompt = np.concatenate([prefix, draw(_SUFFIX)])
        alone.append(_suffix_alone(engine, prompt))
    floor = float(np.median(alone))
    return Report(
        "resume",
        f"6 layers, prefix of {_PREFIX} tokens, suffix of {_SUFFIX}",
        tuple(
            Measurement(what, seconds, "the suffix's step alone", floor, goal)
            for what, seconds, goal in (
                ("first token, prefix resumed", float(np.median(resumed)), 1.1),
                ("first token, all cold", cold.seconds_to_first_token, None),
            )
        ),
    )


def _suffix_alone(engine: Engine, prompt: np.ndarray) -> float:
    """Seconds of the step over the suffix, everything else done beforehand."""
    prefixes = engine.prefixes
    plan = prefixes.match(engine.cache, prompt, engine.identity)
    cache, lease = prefixes.acquire(engine.cache, plan)
    shape = engine.buckets.fit(1, len(prompt) - plan.start)
    inputs = batch_inputs(
        [(lease, prompt[plan.start :])], batch=shape[0], width=shape[1]
    )
    sampling = sampling_inputs([], shape[0])
    jax.block_until_ready(cache)
    start = time.perf_counter()
    cache, output = engine.compiled_step(cache, inputs, sampling)
    np.array(output.tokens)
    seconds = time.perf_counter() - start
    engine.cache = prefixes.release(cache, lease, publish=False)
    return seconds


def _serve(engine: Engine, request: Request):
    return engine.run([request])[0]
