"""Blocks between device memory and payloads, a fixed number in one compiled call.

No more than one such batch is copied at a time, and it is gone before the next one:
what moves takes the memory that the plan sets aside, however many blocks there are.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridcache_jax import eviction, lifecycle
from hybridcache_jax._indexing import get, put
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.forms import Form
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.planes import (
    Memory,
    block_in_memory,
    blocks_inside,
    blocks_outside,
)
from hybridcache_jax.state import HybridCache, StateTable

# Facts that go with a block wherever it lies.
LABELS = ("version", "provenance", "first")


@dataclasses.dataclass(frozen=True)
class Arrival:
    """Blocks of one pool that are ready to be placed.

    Attributes:
      pool: index of the pool.
      ids: where, as :meth:`Transfer.receive` gave them.
      payloads: as many verified blocks; nothing of them is copied yet.
      places: of the tier, from which they come.
    """

    pool: int
    ids: np.ndarray
    payloads: list[Payload]
    places: np.ndarray

    def parts(self, size: int) -> Iterator["Arrival"]:
        """So many blocks after the other; of what was taken no payload is kept here."""
        for start in range(0, len(self.ids), size):
            some, taken = slice(start, start + size), self.payloads[:size]
            del self.payloads[:size]
            yield Arrival(self.pool, self.ids[some], taken, self.places[some])


class Transfer:
    """Compiled copies for the pools of one plan."""

    def __init__(self, plan: CapacityPlan):
        """Compiles nothing yet."""
        self.plan, self._batch = plan, plan.staging_blocks
        self._memory: np.ndarray | None = None
        self._take = jax.jit(self._taken, static_argnums=0)
        self._place = jax.jit(self._put, static_argnums=0, donate_argnums=1)
        self._receive = jax.jit(lifecycle.receive, static_argnames="form")
        self._seal = jax.jit(lifecycle.register)
        self._abandon = jax.jit(eviction.abandon)

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
        return jax.device_get(self._take(pool, cache.pools[pool], *self._padded(ids)))

    def receive(
        self, pool: int, table: StateTable, labels: np.ndarray, clock: jax.Array
    ) -> tuple[StateTable, np.ndarray]:
        """Hands out blocks for what comes: ``FREE -> LOADING``; nobody can read them.

        Args:
          pool: index of the pool.
          table: its facts; there is room.
          labels: ``[len(LABELS), n]`` int32, what the facts say of them.
          clock: ``[]`` int32.

        Returns:
          The facts, and ``[n]`` int32 ids.
        """
        # One call however many there are, and one shape.
        size, count = self.plan.blocks[pool], labels.shape[1]
        facts = np.zeros((len(LABELS), size), np.int32)
        facts[:, :count] = labels
        form: Form = self.plan.spec.pools[pool].form
        table, ids = self._receive(
            table,
            np.arange(size) < count,
            form=form,
            clock=clock,
            **dict(zip(LABELS, facts, strict=True)),
        )
        return table, np.asarray(ids)[:count]

    def seal(self, pool: int, table: StateTable, ids: Sequence[int]) -> StateTable:
        """Blocks that were filled are stored: ``LOADING -> SEALED``.

        Args:
          pool: index of the pool.
          table: its facts.
          ids: of the blocks.
        """
        padded = np.full(self.plan.blocks[pool], self.plan.blocks[pool], np.int32)
        padded[: len(ids)] = ids
        return self._seal(table, padded)

    def abandon(self, table: StateTable, coming: np.ndarray) -> StateTable:
        """See :func:`eviction.abandon`."""
        return self._abandon(table, coming)

    def staging(self) -> np.ndarray:
        """Host memory for one batch of any pool, ``[bytes]`` uint8; always the same.

        The operating system takes longer to find that much than a batch to be copied.
        """
        if self._memory is None:
            largest = max(pool.block_bytes for pool in self.plan.spec.pools)
            self._memory = np.empty(self._batch * largest, np.uint8)
        return self._memory

    def place(
        self,
        memory: Memory,
        arrivals: Sequence[Arrival],
        staging: np.ndarray,
        placed: Callable[[Arrival], None],
    ) -> Memory:
        """Writes blocks into the memory that was handed out for them.

        Args:
          memory: of all pools; it is donated.
          arrivals: what to write.
          staging: from :meth:`staging`; every batch is copied through it.
          placed: called with every part that was written, as soon as it was; what the
            part holds may go then.
        """
        pools = list(memory)
        for arrival in arrivals:
            for part in arrival.parts(self._batch):
                pools[part.pool] = self._placed(part, pools[part.pool], staging)
                placed(part)
        return tuple(pools)

    def warm_up(self, cache: HybridCache) -> HybridCache:
        """Compiles everything by copying no block at all; the memory is donated."""
        pools, tables = list(cache.pools), list(cache.tables)
        for pool, count in enumerate(self.plan.blocks):
            self._take(pool, pools[pool], *self._padded([]))
            nothing = np.zeros((len(LABELS), 0), np.int32)
            table, _ = self.receive(pool, tables[pool], nothing, cache.clock)
            table = self.seal(pool, table, [])
            tables[pool] = self.abandon(table, np.ones(count, bool))
            none = Arrival(pool, np.zeros(0, int), [], np.zeros(0, int))
            pools[pool] = self._placed(none, pools[pool], self.staging())
        return dataclasses.replace(cache, pools=tuple(pools), tables=tuple(tables))

    def _placed(
        self, arrival: Arrival, memory: dict[str, jax.Array], staging: np.ndarray
    ) -> dict[str, jax.Array]:
        """The memory of a pool with one batch of blocks; the old one is donated."""
        spec, views, start = self.plan.spec.pools[arrival.pool], {}, 0
        for plane in spec.entry.planes:
            block = block_in_memory(spec, plane, self.plan.backend, lanes=False)
            shape = (len(spec.layers), self._batch, *block.shape)
            stop = start + math.prod(shape) * block.dtype.itemsize
            views[plane.name] = staging[start:stop].view(block.dtype).reshape(shape)
            start = stop
            for place, payload in enumerate(arrival.payloads):
                views[plane.name][:, place] = payload.planes[plane.name]
        ids = self._padded(arrival.ids)
        placed = self._place(arrival.pool, memory, *ids, views)
        # A call may read host memory where it lies, and after it returned.
        return jax.block_until_ready(placed)

    def _padded(self, ids: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.int32]:
        """Ids of one batch, ``[K]`` int32, and how many of them count."""
        padded = np.zeros(self._batch, np.int32)
        padded[: len(ids)] = ids
        return padded, np.int32(len(ids))

    # Block after block: a gather or a scatter of a whole batch computes where every
    # element goes and reads what it writes over (measured on CPU).  By index and not as
    # slices: of a pool whose blocks are spread over devices, a slice would bring all to
    # each.

    def _taken(
        self, pool: int, memory: dict[str, jax.Array], ids: jax.Array, count: jax.Array
    ) -> dict[str, jax.Array]:
        """Plane to ``[L, K, S, width]``: the first ``count`` blocks, then zeros."""
        spec, backend = self.plan.spec.pools[pool], self.plan.backend

        def outside(blocks):
            return {
                name: blocks_outside(spec, spec.entry[name], each, backend)
                for name, each in blocks.items()
            }

        def read(place, taken):
            block = {
                name: get(plane, _one(ids[place]), 0) for name, plane in memory.items()
            }
            return {
                name: put(taken[name], _one(place), each)
                for name, each in outside(block).items()
            }

        batch = {
            name: jax.ShapeDtypeStruct(
                (plane.shape[0], len(ids), *plane.shape[2:]), plane.dtype
            )
            for name, plane in memory.items()
        }
        nothing = {
            name: jnp.zeros(each.shape, each.dtype)
            for name, each in jax.eval_shape(outside, batch).items()
        }
        return lax.fori_loop(0, count, read, nothing)

    def _put(
        self,
        pool: int,
        memory: dict[str, jax.Array],
        ids: jax.Array,
        count: jax.Array,
        blocks: dict[str, jax.Array],
    ) -> dict[str, jax.Array]:
        """Writes the first ``count`` blocks of a batch, ``[L, K, S, width]`` each."""
        spec = self.plan.spec.pools[pool]

        def write(place, memory):
            after = {}
            for name, plane in memory.items():
                block = get(blocks[name], _one(place), 0)
                block = blocks_inside(spec, spec.entry[name], block, plane)
                after[name] = put(plane, _one(ids[place]), block)
            return after

        return lax.fori_loop(0, count, write, memory)


def _one(number: jax.Array) -> tuple[slice, jax.Array]:
    """The index of one block along ``P``, which stays."""
    return slice(None), number[None]
