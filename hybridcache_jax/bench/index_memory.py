"""Memory of the prefix index, per cached block and per token."""

import gc
import tracemalloc

import numpy as np

from hybridcache_jax.bench.measure import Footprint, Report
from hybridcache_jax.bench.stored import Store, five_groups
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key

_LONG = (1, 1_000_000)
_SHORT = (500, 512)


def run(long: tuple[int, int] = _LONG, short: tuple[int, int] = _SHORT) -> Report:
    """Stores one long prompt, and many short ones that share nothing.

    Args:
      long: prompts, and tokens of each.
      short: likewise.
    """
    lines = []
    for count, tokens in (long, short):
        what = f"{count:,} x {tokens:,} tokens"
        store, allocated = _stored(count, tokens)
        blocks = sum(count * tokens // p.block_tokens for p in store.spec.pools)
        lines += [
            Footprint(
                f"{what}, per token",
                allocated / (count * tokens),
                "its id",
                np.dtype(np.int32).itemsize,
            ),
            Footprint(
                f"{what}, per cached block",
                allocated / blocks,
                "its id and epoch",
                2 * np.dtype(np.int32).itemsize,
            ),
            Footprint(
                f"{what}, as PrefixIndex.nbytes counts it, per cached block",
                store.index.nbytes / blocks,
                "as allocated",
                allocated / blocks,
            ),
        ]
    spec = five_groups()
    return Report(
        "index-memory",
        f"{len(spec.groups)} groups in {len(spec.pools)} pools, blocks of {spec.grid}; "
        "host memory as Python's allocator tells",
        tuple(lines),
    )


def _stored(count: int, tokens: int) -> tuple[Store, int]:
    """A store of so many prompts, and the bytes that its index took."""
    spec = five_groups()
    if tokens % spec.grid:
        raise ValueError(
            f"{tokens} tokens are not whole blocks; give a multiple of {spec.grid}."
        )
    key = Key(Identity(weights="w", config="c", layout=spec.fingerprint))
    store, rng = Store(spec, key, count * tokens), np.random.default_rng(0)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(count):
            store.put(rng.integers(0, 200_000, tokens, dtype=np.int32))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return store, after - before
