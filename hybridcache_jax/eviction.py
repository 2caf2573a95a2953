"""How blocks leave the cache: by age, in two phases, as dead weight, in quarantine.

Eviction has two phases, so that a block can be copied out in between: ``SEALED ->
EVICTING`` takes it out of every reader's sight, ``EVICTING -> FREE`` gives it away.
What lies in between is never overwritten, so :func:`recover` can always go back.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax._indexing import get, put
from hybridcache_jax._typing import AnyArray
from hybridcache_jax.codes import Stage
from hybridcache_jax.forms import RULES
from hybridcache_jax.lifecycle import evictable, free
from hybridcache_jax.spec import PoolSpec
from hybridcache_jax.state import StateTable


def begin(
    table: StateTable, count: jax.Array, protected: AnyArray
) -> tuple[StateTable, jax.Array]:
    """Takes up to ``count`` evictable blocks out of sight: ``SEALED -> EVICTING``.

    The longest unused go first; among equals those at the highest position, so
    that a chain loses its end before its beginning.  Age is the logical clock's.

    Args:
      table: facts of the pool.
      count: ``[]`` int32.
      protected: ``[P]`` bool, blocks that stay whatever their age.

    Returns:
      The table, and ``[P]`` int32 ids of the chosen blocks (``P`` for padding), which
      :func:`finish` takes.
    """
    candidates = evictable(table) & ~protected
    order = jnp.lexsort((-table.first, table.used, ~candidates))
    chosen = candidates[order] & (jnp.arange(order.shape[0]) < count)
    ids = jnp.where(chosen, order, table.stage.shape[0]).astype(jnp.int32)
    stage = put(table.stage, ids, Stage.EVICTING)
    return dataclasses.replace(table, stage=stage), ids


def cheapest(
    pools: Sequence[PoolSpec],
    tables: Sequence[StateTable],
    protected: Sequence[AnyArray],
    sizes: Sequence[int],
    nbytes: int,
) -> list[int]:
    """Blocks of each pool that :func:`begin` should take for so many bytes.

    Over all pools: what is cheapest to get back goes first (the priority of its form),
    then the longest unused, then the highest position.

    Args:
      pools: layouts and forms.
      tables: facts of each pool, as NumPy arrays.
      protected: per pool, ``[P]`` bool, blocks that :func:`begin` will be told to keep.
      sizes: per pool, bytes of a block in memory.
      nbytes: bytes wanted; all that can go if there are fewer.
    """
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    for number, (pool, table, stays) in enumerate(
        zip(pools, tables, protected, strict=True)
    ):
        ids = np.flatnonzero(evictable(table) & ~stays)
        columns[0].append(-np.asarray(table.first)[ids])
        columns[1].append(np.asarray(table.used)[ids])
        columns[2].append(np.full(len(ids), RULES[pool.form].priority))
        columns[3].append(np.full(len(ids), number))
        columns[4].append(np.full(len(ids), sizes[number], np.int64))
    *order, pool_of, each = (np.concatenate(column) for column in columns)
    ranked = np.lexsort(order)
    before = np.cumsum(each[ranked]) - each[ranked]
    chosen = pool_of[ranked[before < nbytes]]
    return np.bincount(chosen, minlength=len(pools)).tolist()


def finish(table: StateTable, ids: jax.Array) -> StateTable:
    """Gives the blocks away: ``EVICTING -> FREE``; other stages stay as they are.

    Args:
      table: facts of the pool.
      ids: ``[K]`` int32 from :func:`begin`.
    """
    evicting = get(table.stage, ids, Stage.FREE) == Stage.EVICTING
    return free(table, jnp.where(evicting, ids, table.stage.shape[0]))


def evict(table: StateTable, count: jax.Array) -> StateTable:
    """Both phases at once, for blocks that need not be copied out."""
    return finish(*begin(table, count, jnp.zeros(table.stage.shape, bool)))


def recover(table: StateTable) -> StateTable:
    """Settles every eviction that was begun and not finished.

    Back: the blocks were not handed out, so what they hold is what was claimed, and
    their epochs are the claimed ones.  Forward for those that became dead weight.
    """
    begun = table.stage == Stage.EVICTING
    back = jnp.where(begun & table.kept, jnp.int32(Stage.SEALED), table.stage)
    gone = begun & ~table.kept
    table = dataclasses.replace(table, stage=back)
    return free(table, jnp.flatnonzero(gone, size=gone.size, fill_value=gone.size))


def forget(table: StateTable, claimed: jax.Array) -> StateTable:
    """Frees dead weight: blocks kept for a prefix that nobody can resume any more.

    A form whose siblings are gone is of no use to any resume point; no claim names
    it, and without this it would stay until its age came.  Rows that still read such
    a block keep it until they let go.

    Args:
      table: facts of the pool.
      claimed: ``[P]`` bool, blocks that a claim of use names.
    """
    dead = table.kept & ~claimed
    gone = dead & (table.stage == Stage.SEALED) & (table.pins == 0)
    table = dataclasses.replace(table, kept=table.kept & ~dead)
    return free(table, jnp.flatnonzero(gone, size=gone.size, fill_value=gone.size))


def abandon(table: StateTable, coming: AnyArray) -> StateTable:
    """Frees blocks that were handed out for a load that is over: ``LOADING -> FREE``.

    Args:
      table: facts of the pool.
      coming: ``[P]`` bool, blocks into which a load still goes on.
    """
    gone = (table.stage == Stage.LOADING) & ~coming
    return free(table, jnp.flatnonzero(gone, size=gone.size, fill_value=gone.size))


def quarantine(table: StateTable, ids: jax.Array) -> StateTable:
    """Takes blocks that failed a check out of every reader's sight, for good.

    Rows that have them pinned, as whoever compared them has, become stale with their
    next step.  A block becomes free when the last of them lets go.

    Args:
      table: facts of the pool.
      ids: ``[K]`` int32; only sealed or loading blocks are taken.
    """
    stage = get(table.stage, ids, Stage.FREE)
    taken = (stage == Stage.SEALED) | (stage == Stage.LOADING)
    ids = jnp.where(taken, ids, table.stage.shape[0])
    return dataclasses.replace(
        table,
        stage=put(table.stage, ids, Stage.QUARANTINED),
        kept=put(table.kept, ids, False),
    )
