"""What the check inside a decode step costs: one check against the whole step.

A step cannot be built without its check.  The same check, on the same rows of the same
cache, is compiled into programs of its own: one that makes it once and one that makes
it many times, each on what the one before found.  The difference is what a check adds
to a compiled program; to call a program costs more, which inside the step is not paid.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridcache_jax import rows
from hybridcache_jax.bench.long_row import as_if_run
from hybridcache_jax.bench.measure import Measurement, Report, median_seconds_in_turn
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.codes import Status
from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.identity import Identity
from hybridcache_jax.lease import batch_inputs
from hybridcache_jax.models.gemma3 import Gemma3
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.serving.sampling import sampling_inputs
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import init

_ROWS, _CONTEXT = 4, 16_384
_CHECKS = 33

# The widths of Gemma 3 270M, a third of its layers, a small part of its vocabulary: the
# whole model's step takes longer, and the check's share of it is smaller.
_CONFIG = {
    "model_type": "gemma3_text",
    "vocab_size": 8192,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32_768,
}


def run(batch: int = _ROWS, context: int = _CONTEXT, repeat: int = 40) -> Report:
    """Times decode steps of rows with a long history, and their check.

    Args:
      batch: rows.
      context: tokens behind each of them.
      repeat: rounds.
    """
    config = Gemma3Config.from_hf(_CONFIG)
    spec = CacheSpec.from_layers(config.layers("bfloat16"))
    plan = plan_capacity(
        spec,
        budget="8GiB",
        max_sequences=batch,
        max_length=context + 8 * spec.grid,
        max_chunk=1,
        # All rows at their longest at once.
        stored_tokens=batch * (context + 8 * spec.grid),
    )
    prefixes = PrefixCache(plan)
    identity = Identity(weights="w", config="c", layout=spec.fingerprint)
    cache, leases = init(plan), []
    for _ in range(batch):
        cache, lease = prefixes.acquire(cache, prefixes.cold_plan([0], identity))
        leases.append(lease)
    for lease in leases:
        cache = as_if_run(cache, lease.row, context)
    inputs = batch_inputs(
        [(lease, np.array([1])) for lease in leases], batch=batch, width=1
    )
    sampling = sampling_inputs([], batch)
    model = Gemma3(config, rngs=nnx.Rngs(0))
    step = CompiledStep(model, config.vocab_size)
    held = [cache]

    def decode():
        held[0], output = step(held[0], inputs, sampling)
        return output.status

    def validate(count):
        return _check(held[0], inputs.rows, inputs.tickets, count)

    once, many = (functools.partial(validate, count) for count in (1, _CHECKS))
    for status in (decode(), once(), many()):
        if (np.asarray(status) != Status.OK).any():
            raise AssertionError(f"The bench's rows did not run: status {status}")
    # Both come after a step, which leaves the processor's caches as it does.
    whole, first, _, all_of_them = median_seconds_in_turn(
        [decode, once, decode, many], repeat=repeat
    )
    added, floor = (all_of_them - first) / (_CHECKS - 1), "a decode step"
    lines = (
        Measurement("what a check adds", added, floor, whole, goal=0.01),
        Measurement("a check called by itself", first, floor, whole),
    )
    return Report(
        "validation",
        f"{len(spec.layers)} layers of Gemma 3 270M's widths in {len(spec.pools)} "
        f"pools, {batch} rows, {context:,} tokens behind each",
        lines,
    )


@functools.partial(jax.jit, static_argnames="count")
def _check(cache, numbers, tickets, count: int) -> jax.Array:
    """``[B]`` int32 ``Status``, OK if each of ``count`` checks says so."""

    def again(_, worst):
        # Each needs all of the one before, which found nothing wrong.
        return jnp.maximum(worst, rows.check(cache, numbers + worst, tickets))

    return jax.lax.fori_loop(0, count, again, jnp.zeros_like(tickets))
