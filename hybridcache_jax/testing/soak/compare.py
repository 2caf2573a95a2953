"""What cache, store and tier hold, beside what the oracle and a cold run do."""

import functools
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from hybridcache_jax.codes import Stage
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.audit import violations

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Holder, Machine
    from hybridcache_jax.testing.soak.oracle.ledger import Block


class DivergenceError(AssertionError):
    """The library did something else than the oracle."""


class Occupied(NamedTuple):
    """What was in use after an operation, and the epochs of everything."""

    blocks: "dict[int, Block]"
    epochs: np.ndarray


def facts(machine: "Machine") -> None:
    """Every block, every row and every place of the tier.

    Raises:
      DivergenceError: if one is not as the oracle has it.
    """
    oracle, holders, model = machine.oracle, machine.holders, machine.model
    rows = machine.cache.rows
    live, length = np.zeros(model.rows, bool), np.asarray(rows.length)
    live[[holder.lease.row for holder in holders]] = True
    _equal("live rows", rows.live, live)
    for holder in holders:
        machine.same("length", int(length[holder.lease.row]), holder.row.length)
    for index, pool in enumerate(oracle.pools):
        want = np.zeros((3, pool.count), np.int32)
        for block in oracle.blocks.at[index].values():
            want[:, block.id] = block.stage, block.pins, block.kept
        table = machine.cache.tables[index]
        for name, column in zip(("stage", "pins", "kept"), want, strict=True):
            _equal(f"pool {index}: {name}", getattr(table, name), column)
        columns = np.full((model.rows, pool.columns), pool.count, np.int32)
        for holder in holders:
            for number, block in holder.row.blocks[index].items():
                columns[holder.lease.row, number % pool.columns] = block.id
        _equal(f"pool {index}: references", rows.blocks[index], columns)
        machine.occupied[index] = _epochs(
            f"pool {index}",
            machine.occupied[index],
            oracle.blocks.at[index],
            np.asarray(table.epoch),
        )
    if machine.tier is not None:
        _places(machine)


def _epochs(
    what: str, was: "Occupied", blocks: dict[int, "Block"], epochs: np.ndarray
) -> "Occupied":
    """Epochs grow when a block or place is handed out, given back or written anew."""
    for place in was.blocks.keys() | blocks.keys():
        changed = was.blocks.get(place) is not blocks.get(place)
        if changed and epochs[place] <= was.epochs[place]:
            raise DivergenceError(
                f"{what}: {place} has epoch {epochs[place]} after "
                f"{was.epochs[place]}, and does not hold the same any more."
            )
    return Occupied(dict(blocks), epochs.copy())


def _places(machine: "Machine") -> None:
    tier, outer = machine.tier, machine.oracle.outer
    assert tier is not None
    for index, (places, pool) in enumerate(
        zip(tier.places, machine.oracle.pools, strict=True)
    ):
        stage = np.full(len(places.stage), int(Stage.FREE), np.int32)
        first = np.full(len(places.stage), -1, np.int32)
        for place, block in outer.at[index].items():
            stage[place], first[place] = block.stage, block.number * pool.size
        _equal(f"tier, pool {index}: stage", places.stage, stage)
        _equal(f"tier, pool {index}: first", places.first, first)
        machine.same(f"tier, pool {index}: moved", outer.moves[index], {})
        machine.placed[index] = _epochs(
            f"tier, pool {index}",
            machine.placed[index],
            outer.at[index],
            places.epoch,
        )
    held = sum(
        pool.nbytes * block.loadable
        for pool, blocks in zip(machine.oracle.pools, outer.at, strict=True)
        for block in blocks.values()
    )
    machine.same("bytes of the tier", tier.nbytes, held)


def reads(machine: "Machine", holder: "Holder", got: np.ndarray) -> None:
    """What a row read in its last step, beside a cold run.

    Args:
      machine: with the oracle's row behind the step.
      holder: the row.
      got: ``[layers, n, width]``, for its last ``n`` tokens.

    Raises:
      DivergenceError: if that is not the same, where no replay is under way.
    """
    end = holder.row.length
    first = max(end - got.shape[1], holder.row.known)
    if not machine.model.style or first >= end:
        return
    want = _cold(machine.model, tuple(holder.row.tokens)).reads[:, first:end]
    got = got[:, first - end :]
    if not np.allclose(got, want, rtol=3e-7, atol=0):
        raise DivergenceError(
            f"Row {holder.lease.row} read {got.tolist()} at positions "
            f"{first}..{end - 1} of {holder.row.tokens}, a cold run reads "
            f"{want.tolist()}."
        )


def state(machine: "Machine", holder: "Holder | None") -> None:
    """All laws, and what one row holds to go on, beside a cold run.

    Raises:
      DivergenceError: for a law that is broken, or another state.
    """
    # On the host: indexing device arrays one by one is what takes long.
    cache = jax.tree.map(np.asarray, machine.cache)
    if not machine.oracle.blocks.evicting():
        machine.same("laws", violations(cache), [])
    if holder is None or holder.row.stale or not holder.row.exact:
        return
    if machine.model.style:
        held = toy.held(machine.model, cache, holder.lease.row)
        cold = _cold(machine.model, tuple(holder.row.tokens))
        machine.same("state", toy.differences(held, cold), [])


def overdue(machine: "Machine") -> None:
    """Leases that outlived their deadline, and what they keep.

    Raises:
      DivergenceError: if one is missing, too many, or said to keep something else.
    """
    now, want = int(machine.cache.clock), []
    for holder in sorted(machine.holders, key=lambda holder: holder.lease.row):
        row, lease = holder.row, holder.lease
        if row.deadline is not None and row.deadline < now:
            blocks = tuple(len(held) for held in row.blocks)
            nbytes = sum(
                pool.nbytes * count
                for pool, count in zip(machine.oracle.pools, blocks, strict=True)
            )
            want.append((lease.row, lease.ticket, now - row.deadline, blocks, nbytes))
    got = [
        (late.row, late.ticket, late.late, late.blocks, late.nbytes)
        for late in machine.prefixes.overdue(machine.cache)
    ]
    machine.same("overdue", got, want)


def _equal(what: str, got, want: np.ndarray) -> None:
    got = np.asarray(got)
    if not np.array_equal(got, want):
        raise DivergenceError(f"{what}: {got.tolist()}, expected {want.tolist()}.")


@functools.lru_cache(maxsize=8192)
def _cold(model: toy.Model, tokens: tuple[int, ...]) -> toy.Cold:
    return toy.cold(model, tokens)
