"""The arrays of a snapshot: a cache as named leaves and back, and what proves a leaf.

Names are those of the fields, joined by ``/``, such as ``tables/full_kv.0/epoch``.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from blake3 import blake3

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.saved_claims import SavedClaims
from hybridcache_jax.state import HybridCache, RowTable, StateTable, init

Leaves = dict[str, Any]
"""Arrays, or what they look like, by name."""

Record = dict[str, Any]
"""``dtype``, ``shape`` and ``blake3`` of a leaf, as JSON has them."""

_PER_POOL = ("blocks", "epochs")
_CLAIMED = ("key", "parent", "length", "tokens", "content_keys")


def cache_leaves(cache: HybridCache) -> Leaves:
    """Every array of a cache by its name; ``cache`` may be one of abstract arrays."""
    names = [pool.name for pool in cache.plan.spec.pools]
    rows = _fields(cache.rows)
    return flat(
        {
            "pools": dict(zip(names, cache.pools, strict=True)),
            "tables": dict(zip(names, map(_fields, cache.tables), strict=True)),
            "rows": rows
            | {name: dict(zip(names, rows[name], strict=True)) for name in _PER_POOL},
            "clock": cache.clock,
            "stamp": cache.stamp,
        }
    )


def cache_of(plan: CapacityPlan, leaves: Mapping[str, Any]) -> HybridCache:
    """The inverse of :func:`cache_leaves`."""
    tree, names = nested(leaves), [pool.name for pool in plan.spec.pools]
    per_pool = {
        name: tuple(tree["rows"][name][pool] for pool in names) for name in _PER_POOL
    }
    return HybridCache(
        plan=plan,
        pools=tuple(tree["pools"][name] for name in names),
        tables=tuple(StateTable(**tree["tables"][name]) for name in names),
        rows=RowTable(**(tree["rows"] | per_pool)),
        clock=tree["clock"],
        stamp=tree["stamp"],
    )


def expected(plan: CapacityPlan) -> Leaves:
    """What the leaves of a cache of a plan look like; nothing is allocated."""
    return cache_leaves(jax.eval_shape(lambda: init(plan)))


def claim_leaves(plan: CapacityPlan, claims: SavedClaims) -> Leaves:
    """Every array of claims by its name."""
    names = [pool.name for pool in plan.spec.pools]
    return flat(
        {name: getattr(claims, name) for name in _CLAIMED}
        | {
            name: dict(zip(names, getattr(claims, name), strict=True))
            for name in _PER_POOL
        }
    )


def claim_arrays(plan: CapacityPlan, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`claim_leaves`: arguments of ``SavedClaims``."""
    tree, names = nested(leaves), [pool.name for pool in plan.spec.pools]
    per_pool = {name: tuple(tree[name][pool] for pool in names) for name in _PER_POOL}
    return {name: tree[name] for name in _CLAIMED} | per_pool


def flat(tree: Mapping[str, Any], before: str = "") -> Leaves:
    """Leaves of nested dicts by their joined names."""
    leaves: Leaves = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{before}{name}/")
        else:
            leaves[before + name] = value
    return leaves


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flat`."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *folders, name = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return tree


def record(array: np.ndarray) -> Record:
    """What a leaf must be when it is read again."""
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "blake3": digest(array),
    }


def digest(array: np.ndarray) -> str:
    """BLAKE3 of an array's bytes, in hex."""
    whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return blake3(whole.data, max_threads=blake3.AUTO).hexdigest()


def layout_difference(found: Any, said: Record) -> str:
    """How the dtype or shape of a leaf differs from its record; empty if it does not.

    Args:
      found: anything with ``dtype`` and ``shape``.
      said: its record.
    """
    for name, mine, right in (
        ("dtype", str(found.dtype), said["dtype"]),
        ("shape", list(found.shape), said["shape"]),
    ):
        if mine != right:
            return f"its {name} is {mine}, expected {right}"
    return ""


def _fields(table: Any) -> dict[str, Any]:
    return {
        field.name: getattr(table, field.name) for field in dataclasses.fields(table)
    }
