"""Leases: pin, check again, let go.

A lease is a row and a ticket.  Admitting a row pins every block its plan names and
then runs the same check that every compiled step runs (:func:`rows.check`); if it
fails, the old cache is returned as it was.  The row keeps each reference with the
epoch it was proved with, so a later step meets a block that changed hands with
status STALE, never with values.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax import lifecycle
from hybridcache_jax import rows as rowlib
from hybridcache_jax._indexing import get
from hybridcache_jax._typing import AnyArray, TokenIds
from hybridcache_jax.append import StepInputs
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Status
from hybridcache_jax.contents import Span
from hybridcache_jax.errors import NoRoomError
from hybridcache_jax.forms import RULES, Remedy, required
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.state import HybridCache, tick
from hybridcache_jax.tokens import token_array


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What it takes to release a row.

    Attributes:
      row: the row handed out.
      ticket: the row's ticket; void once the row was released.
    """

    row: int
    ticket: int


@dataclasses.dataclass(frozen=True)
class Lease(Receipt):
    """A receipt for one row; only it runs and releases the row.

    Attributes:
      row: the row handed out.
      ticket: the row's ticket; void once the row was released.
      plan: the proof it was granted on.  Row and ticket alone say which lease it is.
    """

    plan: ResumePlan = dataclasses.field(compare=False)

    def inputs(self, tokens: TokenIds) -> StepInputs:
        """Inputs of a step that runs ``tokens`` on this row alone."""
        return batch_inputs([(self, tokens)], batch=1, width=len(tokens))

    def with_contents(self, contents: Iterable[Span]) -> "Lease":
        """The lease of a row that was also fed content behind its prompt.

        Use the one returned from here on: what it publishes is found by these.

        Args:
          contents: spans as ``PrefixCache.match`` takes them, behind those given so
            far and at or behind ``plan.length``.

        Raises:
          ValueError: for spans that lie elsewhere or are none.
        """
        known = self.plan.contents.extended(contents, self.plan.length)
        return dataclasses.replace(
            self, plan=dataclasses.replace(self.plan, contents=known)
        )


def idle_rows(cache: HybridCache, count: int) -> list[int]:
    """The first ``count`` rows that nobody has.

    Raises:
      NoRoomError: if there are fewer.
    """
    idle = np.flatnonzero(~np.asarray(cache.rows.live)).tolist()
    if len(idle) < count:
        taken = f"All {cache.plan.max_sequences} rows are taken"
        free = f"{len(idle)} of {cache.plan.max_sequences} rows are idle"
        raise NoRoomError(
            f"{free if idle else taken}, {count} more are wanted; release some, or "
            "plan a larger max_sequences."
        )
    return idle[:count]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Admission:
    """What a row starts with; ``C`` columns of each of ``G`` pools."""

    row: AnyArray  # [] int32
    version: AnyArray  # [] int32
    provenance: AnyArray  # [] int32
    start: AnyArray  # [] int32, first position to run
    known: AnyArray  # [] int32, resume point: ids below it are given
    deadline: AnyArray  # [] int32, clock after which the lease is overdue
    line: AnyArray  # [] int32, tickets of this line are larger
    tokens: AnyArray  # [N] int32, those ids, zeros behind
    since: AnyArray  # [G] int32, first position whose entries count
    held: AnyArray  # [G] int32, entries below are held
    blocks: tuple[AnyArray, ...]  # G times [C] int32
    epochs: tuple[AnyArray, ...]  # G times [C] int32


