"""What retention policies cost: bytes that are kept, tokens that are run again.

A hit stands at a grid point up to which the history is stored.  It is resumed at the
deepest point that keeps every bounded form, or replayed from where ``replay`` says;
the latest of those starts is what it costs.  No checkpoint is missed: each is
taken wherever it is kept.

Where no form grows with the history, it is stored up to the last point that keeps one:
no hit stands behind that, and where none does there is no hit at all.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hybridcache_jax.forms import RULES, Form
from hybridcache_jax.replay import (
    bases,
    companions,
    last_of,
    latest_start,
    replay_start,
    usable,
)
from hybridcache_jax.retention import Retention, kept_at, point_blocks, stored_policy
from hybridcache_jax.spec import CacheSpec

# Enough sequences that what one of them keeps is not rounded away.
_MANY = 1000


@dataclasses.dataclass(frozen=True)
class PoolCost:
    """Memory of one bounded pool.

    Attributes:
      pool: its name.
      policy: at which resume points it is stored: where those beside it are kept.
      point_bytes: most bytes that one retained point holds.
      bytes_per_1000_tokens: bytes that 1,000 stored tokens keep, neighbouring points
        sharing blocks.
    """

    pool: str
    policy: Retention
    point_bytes: int
    bytes_per_1000_tokens: float


@dataclasses.dataclass(frozen=True)
class RetentionCost:
    """Memory per bounded pool, and tokens run again on a hit.

    Attributes:
      pools: in the order of the spec.
      length: tokens of the stored sequence that was looked at; under ``ends`` both its
        prompt and its output end there.
      deepest_hit: its last grid point up to which it is stored; 0 if it never hits.
      most_replayed: tokens run again, at worst over all grid points up to that one.
      mean_replayed: the same on average, every grid point alike.
      end_replayed: tokens run again by a hit at that last one.
    """

    pools: tuple[PoolCost, ...]
    length: int
    deepest_hit: int
    most_replayed: int
    mean_replayed: float
    end_replayed: int


def retention_cost(
    spec: CacheSpec,
    policy: Callable[[Form], Retention],
    length: int,
    block_bytes: Sequence[int],
) -> RetentionCost:
    """What policies cost in memory and in replayed tokens.

    Args:
      spec: what is cached.
      policy: the policy of each bounded form.
      length: tokens of a stored sequence, prompt and output.
      block_bytes: of each pool, as its blocks lie in memory.
    """
    grid = spec.grid
    points = np.arange(grid, length + 1, grid, dtype=np.int32)
    kept = {
        number: kept_at(
            policy(pool.form), pool, points, grid=grid, prompt=length, end=length
        )
        for number, pool in enumerate(spec.pools)
        if not RULES[pool.form].grows
    }
    states = [number for number in kept if RULES[spec.pools[number].form].exact]

    def all_keep(pools: Sequence[int]) -> np.ndarray:
        return np.all([np.ones(len(points), bool), *(kept[n] for n in pools)], axis=0)

    if len(kept) == len(spec.pools):
        # As in publication: behind the last point of use nothing is claimed.
        of_use = [points[all_keep(companions(spec, number))] for number in kept]
        points = points[points <= max(each.max(initial=0) for each in of_use)]
        kept = {number: there[: len(points)] for number, there in kept.items()}
    resumed = np.maximum.accumulate(np.where(all_keep(list(kept)), points, 0))
    start = np.maximum(resumed, replay_start(spec, points, points[all_keep(states)]))
    for base in bases(spec)[1:]:
        there = all_keep([*base, *states])
        if states:
            there &= usable(spec, points, base)
        latest = latest_start(spec, points, base)
        start = np.maximum(start, last_of(points, there, latest))
    again = points - start
    tokens = _MANY * (length + -length % grid)
    costs = []
    for number in kept:
        pool, size = spec.pools[number], block_bytes[number]
        rule = stored_policy(spec, policy, pool.form)
        blocks = rule.stored_blocks(pool, tokens, grid=grid, length=length)
        one = point_blocks(pool, grid) * size
        costs.append(PoolCost(pool.name, rule, one, 1000 * blocks * size / tokens))
    return RetentionCost(
        pools=tuple(costs),
        length=length,
        deepest_hit=int(points[-1]) if len(points) else 0,
        most_replayed=int(again.max(initial=0)),
        mean_replayed=float(again.mean()) if len(again) else 0.0,
        end_replayed=int(again[-1]) if len(again) else 0,
    )
