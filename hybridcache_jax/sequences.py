"""Sequences as values: fork and drop them, rewind them to where they were before.

These change facts only: whole blocks are shared and pinned once more.  A block that is
still being written, or that would be written again, is copied to a block of its own;
which ones is part of the result, and :func:`copy_blocks` does it.

A sequence can be rewound to a position exactly if every form can resume there from
what the row still refers to; the check is the one behind every lease and step.

Each takes a batch of ``K`` rows and serves all of them or none.  A place whose row is
``R``, one past the last, is padding, so that one program serves batches of any size.
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
from hybridcache_jax.state import HybridCache, RowTable, StateTable, tick


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moved:
    """What a transition of sequences did; ``N`` rows came out of it.

    Attributes:
      cache: the cache after it; as it was if any status is neither OK nor IDLE.
      status: ``[K]`` int32 ``codes.Status`` of each row that went in.
      tickets: ``[N]`` int32, tickets of the rows that came out.
      sources: ``[N, G]`` int32, per row and pool the block to copy; ``P`` for none.
        All of them stay assigned, so that no copy writes to what another one reads.
      targets: ``[N, G]`` int32, the block to copy it to; ``P`` for none.
    """

    cache: HybridCache
    status: jax.Array
    tickets: jax.Array
    sources: jax.Array
    targets: jax.Array


def branch(
    cache: HybridCache,
    rows: AnyArray,
    tickets: AnyArray,
    dropped: AnyArray,
    parents: AnyArray,
    children: AnyArray,
) -> Moved:
    """Lets go of some rows, and sets new ones where others stand.

    Args:
      cache: the cache.
      rows: ``[K]`` int32, no row twice.
      tickets: ``[K]`` int32, their tickets.
      dropped: ``[K]`` bool, rows to let go of; first, so that their blocks serve the
        others.
      parents: ``[N]`` int32, for each new row the place of its parent in ``rows``,
        one that is not dropped; ``K`` for padding.
      children: ``[N]`` int32, rows that are idle or dropped, none twice; ``R`` for
        padding.

    Returns:
      Status OK, or IDLE for padding; STALE for a lease that does not hold; BAD_ROW
      for a parent whose child is taken; NO_ROOM for one with a child for which a pool
      lacks the free block to copy what is being written.
    """
    own, clock, idle = cache.rows, tick(cache.clock), cache.rows.live.shape[0]
    view = rowlib.gather(cache, rows)
    mine = view.live & (view.ticket == tickets)
    status = rowlib.check(cache, rows, tickets)
    status = jnp.where(dropped & mine, int(Status.OK), status)
    status = jnp.where(rows == idle, int(Status.IDLE), status)
    kept = rowlib.clear(own, jnp.where(dropped, rows, idle), cache.plan)
    taken = get(kept.live, children, False)
    status = _refuse(status, parents, taken, Status.BAD_ROW)
    parent = get(jnp.asarray(rows), parents, idle)
    start = rowlib.gather(cache, parent)
    length, nothing = start.length, cache.plan.blocks
    tables, blocks, epochs, copies = [], [], [], []
    for index, pool in enumerate(cache.plan.spec.pools):
        gone = jnp.where(dropped[:, None], view.blocks[index], nothing[index])
        table = rowlib.let_go(cache.tables[index], gone, view.epochs[index], clock)
        ids, seen = start.blocks[index], start.epochs[index]
        unfinished = get(table.stage, ids, Stage.FREE) == Stage.WRITING
        shared = jnp.where(unfinished, nothing[index], ids)
        table = lifecycle.pin(table, shared, clock)
        # A state that steps ran past stays unfinished for good: only the block of the
        # last token goes on being written.
        number = rowlib.block_numbers(
            rowlib.extent(start, index), pool.block_tokens, ids.shape[1]
        )
        current = (number == ((length - 1) // pool.block_tokens)[:, None]) & unfinished
        copied = _copied(
            table,
            pool.form,
            _the_one(ids, current, nothing[index]),
            start.provenance,
            clock,
        )
        ids = jnp.where(current, copied.target[:, None], shared)
        seen = jnp.where(unfinished, 0, seen)
        seen = jnp.where(current, copied.epoch[:, None], seen)
        tables.append(copied.table)
        blocks.append(put(kept.blocks[index], children, ids))
        epochs.append(put(kept.epochs[index], children, seen))
        copies.append(copied)
    new = get(kept.ticket, children, 0) + 1
    same = ("live", "version", "provenance", "length", "since", "held", "known")
    changes = {
        name: put(getattr(kept, name), children, get(getattr(own, name), parent, 0))
        for name in (*same, "deadline", "tokens")
    }
    after = dataclasses.replace(
        kept,
        **changes,
        ticket=put(kept.ticket, children, new),
        blocks=tuple(blocks),
        epochs=tuple(epochs),
    )
    status = _refuse(status, parents, ~_granted(copies), Status.NO_ROOM)
    return _moved(cache, tables, after, clock, status, new, copies)


def rewind(
    cache: HybridCache,
    rows: AnyArray,
    tickets: AnyArray,
    lengths: AnyArray,
    moves: AnyArray,
) -> Moved:
    """The rows as they stood at earlier lengths; what they ran since is let go.

    What all of them let go of serves the copies of each.

    Args:
      cache: the cache.
      rows: ``[K]`` int32, no row twice.
      tickets: ``[K]`` int32; a row that moves gets a new one.
      lengths: ``[K]`` int32, tokens that stay.
      moves: ``[K]`` bool, rows to rewind; of others only the lease is checked.

    Returns:
      Status OK, or IDLE for padding; STALE for a lease that does not hold; TOO_LONG
      for a length beyond the row's own or below 0; NO_ROOM if a pool lacks the free
      block to copy what will be written again; NOT_HELD if a form no longer holds
      what resuming at the length requires.
    """
    own, clock, idle = cache.rows, tick(cache.clock), cache.rows.live.shape[0]
    before = get(own.length, rows, 0)
    moving = jnp.where(moves, rows, idle)
    lease = rowlib.check(cache, rows, tickets)
    cut, dropped = _cut(cache, moving, lengths)
    held = rowlib.check(dataclasses.replace(cache, rows=cut), rows, tickets)
    held = (held == Status.OK) & _replay_is_over(own, rows, lengths)
    tables, blocks, epochs, copies = [], [], [], []
    for index, pool in enumerate(cache.plan.spec.pools):
        table, nothing = cache.tables[index], cache.plan.blocks[index]
        ids = get(cut.blocks[index], moving, nothing)
        seen = get(cut.epochs[index], moving, 0)
        number = rowlib.block_numbers(lengths, pool.block_tokens, ids.shape[1])
        last, inside = lengths // pool.block_tokens, lengths % pool.block_tokens != 0
        sealed = get(table.stage, ids, Stage.FREE) == Stage.SEALED
        if RULES[pool.form].exact:
            # Of a state folded over the prefix, the one taken at exactly that length.
            taken = jnp.any((number == last[:, None] - 1) & sealed, axis=1)
            stands = (lengths == 0) | (lengths == before)
            held = held & (stands | (taken & ~inside))
        table = rowlib.let_go(
            table, dropped[index], get(own.epochs[index], moving, 0), clock
        )
        # The block that the next token is written to, if it was finished.
        again = (number == last[:, None]) & inside[:, None] & sealed
        copied = _written_again(
            table,
            pool.form,
            _the_one(ids, again, nothing),
            get(own.provenance, moving, 0),
            clock,
        )
        ids = jnp.where(again, copied.target[:, None], ids)
        seen = jnp.where(again, copied.epoch[:, None], seen)
        tables.append(copied.table)
        blocks.append(put(cut.blocks[index], moving, ids))
        epochs.append(put(cut.epochs[index], moving, seen))
        copies.append(copied)
    new = get(own.ticket, rows, 0) + moves
    after = dataclasses.replace(
        cut,
        ticket=put(own.ticket, moving, new),
        blocks=tuple(blocks),
        epochs=tuple(epochs),
    )
    status = jnp.full(rows.shape, int(Status.OK), jnp.int32)
    for wrong, code in (
        (~_granted(copies), Status.NO_ROOM),
        (moves & ~held, Status.NOT_HELD),
        (moves & ((lengths < 0) | (lengths > before)), Status.TOO_LONG),
        (lease != Status.OK, Status.STALE),
        (rows == idle, Status.IDLE),
    ):
        status = jnp.where(wrong, int(code), status)
    return _moved(cache, tables, after, clock, status, new, copies)


def copy_blocks(pools: Memory, sources: AnyArray, targets: AnyArray) -> Memory:
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
    """A block of its own for at most one reference of each row."""

    table: StateTable
    wanted: jax.Array  # [N] bool
    source: jax.Array  # [N] int32, P where nothing is to be copied
    target: jax.Array  # [N] int32, P where nothing was handed out
    epoch: jax.Array  # [N] int32


def _copied(
    table: StateTable,
    form: Form,
    ids: jax.Array,
    provenance: jax.Array,
    clock: jax.Array,
) -> _Copied:
    """Hands out a block like each of ``ids``, all ``[N]``, for its row to write."""
    wanted = ids < table.stage.shape[0]
    after, target = lifecycle.allocate(
        table,
        wanted,
        form=form,
        version=get(table.version, ids, 0),
        provenance=provenance,
        first=get(table.first, ids, 0),
        clock=clock,
    )
    return _Copied(after, wanted, ids, target, get(after.epoch, target, 0))


def _written_again(
    table: StateTable,
    form: Form,
    ids: jax.Array,
    provenance: jax.Array,
    clock: jax.Array,
) -> _Copied:
    """Gives each row a block to write instead of the finished one in ``ids`` (``[N]``).

    A block that nobody outside the batch holds is the first row's that names it, and
    nothing moves; all others get copies.
    """
    size, place = table.stage.shape[0], jnp.arange(ids.shape[0])
    same = ids[:, None] == ids[None, :]
    alone = get(table.pins, ids, 0) == jnp.sum(same, axis=1)
    alone = alone & ~get(table.kept, ids, True)
    first = ~jnp.any(same & (place[:, None] > place[None, :]), axis=1)
    stays = alone & first
    others = jnp.where(stays, size, ids)
    table = lifecycle.unpin(table, others, clock)
    again = jnp.where(stays, ids, size)
    table = lifecycle.reopen(table, again, provenance, clock)
    copied = _copied(table, form, others, provenance, clock)
    target = jnp.where(stays, ids, copied.target)
    epoch = get(copied.table.epoch, target, 0)
    return dataclasses.replace(copied, target=target, epoch=epoch)


def _the_one(ids: jax.Array, which: jax.Array, nothing: int) -> jax.Array:
    """``[N]``: of each row of ``ids`` (``[N, C]``) the marked one; ``P`` for none."""
    place = jnp.argmax(which, axis=1)[:, None]
    one = jnp.take_along_axis(ids, place, axis=1)[:, 0]
    return jnp.where(jnp.any(which, axis=1), one, nothing)


def _cut(
    cache: HybridCache, rows: jax.Array, lengths: AnyArray
) -> tuple[RowTable, list[jax.Array]]:
    """The rows, some of them cut, and per pool the ids (``[K, C]``) they let go of."""
    own, view = cache.rows, rowlib.gather(cache, rows)
    blocks, epochs, dropped = [], [], []
    for index, pool in enumerate(cache.plan.spec.pools):
        ids, nothing = view.blocks[index], cache.plan.blocks[index]
        number = rowlib.block_numbers(
            rowlib.extent(view, index), pool.block_tokens, ids.shape[1]
        )
        gone = number * pool.block_tokens >= lengths[:, None]
        blocks.append(put(own.blocks[index], rows, jnp.where(gone, nothing, ids)))
        seen = jnp.where(gone, 0, view.epochs[index])
        epochs.append(put(own.epochs[index], rows, seen))
        dropped.append(jnp.where(gone, ids, nothing))
    since = jnp.where((lengths == 0)[:, None], 0, view.since)
    return dataclasses.replace(
        own,
        length=put(own.length, rows, lengths),
        known=put(own.known, rows, jnp.minimum(get(own.known, rows, 0), lengths)),
        held=put(own.held, rows, jnp.minimum(view.held, lengths[:, None])),
        since=put(own.since, rows, since),
        blocks=tuple(blocks),
        epochs=tuple(epochs),
    ), dropped


def _replay_is_over(rows: RowTable, which: AnyArray, lengths: AnyArray) -> jax.Array:
    """What a replay rebuilt is exact from its resume point on, and only there."""
    rebuilt = jnp.any(get(rows.since, which, 0) > 0, axis=1)
    return ~rebuilt | (lengths == 0) | (lengths >= get(rows.known, which, 0))


def _refuse(
    status: jax.Array, places: AnyArray, which: jax.Array, code: Status
) -> jax.Array:
    """``status`` with a code where it was OK, in the marked ones of ``places``."""
    wrong = jnp.where(which, places, status.shape[0])
    wrong = put(jnp.zeros(status.shape, bool), wrong, True)
    return jnp.where((status == Status.OK) & wrong, int(code), status)


def _granted(copies: list[_Copied]) -> jax.Array:
    """``[N]`` bool: rows that got every block they wanted."""
    size = [copied.table.stage.shape[0] for copied in copies]
    short = [c.wanted & (c.target == p) for c, p in zip(copies, size, strict=True)]
    return ~jnp.any(jnp.stack(short), axis=0)


def _moved(cache, tables, rows, clock, status, tickets, copies: list[_Copied]) -> Moved:
    ok = jnp.all((status == Status.OK) | (status == Status.IDLE))
    after = dataclasses.replace(cache, tables=tuple(tables), rows=rows, clock=clock)
    targets = [
        jnp.where(ok & copied.wanted, copied.target, count)
        for copied, count in zip(copies, cache.plan.blocks, strict=True)
    ]
    return Moved(
        cache=jax.tree.map(lambda new, old: jnp.where(ok, new, old), after, cache),
        status=status,
        tickets=tickets,
        sources=jnp.stack([copied.source for copied in copies], axis=1),
        targets=jnp.stack(targets, axis=1),
    )
