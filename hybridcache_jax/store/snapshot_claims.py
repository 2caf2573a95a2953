"""What the claims of a snapshot may be: no more than an index holds, and trees.

Digests say that claims are what somebody wrote, not that it was this library.
"""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.claims import NOTHING
from hybridcache_jax.saved_claims import SavedClaims
from hybridcache_jax.store.snapshot_arrays import (
    Leaves,
    Record,
    claim_leaves,
    layout_difference,
)
from hybridcache_jax.store.snapshot_checks import check_names, refuse
from hybridcache_jax.store.snapshot_manifest import SnapshotError


def check_claim_sizes(plan: CapacityPlan, said: Mapping[str, Record]) -> None:
    """Refuses claims that no index of a plan holds, before memory is asked for.

    Args:
      plan: of the cache.
      said: records of the leaves by their names.

    Raises:
      SnapshotError: for other names, dtypes or shapes than those of so many edges and
        tokens, or for more tokens than ``plan.index_tokens``.
    """
    check_names("prefixes", _layout(plan, 0, 0), said)
    edges, tokens = (_count(said[name]) for name in ("key", "tokens"))
    most, grid = plan.index_tokens, plan.spec.grid
    if not 0 <= tokens <= most or tokens % grid or not 0 <= edges <= tokens // grid:
        raise SnapshotError(
            f"it claims {tokens} tokens on {edges} edges; an index of this plan has at "
            f"most {most} tokens, and on each edge at least {grid}"
        )
    for name, leaf in _layout(plan, edges, tokens).items():
        refuse("prefixes", name, layout_difference(leaf, said[name]))


def check_claims(
    plan: CapacityPlan,
    keys: int,
    contents: Collection[int],
    found: Mapping[str, np.ndarray],
) -> None:
    """Refuses claims that are no trees of prefixes.

    Args:
      plan: of the cache.
      keys: how many keys there are.
      contents: content keys that stand for something.
      found: the leaves by their names; sizes as :func:`check_claim_sizes` says.

    Raises:
      SnapshotError: naming the leaf.
    """
    key, parent, length = (found[name] for name in ("key", "parent", "length"))
    outside = (key < 0) | (key >= keys)
    refuse("prefixes", "key", "there is no such key" * bool(outside.any()))
    later = (parent < -1) | (parent >= np.arange(len(parent)))
    refuse("prefixes", "parent", "it is no earlier edge" * bool(later.any()))
    other = (parent >= 0) & (key[parent] != key)
    refuse("prefixes", "parent", "it is another key's" * bool(other.any()))
    none = (length < 1) | (length % plan.spec.grid != 0)
    refuse("prefixes", "length", "it is no whole grid units" * bool(none.any()))
    if int(length.sum(dtype=np.int64)) != len(found["tokens"]):
        refuse("prefixes", "length", "they are not those of the tokens")
    ends: list[int] = []
    for above, own in zip(parent.tolist(), length.tolist(), strict=True):
        ends.append(own + (ends[above] if above >= 0 else 0))
    if max(ends, default=0) > plan.max_length:
        refuse("prefixes", "length", "a prefix is longer than any sequence")
    named = found["content_keys"]
    if not set(np.unique(named[named < 0]).tolist()) <= set(contents):
        refuse("prefixes", "content_keys", "one stands for nothing")
    for pool, count in zip(plan.spec.pools, plan.blocks, strict=True):
        ids = found[f"blocks/{pool.name}"]
        if ((ids < 0) | ((ids >= count) & (ids != NOTHING))).any():
            refuse("prefixes", f"blocks/{pool.name}", "there is no such block")


def _layout(plan: CapacityPlan, edges: int, tokens: int) -> Leaves:
    """What claims look like; nothing is allocated."""

    def numbers(count: int) -> Any:
        return jax.ShapeDtypeStruct((count,), np.int32)

    per_pool = tuple(numbers(tokens // p.block_tokens) for p in plan.spec.pools)
    return claim_leaves(
        plan,
        SavedClaims(
            keys=(),
            versions={},
            contents={},
            key=numbers(edges),
            parent=numbers(edges),
            length=numbers(edges),
            tokens=numbers(tokens),
            content_keys=numbers(tokens),
            blocks=per_pool,
            epochs=per_pool,
            stamp=0,
        ),
    )


def _count(said: Record) -> int:
    """Of the numbers in a leaf; -1 if it has none."""
    shape = said["shape"]
    whole = isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int
    return shape[0] if whole else -1
