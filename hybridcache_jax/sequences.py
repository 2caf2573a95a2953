"""Sequences as values: fork one into two, rewind one to where it was before.

Both change facts only: whole blocks are shared and pinned once more.  A block that is
still being written, or that would be written again, is copied to a block of its own;
which ones is part of the result, and :func:`copy_blocks` does it.

A sequence can be rewound to a position exactly if every form can resume there from
what the row still refers to; the check is the one behind every lease and step.
"""

import dataclasses

import jax
import jax.numpy as jnp

from hybridcache_jax import lifecycle
from hybridcache_jax import rows as rowlib
from hybridcache_jax._indexing import get, put
from hybridcache_jax._typing import AnyArray
from hybridcache_jax.codes import Stage, Status
from hybridcache_jax.forms import RULES, Form
from hybridcache_jax.planes import Memory
from hybridcache_jax.state import HybridCache, RowTable, StateTable


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moved:
    """What a transition of sequences did.

    Attributes:
      cache: the cache after it; as it was unless ``status`` is OK.
      status: ``[]`` int32 ``codes.Status``.
      ticket: ``[]`` int32, ticket of the row that came out of it.
      sources: ``[G]`` int32, per pool the block to copy; ``P`` for none.
      targets: ``[G]`` int32, per pool the block to copy it to; ``P`` for none.
    """

    cache: HybridCache
    status: jax.Array
    ticket: jax.Array
    sources: jax.Array
    targets: jax.Array


