"""Block tables of the rows: which column holds which block, and is it all there.

A growing form has one column per block.  A bounded form uses its columns as a ring:
block ``j`` stands in column ``j % C``.  Given how far the row reaches, the block
number of every column follows, so it is never stored.
"""

import dataclasses

import jax
import jax.numpy as jnp

from hybridcache_jax import lifecycle
from hybridcache_jax._indexing import get
from hybridcache_jax._typing import AnyArray, Array
from hybridcache_jax.codes import Status
from hybridcache_jax.forms import required
from hybridcache_jax.state import HybridCache, RowTable, StateTable
from hybridcache_jax.validate import readable


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowView:
    """The rows of one batch, gathered; ``B`` rows of the batch.

    Row numbers outside the table give idle rows that refer to nothing.
    """

    live: jax.Array  # [B] bool
    ticket: jax.Array  # [B] int32
    version: jax.Array  # [B] int32
    provenance: jax.Array  # [B] int32
    length: jax.Array  # [B] int32
    since: jax.Array  # [B, G] int32
    held: jax.Array  # [B, G] int32
    blocks: tuple[jax.Array, ...]  # G times [B, C] int32
    epochs: tuple[jax.Array, ...]  # G times [B, C] int32


def gather(cache: HybridCache, rows: AnyArray) -> RowView:
    """The rows numbered ``rows`` (``[B]`` int32)."""
    table = cache.rows

    def take(array, fill):
        return get(array, rows, fill)

    return RowView(
        live=take(table.live, False),
        ticket=take(table.ticket, -1),
        version=take(table.version, -1),
        provenance=take(table.provenance, 0),
        length=take(table.length, 0),
        since=take(table.since, 0),
        held=take(table.held, 0),
        blocks=tuple(
            take(blocks, count)
            for blocks, count in zip(table.blocks, cache.plan.blocks, strict=True)
        ),
        epochs=tuple(take(epochs, 0) for epochs in table.epochs),
    )


def read(
    cache: HybridCache, row: jax.Array, ticket: jax.Array
) -> tuple[jax.Array, RowView, jax.Array]:
    """One row for the host, and whether its lease still holds.

    Args:
      cache: the cache.
      row: ``[1]`` int32.
      ticket: ``[1]`` int32.

    Returns:
      Status ``[1]``, the row as a batch of one, and its token log ``[1, N]``.
    """
    return check(cache, row, ticket), gather(cache, row), cache.rows.tokens[row]


def block_numbers(extent: Array, block_tokens: int, columns: int) -> Array:
    """The block number that each column stands for.

    Args:
      extent: ``[B]`` int32, tokens covered by the row so far; NumPy or JAX.
      block_tokens: tokens per block.
      columns: ``C``.

    Returns:
      ``[B, C]`` int32; negative where the row has not come that far.
    """
    last = (extent[:, None] - 1) // block_tokens
    xp = extent.__array_namespace__()
    return last - (last - xp.arange(columns, dtype=xp.int32)) % columns


def extent(view: RowView, pool: int) -> jax.Array:
    """``[B]`` tokens covered in a pool: in a replay, held entries lie ahead."""
    return jnp.maximum(view.length, view.held[:, pool])


def check(cache: HybridCache, rows: AnyArray, tickets: AnyArray) -> jax.Array:
    """Whether leases still hold, by the facts of this moment.

    The one check behind acquiring a lease and behind every compiled step: the row is
    live, the ticket is its own, every block that resuming at the row's length requires
    is assigned, and every assigned block still is what the row's reference says.

    Args:
      cache: the cache of this moment.
      rows: ``[B]`` int32.
      tickets: ``[B]`` int32.

    Returns:
      ``[B]`` int32: ``Status.OK`` or ``Status.STALE``.
    """
    view = gather(cache, rows)
    good = view.live & (view.ticket == tickets)
    for index, pool in enumerate(cache.plan.spec.pools):
        size = pool.block_tokens
        reach = extent(view, index)
        lo, hi = required(pool.form, pool.geometry, reach)
        lo = jnp.maximum(lo, view.since[:, index])
        number = block_numbers(reach, size, view.blocks[index].shape[1])
        needed = (number >= 0) & (number * size < hi[:, None])
        needed = needed & ((number + 1) * size > lo[:, None]) & (lo < hi)[:, None]
        # What is referred to may be written next even where nothing of it is read.
        needed = needed | (view.blocks[index] < cache.plan.blocks[index])
        held = readable(
            cache.tables[index],
            view.blocks[index],
            view.epochs[index],
            form=pool.form,
            version=view.version[:, None],
            provenance=view.provenance[:, None],
            first=number * size,
            writable=True,
        )
        good = good & jnp.all(~needed | held, axis=1)
    return jnp.where(good, int(Status.OK), int(Status.STALE))


def let_go(
    table: StateTable, ids: jax.Array, epochs: jax.Array, clock: jax.Array
) -> StateTable:
    """Unpins references, but only those that still mean the same block."""
    size = table.stage.shape[0]
    mine = jnp.where(get(table.epoch, ids, 0) == epochs, ids, size)
    return lifecycle.unpin(table, mine.reshape(-1), clock)


def clear(table: RowTable, row: jax.Array, plan) -> RowTable:
    """Idle rows: nothing referred to, the ticket void.

    Args:
      table: the rows.
      row: ``[]`` or ``[K]`` int32; rows past the last are dropped.
      plan: sizes.
    """
    return dataclasses.replace(
        table,
        live=table.live.at[row].set(False),
        ticket=table.ticket.at[row].add(1),
        provenance=table.provenance.at[row].set(0),
        length=table.length.at[row].set(0),
        known=table.known.at[row].set(0),
        since=table.since.at[row].set(0),
        held=table.held.at[row].set(0),
        blocks=tuple(
            blocks.at[row].set(count)
            for blocks, count in zip(table.blocks, plan.blocks, strict=True)
        ),
        epochs=tuple(epochs.at[row].set(0) for epochs in table.epochs),
    )
