"""Decode steps with large donated pools, compiled for accelerators that are not here.

What a real step does but for the model: leases and validation, rows written into every
pool, the ranking, every read.  The pools have to stay where they are.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.append import StepInputs
from hybridcache_jax.budget import plan_capacity
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.entry import Entry, Plane
from hybridcache_jax.layers import Entries, IndexKeys, LayerSpec, TopK, Window
from hybridcache_jax.pooling import overlapped_gated_softmax
from hybridcache_jax.reads import reads
from hybridcache_jax.spec import CacheSpec
from hybridcache_jax.state import HybridCache, init
from hybridcache_jax.view import StepView, begin_step, end_step
from pallas_kernels.compiled.accelerators import platform_of
from pallas_kernels.compiled.copies import large_moves
from pallas_kernels.compiled.targets import compile_for

_ROWS, _VOCABULARY = 8, 1024
_HEADS, _LATENT, _COMPRESSED = (8, 128), (512, 64), 512
_INDEX_HEADS, _RATIO = 64, 4
# More than any accelerator's fast memory, into which a compiler may copy what it likes.
_LARGE = 2**28


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What a compiled step takes; sizes in bytes.

    Attributes:
      pools: all pools.
      aliased: results that lie where an argument lay.
      temporary: scratch memory.
      moves: instructions that copy 256 MiB or more.
      kernels: implementation of each read of each pool.
      seconds: that compiling took.
    """

    pools: int
    aliased: int
    temporary: int
    moves: tuple[str, ...]
    kernels: tuple[str, ...]
    seconds: float


def _heads() -> list[LayerSpec]:
    """Windows and whole histories by turns, as Gemma 3 and gpt-oss have them."""
    entry = Entry.kv(*_HEADS, "bfloat16")
    return [
        LayerSpec(local=Window(1024, entry)),
        LayerSpec(global_=Entries(entry)),
    ] * 2


def _latents() -> list[LayerSpec]:
    """Latents of which an indexer selects, as in DeepSeek-V3.2."""
    latent, rope = _LATENT
    planes = (
        Plane("latent", 1, latent, "bfloat16"),
        Plane("rope", 1, rope, "bfloat16"),
    )
    entry = Entry(planes, key=("latent", "rope"), value=("latent",))
    index = IndexKeys(Entry((Plane("k", 1, 128, "bfloat16"),)))
    layer = LayerSpec(global_=Entries(entry), index=index, select=TopK(512))
    return [layer] * 2


def _compressed() -> list[LayerSpec]:
    """A window beside entries that pool 4 tokens, as in DeepSeek-V4."""
    row = Entry((Plane("k", 1, _COMPRESSED, "bfloat16"),))
    key = Entry((Plane("k", 1, 128, "bfloat16"),))

    def raw(dim):
        return Entry(tuple(Plane(name, 1, 2 * dim) for name in ("value", "gate")))

    layer = LayerSpec(
        local=Window(128, row),
        global_=Entries(row, _RATIO, overlap=1, raw=raw(_COMPRESSED)),
        index=IndexKeys(key, _RATIO, overlap=1, raw=raw(128)),
        select=TopK(512, unit=_RATIO),
    )
    return [layer] * 2


_LAYERS: dict[str, Callable[[], list[LayerSpec]]] = {
    "heads": _heads,
    "latents": _latents,
    "compressed": _compressed,
}
STEPS = tuple(_LAYERS)
"""The layouts there are steps of."""


