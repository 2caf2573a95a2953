"""Blocks between device memory and payloads, a fixed number in one compiled call."""

import dataclasses
from collections.abc import Sequence

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


@dataclasses.dataclass(frozen=True)
class Arrival:
    """Blocks that are ready to be placed in one pool.

    Attributes:
      pool: index of the pool.
      table: its facts once they are there.
      parts: for each compiled call, ``[K]`` ids (``P`` for padding) and the memory,
        plane to ``[L, K, S, width]``.
      count: how many blocks.
    """

    pool: int
    table: StateTable
    parts: tuple[tuple[jax.Array, dict[str, np.ndarray]], ...]
    count: int

    @property
    def ids(self) -> np.ndarray:
        """``[count]`` int32."""
        found = [np.zeros(0, np.int32), *(np.asarray(ids) for ids, _ in self.parts)]
        return np.concatenate(found)[: self.count]


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

    def receive(
        self,
        cache: HybridCache,
        pool: int,
        table: StateTable,
        payloads: list[Payload],
        labels: np.ndarray,
    ) -> Arrival:
        """Makes verified blocks ready to be placed; changes nothing.

        Args:
          cache: the cache.
          pool: index of the pool.
          table: its facts after what was received before; there is room.
          payloads: ``n`` blocks.
          labels: ``[len(LABELS), n]`` int32, what the facts say of them.
        """
        parts = []
        for start in range(0, len(payloads), self._batch):
            stop = start + self._batch
            table, part = self._received(
                cache, pool, table, payloads[start:stop], labels[:, start:stop]
            )
            parts.append(part)
        return Arrival(pool, table, tuple(parts), len(payloads))

    def place(self, cache: HybridCache, arrivals: Sequence[Arrival]) -> HybridCache:
        """Puts blocks into the memory that was made ready for them, and seals them.

        Args:
          cache: the cache from which they were received; its memory is donated.
          arrivals: in the order in which they were received.
        """
        pools, tables = list(cache.pools), list(cache.tables)
        for arrival in arrivals:
            tables[arrival.pool] = arrival.table
            for ids, memory in arrival.parts:
                pools[arrival.pool] = self._place(pools[arrival.pool], ids, memory)
        return dataclasses.replace(cache, pools=tuple(pools), tables=tuple(tables))

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """Compiles everything by copying no block at all; the memory is donated."""
        for pool, count in enumerate(self.plan.blocks):
            nothing = np.full(self._batch, count, np.int32)
            self._take(cache.pools[pool], nothing)
            labels = np.zeros((len(LABELS), 0), np.int32)
            table, part = self._received(cache, pool, cache.tables[pool], [], labels)
            cache = self.place(cache, [Arrival(pool, table, (part,), 0)])
        return cache

    def _received(
        self,
        cache: HybridCache,
        pool: int,
        table: StateTable,
        some: list[Payload],
        labels: np.ndarray,
    ) -> tuple[StateTable, tuple[jax.Array, dict[str, np.ndarray]]]:
        """Facts, ids and memory of no more blocks than one compiled call takes."""
        facts = np.zeros((len(LABELS), self._batch), np.int32)
        facts[:, : len(some)] = labels
        want = np.arange(self._batch) < len(some)
        form = self.plan.spec.pools[pool].form
        table, ids = self._receive(table, want, *facts, cache.clock, form=form)
        memory = {}
        for name, plane in cache.pools[pool].items():
            layers, _, *entry = plane.shape
            block = np.zeros((layers, self._batch, *entry), plane.dtype)
            for place, payload in enumerate(some):
                block[:, place] = payload.planes[name]
            memory[name] = block
        return table, (ids, memory)


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
