"""A decode step's time against the context length, per layer kind."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.bench.long_row import as_if_run
from hybridcache_jax.bench.measure import Measurement, Report, median_seconds_in_turn
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.codes import Status
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.identity import Identity
from hybridcache_jax.layers import Entries, IndexKeys, LayerSpec, TopK, Window
from hybridcache_jax.pooling import overlapped_gated_softmax
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import init
from hybridcache_jax.view import StepView, begin_step, end_step

_CONTEXTS = (16_384, 131_072, 1_048_576)
_VOCABULARY = 256
_BLOCK = 64
_HEADS, _DIM = 4, 32
_RATIO, _SELECTED = 4, 512

_ENTRY = Entry.kv(heads=1, dim=_DIM)
_ROW = Entry((Plane("k", 1, _DIM),))
_RAW = Entry((Plane("value", 1, 2 * _DIM), Plane("gate", 1, 2 * _DIM)))

_SPARSE = LayerSpec(
    local=Window(128, _ROW),
    global_=Entries(_ROW, _RATIO, overlap=1, raw=_RAW),
    index=IndexKeys(_ROW, _RATIO, overlap=1, raw=_RAW),
    select=TopK(_SELECTED, unit=_RATIO),
)

Run = Callable[[StepView], tuple[StepView, jax.Array]]


def run(contexts: Sequence[int] = _CONTEXTS, repeat: int = 100) -> Report:
    """Times one decode step of one layer at growing context lengths.

    A layer with selection is timed twice: with the selection given, which is what
    reads cost, and with its ranking, which looks at every index key by its nature.

    Args:
      contexts: tokens behind the step; the first is what others are compared with.
      repeat: rounds.
    """
    lines = []
    for name, layer, body, goal in (
        ("window 1,024", LayerSpec(local=Window(1024, _ENTRY)), _per_token, 1.2),
        (f"window 128 and {_SELECTED} selected entries", _SPARSE, _selected, 1.2),
        ("the same, ranking included", _SPARSE, _ranked, None),
        ("full history", LayerSpec(global_=Entries(_ENTRY)), _per_token, None),
    ):
        steps = [_decode_step(layer, length, body) for length in contexts]
        times = median_seconds_in_turn(steps, repeat=repeat)
        for length, seconds in zip(contexts, times, strict=True):
            lines.append(
                Measurement(
                    f"{name}, {length:,} tokens behind",
                    seconds,
                    f"the same at {contexts[0]:,}",
                    times[0],
                    goal,
                )
            )
    return Report(
        "decode-context",
        f"one layer, {_HEADS} query heads, 1 KV head x {_DIM}, ratio {_RATIO}",
        tuple(lines),
    )


def _per_token(view: StepView) -> tuple[StepView, jax.Array]:
    key = jnp.ones((1, 1, 1, _DIM))
    view = view.append(0, k=key, v=key)
    return view, view.attend(0, jnp.ones((1, 1, _HEADS, _DIM)), scale=1.0)


def _selected(view: StepView) -> tuple[StepView, jax.Array]:
    """Reads entries spread evenly over the history."""
    spread = jnp.arange(_SELECTED, dtype=jnp.int32)
    closed = view.positions[0, 0] // _RATIO
    units = (spread * closed // _SELECTED)[None, None, None]
    view = dataclasses.replace(_written(view), selections={0: units})
    return view, view.attend(0, jnp.ones((1, 1, _HEADS, _DIM)), scale=1.0)


def _ranked(view: StepView) -> tuple[StepView, jax.Array]:
    query = jnp.ones((1, 1, _HEADS, _DIM))
    view = _written(view).select(0, query, jnp.ones((1, 1, _HEADS)))
    return view, view.attend(0, query, scale=1.0)


def _written(view: StepView) -> StepView:
    row, raw = jnp.ones((1, 1, 1, _DIM)), jnp.ones((1, 1, 1, 2 * _DIM))

    def pool(rows, valid, first):
        del first
        pooled = overlapped_gated_softmax(rows["value"], rows["gate"], valid, None)
        return {"k": pooled}

    view = view.append(0, to="local", k=row)
    view = view.compress(0, pool, value=raw, gate=raw)
    return view.compress(0, pool, to="index", value=raw, gate=raw)


def _decode_step(layer: LayerSpec, length: int, body: Run) -> Callable[[], Any]:
    """Runs one more token of a row with ``length`` tokens behind it."""
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
    cache = as_if_run(cache, lease.row, length)

    def step(cache, inputs):
        view, out = body(begin_step(cache, inputs, _VOCABULARY))
        return end_step(view), view.status, out

    jitted = jax.jit(step, donate_argnums=0)
    held, inputs = [cache], lease.inputs(np.array([1]))

    def once():
        held[0], status, out = jitted(held[0], inputs)
        return status, out

    status, _ = once()
    if status[0] != Status.OK:
        raise AssertionError(f"The bench's row did not run: status {status[0]}")
    return once
