"""Faults to inject: what a fleet will meet one day, on purpose and by name.

For your own tests: wrap your serving loop around one of these, and see that every
answer is right or refused.  None of them may lead to a wrong token::

    tier = faults.FaultyTier(plan, budget="1MiB")
    cut = faults.Interrupt(Point.EVICTION_BEGUN)
    prefixes = hc.PrefixCache(plan, tier=tier, at=cut)
    with pytest.raises(faults.InjectedError):
        cache = prefixes.make_room(cache, wanted)
    cache = prefixes.recover(cache)  # the old value is whole

=============================  ====================================================
eviction cut short             ``Interrupt(Point.EVICTION_...)``
publication cut short          ``Interrupt(Point.PUBLISH_CLAIMED)``
load fails, comes late         ``FaultyTier.fail``, ``FaultyTier.delay``
save fails                     ``FaultyTier.fail_stores``
save to a store cut short      ``stores.MemoryStore.cut``, after so many writes
torn save, flipped bit, other  ``FaultyTier.damage`` with ``torn``, ``flipped`` and
layout on the way back         ``other_layout``
block gone behind the index    ``lose``
block handed to someone else   ``hand_over`` (an epoch that would be reused)
index and KV disagree          ``rewrite_version``
flipped bit in device memory   ``flip_bit``
memory donated under a save    ``donate``
request cancelled              ``PrefixCache.release(..., publish=False)`` at any step
=============================  ====================================================
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax import eviction, lifecycle
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.forms import Form
from hybridcache_jax.offload.host_tier import HostTier
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.points import Point
from hybridcache_jax.state import HybridCache, StateTable


class InjectedError(Exception):
    """Raised by :class:`Interrupt`."""


class Interrupt:
    """Ends a call at a point, the first time or a later one; give it as ``at``."""

    def __init__(self, point: Point, *, passes: int = 0):
        """Armed.

        Args:
          point: where to end it.
          passes: how often it goes well before.
        """
        self.point, self.passes = point, passes
        self.seen: list[Point] = []

    def __call__(self, point: Point) -> None:
        """Notes the point; raises ``InjectedError`` once, when its time has come."""
        self.seen.append(point)
        if point is self.point:
            self.passes -= 1
            if self.passes == -1:
                raise InjectedError(point)


class FaultyTier(HostTier):
    """A tier in host memory whose reads and stores can go wrong."""

    def __init__(self, plan: CapacityPlan, *, budget: int | str, known_tokens: int = 0):
        """Without faults: works like a ``HostTier``."""
        super().__init__(plan, budget=budget, known_tokens=known_tokens)
        self._late = 0
        self._error: Exception | None = None
        self._damage: Callable[[Payload], Payload] | None = None
        self._full: Exception | None = None

    def delay(self, reads: int) -> None:
        """The next ``reads`` reads say that the block is still on its way."""
        self._late = reads

    def fail(self, error: Exception | None) -> None:
        """Every read raises ``error``; None to end it."""
        self._error = error

    def fail_stores(self, error: Exception | None) -> None:
        """Every store raises ``error``; None to end it."""
        self._full = error

    def damage(self, how: Callable[[Payload], Payload] | None) -> None:
        """Every read gives ``how(payload)``; None to end it."""
        self._damage = how

    def store(self, pool: int, payload: Payload, **facts) -> int | None:
        """As ``HostTier.store``, with the fault that is armed."""
        if self._full is not None:
            raise self._full
        return super().store(pool, payload, **facts)

    def read(self, pool: int, place: int) -> Payload | None:
        """As ``HostTier.read``, with the fault that is armed."""
        payload = super().read(pool, place)
        if self._error is not None:
            raise self._error
        if self._late > 0:
            self._late -= 1
            return None
        if self._damage is not None and payload is not None:
            return self._damage(payload)
        return payload


def flipped(bit: int) -> Callable[[Payload], Payload]:
    """Damage: one bit of the payload is another, counted over its planes in order."""

    def how(payload: Payload) -> Payload:
        planes = {name: plane.copy() for name, plane in payload.planes.items()}
        at = bit // 8 % payload.nbytes
        for plane in planes.values():
            if at < plane.nbytes:
                plane.view(np.uint8).reshape(-1)[at] ^= 1 << (bit % 8)
                break
            at -= plane.nbytes
        return Payload(planes, payload.digest)

    return how


def torn(payload: Payload) -> Payload:
    """Damage: the second half of every plane was never written."""
    planes = {}
    for name, plane in payload.planes.items():
        flat = plane.copy().reshape(-1)
        flat[flat.size // 2 :] = 0
        planes[name] = flat.reshape(plane.shape)
    return Payload(planes, payload.digest)


def other_layout(dtype: str) -> Callable[[Payload], Payload]:
    """Damage: a payload that is whole, but of another dtype."""

    def how(payload: Payload) -> Payload:
        return Payload.sealed({k: x.astype(dtype) for k, x in payload.planes.items()})

    return how


def lose(cache: HybridCache, pool: int, block: int) -> HybridCache:
    """A stored block that nobody has pinned is evicted; the index is not told.

    Raises:
      ValueError: if the block is not evictable.
    """
    table = cache.tables[pool]
    if not bool(lifecycle.evictable(table)[block]):
        raise ValueError(f"Block {block} of pool {pool} is not stored, or is pinned.")
    others = jnp.arange(table.stage.shape[0]) != block
    gone = eviction.finish(*eviction.begin(table, jnp.int32(1), others))
    return _with(cache, pool, gone)


def hand_over(cache: HybridCache, pool: int, block: int) -> HybridCache:
    """A stored block is evicted and kept by another producer, under the same id."""
    cache = lose(cache, pool, block)
    table = cache.tables[pool]
    # The block that was freed last is handed out first.
    table, _ = lifecycle.receive(
        table,
        jnp.ones(1, bool),
        form=Form(cache.plan.spec.pools[pool].form),
        version=jnp.full(1, jnp.iinfo(jnp.int32).max),
        provenance=jnp.zeros(1, jnp.int32),
        first=jnp.zeros(1, jnp.int32),
        clock=cache.clock,
    )
    return _with(cache, pool, lifecycle.register(table, jnp.array([block], jnp.int32)))


def rewrite_version(
    cache: HybridCache, pool: int, block: int, version: int
) -> HybridCache:
    """The facts say that another producer wrote a block; no claim is told."""
    table = cache.tables[pool]
    other = dataclasses.replace(
        table, version=table.version.at[block].set(jnp.int32(version))
    )
    return _with(cache, pool, other)


def flip_bit(
    cache: HybridCache, pool: int, plane: str, block: int, bit: int
) -> HybridCache:
    """One bit of a block in device memory is another; nothing else notices.

    Args:
      cache: the cache; it stays as it was.
      pool: index of the pool.
      plane: name of the plane.
      block: id of the block.
      bit: which bit of the block's bytes, over all layers of the pool.
    """
    memory = np.array(cache.pools[pool][plane])
    content = np.ascontiguousarray(memory[:, block])
    content.view(np.uint8).reshape(-1)[bit // 8] ^= 1 << (bit % 8)
    memory[:, block] = content
    pools = list(cache.pools)
    pools[pool] = {**cache.pools[pool], plane: jnp.asarray(memory)}
    return dataclasses.replace(cache, pools=tuple(pools))


def donate(cache: HybridCache) -> None:
    """The cache's memory is given away, as a jitted step with a donated cache does."""
    for array in jax.tree.leaves(cache.pools):
        array.delete()


def stored(cache: HybridCache, pool: int) -> list[int]:
    """Ids of the blocks of a pool that are stored and pinned by nobody."""
    return np.flatnonzero(np.asarray(lifecycle.evictable(cache.tables[pool]))).tolist()


def _with(cache: HybridCache, pool: int, table: StateTable) -> HybridCache:
    tables = list(cache.tables)
    tables[pool] = table
    return dataclasses.replace(cache, tables=tuple(tables))
