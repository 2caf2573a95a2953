"""Deadlines of leases by the logical clock: an alarm, never a reaper.

A lease that outlives its deadline is in doubt: whoever holds it may be slow or dead.
Its blocks stay pinned, for a step may still read them.  It is reported until it is
renewed, or released by its receipt, which the report carries.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax import rows as rowlib
from hybridcache_jax._indexing import put
from hybridcache_jax._typing import AnyArray
from hybridcache_jax.codes import Status
from hybridcache_jax.lease import Receipt
from hybridcache_jax.state import NEVER, HybridCache


@dataclasses.dataclass(frozen=True)
class Overdue(Receipt):
    """A lease in doubt, and the memory it keeps.

    Attributes:
      row: the row.
      ticket: its ticket.
      late: ticks of the cache's clock since the deadline.
      blocks: per pool, blocks that the row pins; some may be pinned by others too.
      nbytes: bytes of those blocks.
    """

    late: int
    blocks: tuple[int, ...]
    nbytes: int


def deadline_at(cache: HybridCache, ticks: int | None) -> int:
    """The clock at which a lease is due.

    Args:
      cache: the cache of this moment.
      ticks: of its clock, from now on; None for never.

    Raises:
      ValueError: for ticks that are no whole number, below 1, or beyond the clock's
        end.
    """
    if ticks is None:
        return NEVER
    left = NEVER - 1 - int(cache.clock)
    whole = isinstance(ticks, int | np.integer) and not isinstance(ticks, bool)
    if not whole or not 1 <= ticks <= left:
        raise ValueError(
            f"A deadline of {ticks} ticks: expected 1 to {left}, whole, for the "
            f"clock counts to {NEVER}; or give None for the default."
        )
    return int(cache.clock) + int(ticks)


def renew(
    cache: HybridCache, row: AnyArray, ticket: AnyArray, deadline: AnyArray
) -> tuple[HybridCache, jax.Array]:
    """Sets another deadline for a lease that holds.

    Args:
      cache: the cache.
      row: ``[]`` int32.
      ticket: ``[]`` int32.
      deadline: ``[]`` int32, a value of the clock.

    Returns:
      The cache, and ``[]`` int32: ``Status.OK``, or ``Status.STALE``, which changes
      nothing.
    """
    row = jnp.asarray(row)
    status = rowlib.check(cache, row[None], jnp.asarray(ticket)[None])[0]
    mine = jnp.where(status == Status.OK, row, cache.plan.max_sequences)
    due = put(cache.rows.deadline, mine, deadline)
    rows = dataclasses.replace(cache.rows, deadline=due)
    return dataclasses.replace(cache, rows=rows), status


def ticks_late(cache: HybridCache) -> np.ndarray:
    """``[R]`` int32: ticks since the deadline of each row passed.

    At most 0 for a row that nobody has, or whose lease is in time.

    Args:
      cache: the cache of this moment.
    """
    rows = cache.rows
    live, due, clock = jax.device_get((rows.live, rows.deadline, cache.clock))
    return np.where(live, clock - due, 0)


def overdue(cache: HybridCache) -> tuple[Overdue, ...]:
    """Leases whose deadline lies behind the clock, read back to the host.

    Args:
      cache: the cache of this moment.
    """
    late, tickets = ticks_late(cache), np.asarray(cache.rows.ticket)
    return tuple(
        _record(cache, row, int(tickets[row]), int(late[row]))
        for row in np.flatnonzero(late > 0).tolist()
    )


def _record(cache: HybridCache, row: int, ticket: int, late: int) -> Overdue:
    blocks = []
    for ids, epochs, table, size in zip(
        cache.rows.blocks,
        cache.rows.epochs,
        cache.tables,
        cache.plan.blocks,
        strict=True,
    ):
        mine, seen = np.asarray(ids)[row], np.asarray(epochs)[row]
        named = mine < size
        # A reference to a block that changed hands pins nothing.
        current = np.asarray(table.epoch)[mine[named]] == seen[named]
        blocks.append(int(np.count_nonzero(current)))
    nbytes = sum(
        cache.plan.block_bytes(pool) * count for pool, count in enumerate(blocks)
    )
    return Overdue(row, ticket, late, tuple(blocks), nbytes)