def batch_inputs(
    parts: Sequence[tuple[Lease, TokenIds]], *, batch: int, width: int
) -> StepInputs:
    """Step inputs of a declared shape from leases and their next tokens.

    Args:
      parts: at most ``batch`` leases, each with at most ``width`` tokens.
      batch: rows of the bucket.
      width: tokens of the bucket.

    Raises:
      ValueError: if the parts do not fit the bucket, or tokens are no integers.
    """
    parts = [(lease, token_array(ids)) for lease, ids in parts]
    longest = max((len(tokens) for _, tokens in parts), default=0)
    if len(parts) > batch or longest > width:
        raise ValueError(
            f"{len(parts)} rows of up to {longest} tokens do not fit the bucket "
            f"[{batch}, {width}]; choose a larger bucket or split the step."
        )
    rows = np.full(batch, np.iinfo(np.int32).max, np.int32)
    tickets, counts = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
    tokens = np.zeros((batch, width), np.int32)
    for place, (lease, ids) in enumerate(parts):
        rows[place], tickets[place] = lease.row, lease.ticket
        counts[place] = len(ids)
        tokens[place, : len(ids)] = ids
    return StepInputs(rows=rows, tickets=tickets, tokens=tokens, counts=counts)


def admission(
    capacity: CapacityPlan, plan: ResumePlan, row: int, version: int, deadline: int
) -> Admission:
    """What a row starts with under a plan.

    The row knows the ids that its plan names: a replay runs those again and no others,
    for what it reads was made of them.

    In a replay, the forms that it rebuilds start empty at ``plan.start``, except for
    those that it keeps, which start as in a row resumed there; all others are held up
    to the resume point, are read, and are never written.

    Args:
      capacity: sizes.
      plan: verdict and claims.
      row: an idle row.
      version: id of the plan's identity in the facts.
      deadline: clock after which the lease is overdue.
    """
    tokens = np.zeros(capacity.max_length, np.int32)
    tokens[: plan.length] = plan.claims.tokens[: plan.length]
    since, held, blocks, epochs = [], [], [], []
    for number, pool in enumerate(capacity.spec.pools):
        remedy = RULES[pool.form].remedy
        rebuilt = plan.start < plan.length and remedy is Remedy.REPLAY
        reach = plan.start if rebuilt else plan.length
        empty = rebuilt and number not in plan.kept
        lo, _ = required(pool.form, pool.geometry, reach)
        last = reach // pool.block_tokens
        first = last if empty else lo // pool.block_tokens
        columns = capacity.columns(number)
        ids = np.full(columns, capacity.blocks[number], np.int32)
        seen = np.zeros(columns, np.int32)
        place = np.arange(first, last) % columns
        ids[place] = plan.claims.blocks[number][first:last]
        seen[place] = plan.claims.epochs[number][first:last]
        since.append(plan.start if empty else 0)
        held.append(reach)
        blocks.append(ids)
        epochs.append(seen)
    return Admission(
        row=np.array(row, np.int32),
        version=np.array(version, np.int32),
        provenance=np.array(plan.provenance, np.int32),
        start=np.array(plan.start, np.int32),
        known=np.array(plan.length, np.int32),
        deadline=np.array(deadline, np.int32),
        line=np.array(plan.line, np.int32),
        tokens=tokens,
        since=np.array(since, np.int32),
        held=np.array(held, np.int32),
        blocks=tuple(blocks),
        epochs=tuple(epochs),
    )


