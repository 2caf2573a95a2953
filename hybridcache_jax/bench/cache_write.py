"""A decode step's write into a donated pool: flat in the size of the pool?"""

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax._compat import aliased_bytes, temporary_bytes
from hybridcache_jax.bench.measure import Measurement, Report, median_seconds
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.entry import Entry
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, LayerSpec, Window
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import init
from hybridcache_jax.view import begin_step, end_step

_SIZES = ("16MiB", "256MiB", "2GiB")
_VOCABULARY = 256


def run() -> Report:
    """Times one step of one token, writes only, in pools of growing size."""
    timed = []
    for budget in _SIZES:
        timed.append((budget, *_step_time(budget)))
    smallest = timed[0][1]
    lines = []
    for budget, seconds, temporary, aliased in timed:
        lines.append(
            Measurement(
                f"write step, cache of {budget} (in place: "
                f"{format_bytes(aliased)}, scratch: {format_bytes(temporary)})",
                seconds,
                f"the same with {_SIZES[0]}",
                smallest,
                goal=1.2,
            )
        )
    return Report(
        "cache-write", "2 layers (window, full), 8 heads x 64, one row", tuple(lines)
    )


def _step_time(budget: str) -> tuple[float, int, int]:
    entry = Entry.kv(heads=8, dim=64, dtype="bfloat16")
    spec = CacheSpec.from_layers(
        [LayerSpec(local=Window(128, entry)), LayerSpec(global_=Entries(entry))]
    )
    plan = plan_capacity(
        spec, budget=budget, max_sequences=1, max_length=2048, max_chunk=16
    )
    prefixes = PrefixCache(plan)
    identity = Identity(weights="w", config="c", layout=spec.fingerprint)
    values = jnp.ones((1, 1, 8, 64), jnp.bfloat16)

    def write(cache, inputs):
        view = begin_step(cache, inputs, _VOCABULARY)
        for layer in range(2):
            view = view.append(layer, k=values, v=values)
        return end_step(view), view.status

    cache, lease = prefixes.acquire(init(plan), prefixes.cold_plan([0], identity))
    step = jax.jit(write, donate_argnums=0)
    inputs = lease.inputs(np.array([1]))
    compiled = step.lower(cache, inputs).compile()
    held = [cache]

    def once():
        held[0], status = compiled(held[0], inputs)
        return status

    seconds = median_seconds(once, repeat=200)
    return seconds, temporary_bytes(compiled), aliased_bytes(compiled)
