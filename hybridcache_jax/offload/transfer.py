"""Blocks between device memory and payloads, a fixed number in one compiled call.

No more than one such batch is copied at a time, and it is gone before the next one:
what moves takes the memory that the plan sets aside, however many blocks there are.
"""

import dataclasses
import math
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
      parts: for each compiled call, ``[K]`` ids (``P`` for padding) and the blocks,
        ``K`` or fewer; nothing of them is copied yet.
      count: how many blocks.
    """

    pool: int
    table: StateTable
    parts: tuple[tuple[jax.Array, Sequence[Payload]], ...]
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

    def take(
        self, cache: HybridCache, pool: int, ids: np.ndarray
    ) -> dict[str, np.ndarray]:
        """A copy of one batch of blocks; it is complete when this returns.

        Args:
          cache: the cache.
          pool: index of the pool.
          ids: ``[n]`` int32, ``n <= K``.

        Returns:
          Plane to ``[L, K, S, width]``; places from ``n`` on hold zeros.
        """
        padded = np.full(self._batch, self.plan.blocks[pool], np.int32)
        padded[: len(ids)] = ids
        return jax.device_get(self._take(cache.pools[pool], padded))

    def receive(
        self,
        cache: HybridCache,
        pool: int,
        table: StateTable,
        payloads: list[Payload],
        labels: np.ndarray,
    ) -> Arrival:
        """Hands out ids for verified blocks and makes the facts; changes nothing.

        Args:
          cache: the cache.
          pool: index of the pool.
          table: its facts after what was received before; there is room.
          payloads: ``n`` blocks; they are kept as they are until they are placed.
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

    def staging(self) -> np.ndarray:
        """Host memory for one batch of any pool, ``[bytes]`` uint8."""
        largest = max(pool.block_bytes for pool in self.plan.spec.pools)
        return np.empty(self._batch * largest, np.uint8)

    def place(
        self, cache: HybridCache, arrivals: Sequence[Arrival], staging: np.ndarray
    ) -> HybridCache:
        """Puts blocks into the memory that was made ready for them, and seals them.

        Args:
          cache: the cache from which they were received; its memory is donated.
          arrivals: in the order in which they were received.
          staging: from :meth:`staging`; every batch is copied through it.
        """
        pools, tables = list(cache.pools), list(cache.tables)
        for arrival in arrivals:
            tables[arrival.pool] = arrival.table
            memory = self._views(staging, pools[arrival.pool])
            for ids, payloads in arrival.parts:
                for place, payload in enumerate(payloads):
                    for name, plane in memory.items():
                        plane[:, place] = payload.planes[name]
                # Places without a block keep what they held; their ids drop it.
                placed = self._place(pools[arrival.pool], ids, memory)
                # A call may read host memory where it lies, and after it returned.
                pools[arrival.pool] = jax.block_until_ready(placed)
        return dataclasses.replace(cache, pools=tuple(pools), tables=tuple(tables))

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """Compiles everything by copying no block at all; the memory is donated."""
        for pool, count in enumerate(self.plan.blocks):
            nothing = np.full(self._batch, count, np.int32)
            self._take(cache.pools[pool], nothing)
            labels = np.zeros((len(LABELS), 0), np.int32)
            table, part = self._received(cache, pool, cache.tables[pool], [], labels)
            arrival = Arrival(pool, table, (part,), 0)
            cache = self.place(cache, [arrival], self.staging())
        return cache

    def _received(
        self,
        cache: HybridCache,
        pool: int,
        table: StateTable,
        some: list[Payload],
        labels: np.ndarray,
    ) -> tuple[StateTable, tuple[jax.Array, list[Payload]]]:
        """Facts and ids of no more blocks than one compiled call takes."""
        facts = np.zeros((len(LABELS), self._batch), np.int32)
        facts[:, : len(some)] = labels
        want = np.arange(self._batch) < len(some)
        form = self.plan.spec.pools[pool].form
        table, ids = self._receive(table, want, *facts, cache.clock, form=form)
        return table, (ids, some)

    def _views(
        self, staging: np.ndarray, memory: dict[str, jax.Array]
    ) -> dict[str, np.ndarray]:
        """A batch of one pool within host memory, plane to ``[L, K, S, width]``."""
        views, start = {}, 0
        for name, plane in memory.items():
            layers, _, *entry = plane.shape
            shape = (layers, self._batch, *entry)
            stop = start + math.prod(shape) * plane.dtype.itemsize
            views[name] = staging[start:stop].view(plane.dtype).reshape(shape)
            start = stop
        return views


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