def admit(
    cache: HybridCache, admission: Admission
) -> tuple[HybridCache, jax.Array, jax.Array]:
    """Pins what a plan names, writes the row, and checks again.

    Args:
      cache: the cache of this moment, which may be newer than the plan.
      admission: what the row starts with; the row must be idle.

    Returns:
      The cache, the status and the row's ticket, ``[]`` int32 each.  The status is
      OK, STALE if a claim no longer holds, or BAD_ROW if the row is taken; unless it
      is OK the cache is as it was.
    """
    row, clock = admission.row, tick(cache.clock)
    table = cache.rows
    tables = tuple(
        lifecycle.pin(facts, ids, clock)
        for facts, ids in zip(cache.tables, admission.blocks, strict=True)
    )
    # A step knows a lease by its ticket: one of another line must not fit.
    tickets = jnp.maximum(table.ticket, admission.line)
    ticket = tickets[row] + 1
    rows = dataclasses.replace(
        table,
        live=table.live.at[row].set(True),
        ticket=tickets.at[row].set(ticket),
        version=table.version.at[row].set(admission.version),
        provenance=table.provenance.at[row].set(admission.provenance),
        length=table.length.at[row].set(admission.start),
        known=table.known.at[row].set(admission.known),
        deadline=table.deadline.at[row].set(admission.deadline),
        tokens=table.tokens.at[row].set(admission.tokens),
        since=table.since.at[row].set(admission.since),
        held=table.held.at[row].set(admission.held),
        blocks=tuple(
            old.at[row].set(new)
            for old, new in zip(table.blocks, admission.blocks, strict=True)
        ),
        epochs=tuple(
            old.at[row].set(new)
            for old, new in zip(table.epochs, admission.epochs, strict=True)
        ),
    )
    pinned = dataclasses.replace(cache, tables=tables, rows=rows, clock=clock)
    status = rowlib.check(pinned, row[None], ticket[None])[0]
    status = jnp.where(table.live[row], int(Status.BAD_ROW), status)
    return _choose(status == Status.OK, pinned, cache), status, ticket


def require_lease(receipt: Receipt) -> Lease:
    """The receipt itself, if it says under what plan a row was admitted.

    Raises:
      ValueError: for one that is no :class:`Lease`, as those of ``overdue`` are.
    """
    if not isinstance(receipt, Lease):
        raise ValueError(
            f"The receipt of row {receipt.row} is no lease and does not say what may "
            "be stored; give the lease, or release the row with publish=False."
        )
    return receipt


def release(
    cache: HybridCache, row: jax.Array, ticket: jax.Array
) -> tuple[HybridCache, jax.Array]:
    """Lets go of a row: its pins, its unfinished blocks, its ticket.

    Args:
      cache: the cache.
      row: ``[]`` int32.
      ticket: ``[]`` int32.

    Returns:
      The cache, and ``[]`` int32: ``Status.OK``, or ``Status.STALE`` for a receipt
      that is not the row's own, which changes nothing.
    """
    # A row outside the table is nobody's, not the nearest one.
    mine = get(cache.rows.live, row, False)
    mine = mine & (get(cache.rows.ticket, row, -1) == ticket)
    clock = tick(cache.clock)
    tables = tuple(
        rowlib.let_go(facts, blocks[row], epochs[row], clock)
        for facts, blocks, epochs in zip(
            cache.tables, cache.rows.blocks, cache.rows.epochs, strict=True
        )
    )
    rows = rowlib.clear(cache.rows, row, cache.plan)
    freed = dataclasses.replace(cache, tables=tables, rows=rows, clock=clock)
    status = jnp.where(mine, int(Status.OK), int(Status.STALE))
    return _choose(mine, freed, cache), status


def keep(
    cache: HybridCache, blocks: tuple[jax.Array, ...], epochs: tuple[jax.Array, ...]
) -> HybridCache:
    """Marks blocks as held by a stored prefix, where the references still hold.

    Args:
      cache: the cache.
      blocks: per pool, ``[C]`` int32 ids; outside the pool for none.
      epochs: per pool, ``[C]`` int32.
    """
    tables = []
    for table, ids, seen in zip(cache.tables, blocks, epochs, strict=True):
        current = jnp.take(table.epoch, ids, mode="clip") == seen
        ids = jnp.where(current, ids, table.stage.shape[0])
        tables.append(lifecycle.keep(table, ids))
    return dataclasses.replace(cache, tables=tuple(tables))


def _choose(ok: jax.Array, new: HybridCache, old: HybridCache) -> HybridCache:
    """``new`` where ok, else ``old``; the pools are the same in both."""
    tables, rows, clock = jax.tree.map(
        lambda a, b: jnp.where(ok, a, b),
        (new.tables, new.rows, new.clock),
        (old.tables, old.rows, old.clock),
    )
    return dataclasses.replace(new, tables=tables, rows=rows, clock=clock)
