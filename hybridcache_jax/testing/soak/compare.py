"""What cache, store and tier hold, beside what the oracle and a cold run do."""

import functools
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from hybridcache_jax.codes import Stage
from hybridcache_jax.observe.declarations import SaveEnd
from hybridcache_jax.store.manifest import decode
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
    if machine.objects is not None:
        _objects(machine)


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
    tier, own = machine.tier, machine.oracle.tier
    assert tier is not None
    for index, (places, pool) in enumerate(
        zip(tier.places, machine.oracle.pools, strict=True)
    ):
        stage = np.full(len(places.stage), int(Stage.FREE), np.int32)
        first = np.full(len(places.stage), -1, np.int32)
        for place, block in own.at[index].items():
            stage[place], first[place] = block.stage, block.number * pool.size
        _equal(f"tier, pool {index}: stage", places.stage, stage)
        _equal(f"tier, pool {index}: first", places.first, first)
        machine.same(f"tier, pool {index}: moved", own.moves[index], {})
        machine.placed[index] = _epochs(
            f"tier, pool {index}",
            machine.placed[index],
            own.at[index],
            places.epoch,
        )
    held = sum(
        pool.nbytes * block.held
        for pool, blocks in zip(machine.oracle.pools, own.at, strict=True)
        for block in blocks.values()
    )
    machine.same("bytes of the tier", tier.nbytes, held)


def _objects(machine: "Machine") -> None:
    """What lies in the store, what is on its way there, and how that ended."""
    assert machine.objects is not None
    records, saves = machine.oracle.records, machine.oracle.saves
    for folder, want in (("records/", records.records), ("packs/", records.packs)):
        machine.same(folder, sorted(machine.objects.names(folder)), sorted(want))
    for name, record in records.records.items():
        data = machine.objects.objects[name]
        # The same object means the same bytes.
        if record.damaged or machine.manifests.get(name) is data:
            continue
        machine.manifests[name], found = data, decode(data)
        places = {
            (index, block.number): block.pack
            for index, part in enumerate(found.parts)
            for block in part.blocks
        }
        got = found.start, found.stop, found.age, places
        want = record.start, len(record.tokens), record.written, record.places
        machine.same(f"what {name} says", got, want)
    machine.same("written", records.told, [])
    machine.same("claimed", machine.oracle.tier.claimed, [[] for _ in records.pools])
    machine.same("waiting saves", machine.prefixes.saving, len(saves.waiting))
    for end in SaveEnd:
        count = machine.registry.value("hybridcache_saves_total", end=end)
        machine.same(f"saves that ended: {end}", count, saves.ends[end])


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