def compile_step(
    name: str, target: str, *, kernels: str = "auto", budget: str = "6GiB"
) -> CompiledStep:
    """Compiles a decode step of 8 rows.

    Args:
      name: one of :data:`STEPS`.
      target: an accelerator, see ``pallas_kernels.compiled.accelerators``.
      kernels: as for ``plan_capacity``.
      budget: of the cache, as for ``plan_capacity``.

    Raises:
      ValueError: for a target that there is not, or kernels that do not accept a pool.
      Exception: whatever the compiler refuses.
    """
    backend = {"tpu": "tpu", "cuda": "gpu"}[platform_of(target)]
    plan = plan_capacity(
        CacheSpec.from_layers(_LAYERS[name](), block_tokens=128),
        budget=budget,
        max_sequences=_ROWS,
        max_length=32_768,
        max_chunk=1,
        backend=backend,
        kernels=kernels,
    )
    cache = jax.eval_shape(functools.partial(init, plan))
    compiled, seconds = compile_for(
        target, functools.partial(_step, name), (cache, _inputs()), donated=(0,)
    )
    memory = compiled.memory_analysis()
    if memory is None:
        raise ValueError(f"The compiler for {target} says nothing of memory.")
    planes = jax.tree.leaves(cache.pools)
    pools = sum(leaf.size * leaf.dtype.itemsize for leaf in planes)
    return CompiledStep(
        pools=pools,
        aliased=memory.alias_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        moves=large_moves(compiled, _LARGE),
        kernels=_kernels(plan),
        seconds=seconds,
    )


def _kernels(plan: CapacityPlan) -> tuple[str, ...]:
    return tuple(
        f"{pool.name} {read}: {plan.kernel(number, read).implementation}"
        for number, pool in enumerate(plan.spec.pools)
        for read in reads(plan.spec, number)
    )


def _inputs() -> StepInputs:
    row = np.zeros(_ROWS, np.int32)
    return StepInputs(row, row, row[:, None], row)


def _step(name: str, cache: HybridCache, inputs: StepInputs):
    """The step; what it writes and asks is made of its tokens."""
    view = begin_step(cache, inputs, _VOCABULARY)
    seed = jnp.asarray(inputs.tokens, jnp.float32)[..., None, None] / _VOCABULARY
    write = {"heads": _append_heads, "latents": _append_latents}.get(
        name, _append_compressed
    )
    for layer in range(len(cache.plan.spec.layers)):
        view, query = write(view, layer, seed)
        out = view.attend(layer, query, scale=0.1)
        # As in a model, a layer writes what follows from what the last one read.
        seed = seed + jnp.sum(out, axis=(2, 3), keepdims=True)
    return end_step(view), view.status, view.only_ok(seed)


def _full(seed: jax.Array, heads: int, dim: int) -> jax.Array:
    """``[B, 1, heads, dim]``."""
    return seed + jnp.arange(heads * dim, dtype=jnp.float32).reshape(heads, dim)


def _append_heads(view: StepView, layer: int, seed) -> tuple[StepView, jax.Array]:
    heads, dim = _HEADS
    row = _full(seed, heads, dim)
    return view.append(layer, k=row, v=row), _full(seed, 4 * heads, dim)


def _append_latents(view: StepView, layer: int, seed) -> tuple[StepView, jax.Array]:
    latent, rope = _LATENT
    view = view.append(layer, latent=_full(seed, 1, latent), rope=_full(seed, 1, rope))
    view = view.append(layer, to="index", k=_full(seed, 1, 128))
    return _ranked(view, layer, seed), _full(seed, 128, latent + rope)


def _append_compressed(view: StepView, layer: int, seed):
    def pool(rows, valid, first):
        del first
        pooled = overlapped_gated_softmax(rows["value"], rows["gate"], valid, None)
        return {"k": pooled}

    raw, index_raw = _full(seed, 1, 2 * _COMPRESSED), _full(seed, 1, 2 * 128)
    view = view.append(layer, to="local", k=_full(seed, 1, _COMPRESSED))
    view = view.compress(layer, pool, value=raw, gate=raw)
    view = view.compress(layer, pool, to="index", value=index_raw, gate=index_raw)
    return _ranked(view, layer, seed), _full(seed, 64, _COMPRESSED)


def _ranked(view: StepView, layer: int, seed) -> StepView:
    query = _full(seed, _INDEX_HEADS, 128)
    return view.select(layer, query, jnp.ones((_ROWS, 1, _INDEX_HEADS)))
