"""Blocks between device memory and payloads, a fixed number in one compiled call."""

import dataclasses

import jax
import numpy as np

from hybridcache_jax import lifecycle
from hybridcache_jax._indexing import get, put
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.forms import Form
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.state import HybridCache, StateTable

# Facts that go with a block wherever it lies.
LABELS = ("version", "provenance", "first")


class Transfer:
    """Compiled copies for the pools of one plan."""

    def __init__(self, plan: CapacityPlan):
        """Compiles nothing yet."""
        self.plan, self._batch = plan, plan.staging_blocks
        self._take = jax.jit(_take)
        self._place = jax.jit(_place, donate_argnums=0)
        self._receive = jax.jit(_receive, static_argnames="form")

    def out(self, cache: HybridCache, pool: int, ids: np.ndarray) -> list[Payload]:
        """Copies of blocks; they are complete when this returns.

        Args:
          cache: the cache.
          pool: index of the pool.
          ids: ``[n]`` int32.
        """
        found = []
        for start in range(0, len(ids), self._batch):
            some = ids[start : start + self._batch]
            padded = np.full(self._batch, self.plan.blocks[pool], np.int32)
            padded[: len(some)] = some
            taken = jax.device_get(self._take(cache.pools[pool], padded))
            for place in range(len(some)):
                planes = {name: plane[:, place] for name, plane in taken.items()}
                found.append(Payload.sealed(planes))
        return found

    def back(
        self,
        cache: HybridCache,
        pool: int,
        payloads: list[Payload],
        labels: np.ndarray,
    ) -> tuple[HybridCache, np.ndarray]:
        """Puts verified blocks into free ones and seals them for stored prefixes.

        Args:
          cache: the cache; its memory is donated.  The pool has room.
          pool: index of the pool.
          payloads: ``n`` blocks.
          labels: ``[len(LABELS), n]`` int32, what the facts say of them.

        Returns:
          The cache and ``[n]`` int32 ids.
        """
        found = [np.zeros(0, np.int32)]
        for start in range(0, len(payloads), self._batch):
            stop = start + self._batch
            cache, ids = self._back(
                cache, pool, payloads[start:stop], labels[:, start:stop]
            )
            found.append(ids)
        return cache, np.concatenate(found)

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """Compiles everything by copying no block at all; the memory is donated."""
        for pool, count in enumerate(self.plan.blocks):
            nothing = np.full(self._batch, count, np.int32)
            self._take(cache.pools[pool], nothing)
            cache, _ = self._back(cache, pool, [], np.zeros((len(LABELS), 0), np.int32))
        return cache

    def _back(
        self, cache: HybridCache, pool: int, some: list[Payload], labels: np.ndarray
    ) -> tuple[HybridCache, np.ndarray]:
        """One compiled call of :meth:`back`, for no more blocks than it takes."""
        facts = np.zeros((len(LABELS), self._batch), np.int32)
        facts[:, : len(some)] = labels
        want = np.arange(self._batch) < len(some)
        form = self.plan.spec.pools[pool].form
        table, ids = self._receive(
            cache.tables[pool], want, *facts, cache.clock, form=form
        )
        memory = {}
        for name, plane in cache.pools[pool].items():
            layers, _, *entry = plane.shape
            block = np.zeros((layers, self._batch, *entry), plane.dtype)
            for place, payload in enumerate(some):
                block[:, place] = payload.planes[name]
            memory[name] = block
        pools = list(cache.pools)
        pools[pool] = self._place(cache.pools[pool], ids, memory)
        tables = list(cache.tables)
        tables[pool] = table
        cache = dataclasses.replace(cache, pools=tuple(pools), tables=tuple(tables))
        return cache, np.asarray(ids)[: len(some)]


def _receive(
    table: StateTable, want, version, provenance, first, clock, *, form: Form
) -> tuple[StateTable, jax.Array]:
    """``FREE -> LOADING -> SEALED``; what is in between never outlives the update."""
    table, ids = lifecycle.receive(
        table,
        want,
        form=form,
        version=version,
        provenance=provenance,
        first=first,
        clock=clock,
    )
    return lifecycle.register(table, ids), ids


def _take(memory: dict[str, jax.Array], ids: jax.Array) -> dict[str, jax.Array]:
    """Plane to ``[L, K, S, width]``."""
    where = (slice(None), ids)
    return {name: get(plane, where, 0) for name, plane in memory.items()}


def _place(memory, ids: jax.Array, blocks) -> dict[str, jax.Array]:
    where = (slice(None), ids)
    return {name: put(plane, where, blocks[name]) for name, plane in memory.items()}