def fork(cache: HybridCache, row: AnyArray, ticket: AnyArray, child: AnyArray) -> Moved:
    """A second row that stands where the first does.

    Args:
      cache: the cache.
      row: ``[]`` int32, the row to fork.
      ticket: ``[]`` int32, its ticket.
      child: ``[]`` int32, an idle row.

    Returns:
      Status OK; STALE for a lease that does not hold; BAD_ROW for a child that is
      taken; NO_ROOM if a pool lacks the free block to copy what is being written.
    """
    status = rowlib.check(cache, row[None], ticket[None])[0]
    clock = cache.clock + 1
    own = cache.rows
    blocks, epochs, copies, tables = [], [], [], []
    granted = jnp.bool_(True)
    for index, pool in enumerate(cache.plan.spec.pools):
        table = cache.tables[index]
        ids, seen = own.blocks[index][row], own.epochs[index][row]
        nothing, size = cache.plan.blocks[index], pool.block_tokens
        unfinished = get(table.stage, ids, Stage.FREE) == Stage.WRITING
        shared = jnp.where(unfinished, nothing, ids)
        table = lifecycle.pin(table, shared, clock)
        # A state that steps ran past stays unfinished for good: only the block of the
        # last token goes on being written.
        length = own.length[row]
        reach = jnp.maximum(length, own.held[row, index])
        number = rowlib.block_numbers(reach[None], size, ids.shape[0])[0]
        current = unfinished & (number == (length - 1) // size)
        copied = _copied(pool.form, table, table, ids, current, clock)
        granted = granted & copied.granted
        tables.append(copied.table)
        blocks.append(jnp.where(current, copied.target, shared))
        epochs.append(jnp.where(current, copied.epoch, jnp.where(unfinished, 0, seen)))
        copies.append(copied)
    new = own.ticket[child] + 1
    changes = {
        name: getattr(own, name).at[child].set(getattr(own, name)[row])
        for name in ("live", "version", "length", "since", "held", "known", "tokens")
    }
    rows = dataclasses.replace(
        own,
        **changes,
        ticket=own.ticket.at[child].set(new),
        blocks=_set(own.blocks, child, blocks),
        epochs=_set(own.epochs, child, epochs),
    )
    status = jnp.where((status == Status.OK) & ~granted, int(Status.NO_ROOM), status)
    status = jnp.where(own.live[child], int(Status.BAD_ROW), status)
    return _moved(cache, tables, rows, clock, status, new, copies)


def rewind(
    cache: HybridCache, row: AnyArray, ticket: AnyArray, length: AnyArray
) -> Moved:
    """The row as it stood at an earlier length; what it ran since is let go.

    Args:
      cache: the cache.
      row: ``[]`` int32.
      ticket: ``[]`` int32; the row gets a new one.
      length: ``[]`` int32, tokens that stay.

    Returns:
      Status OK; STALE for a lease that does not hold; TOO_LONG for a length beyond
      the row's own or below 0; NO_ROOM if a pool lacks the free block to copy what
      will be written again; NOT_HELD if a form no longer holds what resuming at
      ``length`` requires.
    """
    own, clock = cache.rows, cache.clock + 1
    before = own.length[row]
    lease = rowlib.check(cache, row[None], ticket[None])[0]
    rows, dropped = _cut(cache, row, length)
    as_if = dataclasses.replace(cache, rows=rows)
    held = rowlib.check(as_if, row[None], ticket[None])[0] == Status.OK
    held = held & _replay_is_over(own, row, length)
    tables, blocks, epochs, copies = [], [], [], []
    granted = jnp.bool_(True)
    for index, pool in enumerate(cache.plan.spec.pools):
        table, ids = cache.tables[index], rows.blocks[index][row]
        seen, size = rows.epochs[index][row], pool.block_tokens
        if RULES[pool.form].exact:
            held = held & _checkpoint(table, ids, length, before, size)
        table = rowlib.let_go(table, dropped[index], own.epochs[index][row], clock)
        number = rowlib.block_numbers(length[None], size, ids.shape[0])[0]
        # The block that the next token is written to, if it was finished.  Let go of
        # first: where nobody else has it, it is handed out again, and nothing moves.
        again = (number == length // size) & (length % size != 0)
        again = again & (get(table.stage, ids, Stage.FREE) == Stage.SEALED)
        old = jnp.where(again, ids, cache.plan.blocks[index])
        after = rowlib.let_go(table, old, seen, clock)
        copied = _copied(pool.form, after, table, ids, again, clock)
        granted = granted & copied.granted
        tables.append(copied.table)
        blocks.append(jnp.where(again, copied.target, ids))
        epochs.append(jnp.where(again, copied.epoch, seen))
        copies.append(copied)
    new = own.ticket[row] + 1
    rows = dataclasses.replace(
        rows,
        ticket=own.ticket.at[row].set(new),
        blocks=_set(rows.blocks, row, blocks),
        epochs=_set(rows.epochs, row, epochs),
    )
    status = jnp.where(held, int(Status.OK), int(Status.NOT_HELD))
    status = jnp.where(held & ~granted, int(Status.NO_ROOM), status)
    outside = (length < 0) | (length > before)
    status = jnp.where(outside, int(Status.TOO_LONG), status)
    status = jnp.where(lease != Status.OK, lease, status)
    return _moved(cache, tables, rows, clock, status, new, copies)


def copy_blocks(pools: Memory, sources: jax.Array, targets: jax.Array) -> Memory:
    """Copies one block of each pool, over all its layers.

    Args:
      pools: memory; donate it, or it is copied whole.
      sources: ``[G]`` int32.
      targets: ``[G]`` int32; ids outside a pool copy nothing.
    """
    return tuple(
        {
            name: put(plane, (slice(None), target), plane[:, source])
            for name, plane in planes.items()
        }
        for planes, source, target in zip(pools, sources, targets, strict=True)
    )


@dataclasses.dataclass(frozen=True)
class _Copied:
    """A block of its own for at most one of a row's references."""

    table: StateTable
    granted: jax.Array  # [] bool, nothing wanted or got
    source: jax.Array  # [] int32
    target: jax.Array  # [] int32
    epoch: jax.Array  # [] int32


def _copied(
    form: Form,
    table: StateTable,
    before: StateTable,
    ids: jax.Array,
    wanted: jax.Array,
    clock: jax.Array,
) -> _Copied:
    """Hands out a block like the wanted one of ``ids`` (``[C]``), to be written.

    ``before`` says what that one holds; in ``table`` it may be free by now.
    """
    size = table.stage.shape[0]
    want = jnp.any(wanted)
    source = jnp.where(want, ids[jnp.argmax(wanted)], size)
    after, target = lifecycle.allocate(
        table,
        want[None],
        form=form,
        version=get(before.version, source, 0)[None],
        first=get(before.first, source, 0)[None],
        clock=clock,
    )
    target = target[0]
    granted = ~want | (target < size)
    return _Copied(after, granted, source, target, get(after.epoch, target, 0))


def _cut(
    cache: HybridCache, row: AnyArray, length: AnyArray
) -> tuple[RowTable, list[jax.Array]]:
    """The rows with one of them cut, and per pool the ids (``[C]``) it let go."""
    own = cache.rows
    blocks, epochs, dropped = [], [], []
    for index, pool in enumerate(cache.plan.spec.pools):
        ids, nothing = own.blocks[index][row], cache.plan.blocks[index]
        reach = jnp.maximum(own.length[row], own.held[row, index])
        number = rowlib.block_numbers(reach[None], pool.block_tokens, ids.shape[0])[0]
        gone = number * pool.block_tokens >= length
        blocks.append(jnp.where(gone, nothing, ids))
        epochs.append(jnp.where(gone, 0, own.epochs[index][row]))
        dropped.append(jnp.where(gone, ids, nothing))
    return dataclasses.replace(
        own,
        length=own.length.at[row].set(length),
        known=own.known.at[row].min(length),
        held=own.held.at[row].min(length),
        since=own.since.at[row].set(jnp.where(length == 0, 0, own.since[row])),
        blocks=_set(own.blocks, row, blocks),
        epochs=_set(own.epochs, row, epochs),
    ), dropped


def _replay_is_over(rows: RowTable, row: AnyArray, length: AnyArray) -> jax.Array:
    """What a replay rebuilt is exact from its resume point on, and only there."""
    rebuilt = jnp.any(rows.since[row] > 0)
    return ~rebuilt | (length == 0) | (length >= rows.known[row])


def _checkpoint(
    table: StateTable, ids: jax.Array, length: AnyArray, before: jax.Array, size: int
) -> jax.Array:
    """Whether a state folded over the prefix is there for exactly ``length``."""
    number = rowlib.block_numbers(length[None], size, ids.shape[0])[0]
    last = number == length // size - 1
    sealed = get(table.stage, ids, Stage.FREE) == Stage.SEALED
    taken = (length % size == 0) & jnp.any(last & sealed)
    return (length == before) | (length == 0) | taken


def _set(arrays: tuple[jax.Array, ...], row: AnyArray, values) -> tuple:
    return tuple(
        array.at[row].set(value) for array, value in zip(arrays, values, strict=True)
    )


def _moved(cache, tables, rows, clock, status, ticket, copies: list[_Copied]) -> Moved:
    ok = status == Status.OK
    after = dataclasses.replace(cache, tables=tuple(tables), rows=rows, clock=clock)
    targets = [
        jnp.where(ok, copied.target, count)
        for copied, count in zip(copies, cache.plan.blocks, strict=True)
    ]
    return Moved(
        cache=jax.tree.map(lambda new, old: jnp.where(ok, new, old), after, cache),
        status=status,
        ticket=ticket,
        sources=jnp.stack([copied.source for copied in copies]),
        targets=jnp.stack(targets),
    )
