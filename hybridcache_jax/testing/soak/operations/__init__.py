"""Every operation by name, and how often it is drawn in relation to the others.

An operation is a function of the machine and three numbers.  It does one thing to the
library and to the oracle, compares what both say of it, and tells whether there was
anything to do.

``serving``    match, admit, serve, step, publish, renew, release
``sequences``  fork, reorder, rewind, settle
``memory``     evictions, finished or not, and what recovers from them
``tier``       loads from the outer tier, and what goes wrong with them
``rollout``    producers, reuse scopes, shadow runs
``misuse``     what must be refused, and audits
``store``      saves to a store, other processes on it, damage, house-keeping
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hybridcache_jax.testing.soak.operations import (
    memory,
    misuse,
    rollout,
    sequences,
    serving,
    store,
    tier,
)

_DRAWN: tuple[tuple[Callable[[Any, int, int, int], bool], int], ...] = (
    (serving.match, 10),
    (serving.admit, 12),
    (serving.acquire_late, 4),
    (serving.serve, 8),
    (serving.step, 40),
    (serving.publish, 8),
    (serving.release, 10),
    (serving.renew, 2),
    (sequences.fork, 3),
    (sequences.reorder, 3),
    (sequences.rewind, 5),
    (sequences.settle, 3),
    (memory.evict, 3),
    (memory.make_room, 4),
    (memory.shrink, 2),
    (memory.begin_eviction, 2),
    (memory.crash, 2),
    (memory.cut_short, 2),
    (memory.recover, 2),
    (tier.load, 8),
    (tier.load_late, 2),
    (tier.poll, 8),
    (tier.wait, 40),
    (tier.cancel, 1),
    (tier.set_cost, 1),
    (rollout.bump, 2),
    (rollout.set_scope, 4),
    (rollout.end_request, 1),
    (rollout.shadow, 3),
    (misuse.misuse, 2),
    (misuse.inspect, 8),
)

_OF_A_STORE: tuple[tuple[Callable[[Any, int, int, int], bool], int], ...] = (
    (store.save, 12),
    (store.restart, 4),
    (store.spoil, 4),
    (store.collect, 4),
)

OPERATIONS: Mapping[str, Callable[[Any, int, int, int], bool]] = MappingProxyType(
    {operation.__name__: operation for operation, _ in (*_DRAWN, *_OF_A_STORE)}
)
"""By name."""

WEIGHTS: Mapping[str, int] = MappingProxyType(
    {operation.__name__: weight for operation, weight in _DRAWN}
)
"""How often each is drawn in relation to the others, where there is no store."""

STORE_WEIGHTS: Mapping[str, int] = MappingProxyType(
    WEIGHTS | {operation.__name__: weight for operation, weight in _OF_A_STORE}
)
"""How often each is drawn where there is one."""
