"""A decode step's time against the context length, per layer kind."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.bench.measure import Measurement, Report, median_seconds
from hybridcache_jax.capacity import plan_capacity
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, Entry, LayerSpec, Window
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import init
from hybridcache_jax.view import begin_step, end_step

_CONTEXTS = (16_384, 131_072, 1_048_576)
_VOCABULARY = 256
_BLOCK = 64


def run() -> Report:
    """Times one decode step of one layer at growing context lengths."""
    entry = Entry.kv(heads=1, dim=32)
    lines = []
    for name, layer, goal in (
        ("window 1,024", LayerSpec(local=Window(1024, entry)), 1.2),
        ("full history", LayerSpec(global_=Entries(entry)), None),
    ):
        times = [_step_time(layer, length) for length in _CONTEXTS]
        for length, seconds in zip(_CONTEXTS, times, strict=True):
            lines.append(
                Measurement(
                    f"{name}, {length:,} tokens behind",
                    seconds,
                    f"the same at {_CONTEXTS[0]:,}",
                    times[0],
                    goal,
                )
            )
    return Report(
        "decode-context", "one layer, 4 query heads, 1 KV head x 32", tuple(lines)
    )


def _step_time(layer: LayerSpec, length: int) -> float:
    spec = CacheSpec.from_layers([layer], block_tokens=_BLOCK)
    plan = plan_capacity(
        spec,
        budget="4GiB",
        max_sequences=1,
        max_length=length + 4 * _BLOCK,
        max_chunk=16,
        stored_tokens=0,
    )
    prefixes = PrefixCache(plan)
    identity = Identity(weights="w", config="c", layout=spec.fingerprint)
    cache, lease = prefixes.acquire(init(plan), prefixes.cold_plan([0], identity))
    cache = _as_if_run(cache, lease.row, length)
    key, query = jnp.ones((1, 1, 1, 32)), jnp.ones((1, 1, 4, 32))

    def step(cache, inputs):
        view = begin_step(cache, inputs, _VOCABULARY)
        view = view.append(0, k=key, v=key)
        out = view.attend(0, query, scale=1.0)
        return end_step(view), view.status, out

    jitted = jax.jit(step, donate_argnums=0)
    held, inputs = [cache], lease.inputs(np.array([1]))

    def once():
        held[0], status, out = jitted(held[0], inputs)
        return status, out

    status, _ = once()
    if status[0] != 0:
        raise AssertionError(f"The bench's row did not run: status {status[0]}")
    return median_seconds(once, repeat=20)


def _as_if_run(cache, row: int, length: int):
    """The row as ``length`` tokens would leave it; the entries are zeros."""
    pool, columns = cache.plan.spec.pools[0], cache.plan.columns(0)
    size = pool.block_tokens
    local = pool.geometry.local
    first = 0 if local is None else local.first_visible(length) // size
    numbers = np.arange(first, length // size)
    ids = np.arange(len(numbers), dtype=np.int32)
    blocks = np.array(cache.rows.blocks[0])
    epochs = np.array(cache.rows.epochs[0])
    blocks[row, numbers % columns], epochs[row, numbers % columns] = ids, 1
    table = cache.tables[0]
    count = len(ids)
    table = dataclasses.replace(
        table,
        stage=table.stage.at[:count].set(2),
        form=table.form.at[:count].set(int(pool.form)),
        version=table.version.at[:count].set(cache.rows.version[row]),
        epoch=table.epoch.at[:count].set(1),
        pins=table.pins.at[:count].set(1),
        first=table.first.at[:count].set(numbers.astype(np.int32) * size),
        num_free=table.num_free - count,
    )
    rows = dataclasses.replace(
        cache.rows,
        length=cache.rows.length.at[row].set(length),
        blocks=(jnp.asarray(blocks),),
        epochs=(jnp.asarray(epochs),),
    )
    return dataclasses.replace(cache, tables=(table,), rows=rows)
