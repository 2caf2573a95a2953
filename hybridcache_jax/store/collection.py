"""Making room in a store: unused records go, then the packs that nothing names.

A record goes by its manifest alone, what goes on from it before.  Packs go in two
phases: a run notes those that no manifest names, the next run deletes those of them
that still none names.  So runs need no locks, may be cut at any moment and may overlap,
and a writer beside them loses nothing unless one record takes it the whole time between
two runs.  (One that is written in the very moment in which its old self, or what it
goes on from, goes for age, is missed like those.)  What cannot be read is never
deleted, and what it names is unknown: no pack goes while there is such a manifest.
"""

import dataclasses
from collections.abc import Sequence

from hybridcache_jax.store.inventory import (
    Inventory,
    StoredRecord,
    Unread,
    read_manifests,
    record_name,
    take_inventory,
)
from hybridcache_jax.store.keys import KEY_BYTES
from hybridcache_jax.store.manifest import Manifest
from hybridcache_jax.store.parallel import in_order
from hybridcache_jax.store.prefix_store import PrefixStore
from hybridcache_jax.store.records import FOLDER as RECORDS
from hybridcache_jax.store.selection import TotalBytes, ancestors, choose
from hybridcache_jax.store.sizes import OnProgress, pack_sizes
from hybridcache_jax.store.sweeps import MOST_NOTED, read_notes, write_note
from hybridcache_jax.store.ticks import (
    forget_marks,
    last_used,
    mark_used,
    next_tick,
)

# Records that are deleted between two looks at what is new.
_AT_ONCE = 1000


@dataclasses.dataclass(frozen=True)
class Collection:
    """What a run of the collector did, or would do.

    Attributes:
      tick: of the run.
      dropped: names of the records that went, in this order.
      swept: packs that went, and their bytes.
      noted: packs that the next run deletes if nothing names them, and their bytes.
      kept: records that stay.
      kept_bytes: bytes of their manifests and packs; None if there is no quota, for
        they are counted for that alone.
      fits: whether ``kept_bytes`` is within the quota.
      unread: what lies among the records and cannot be read; while there is any, no
        pack goes.
      foreign: names that nothing of this library has; they stay.
    """

    tick: int
    dropped: tuple[str, ...]
    swept: dict[str, int]
    noted: dict[str, int]
    kept: int
    kept_bytes: int | None
    fits: bool
    unread: tuple[Unread, ...]
    foreign: tuple[str, ...]


def collect(
    store: PrefixStore,
    *,
    keep_ticks: int | None = None,
    quota: int | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
    threads: int = 1,
) -> Collection:
    """Drops unused records and sweeps packs that nothing names.

    Args:
      store: which.
      keep_ticks: records that were neither written nor of use within so many runs go;
        None keeps all.
      quota: bytes of manifests and of packs that they name; the longest unused records
        go until the others fit.  Packs that wait for the next run come on top.
      dry_run: changes nothing.
      on_progress: told ``(what, done, total)``.
      threads: how many requests are made at once; many for a bucket.

    Raises:
      ValueError: if ``keep_ticks`` or ``quota`` is not positive.
      StoreError: if the store fails; what was done until then stays done.
    """
    for name, value in (("keep_ticks", keep_ticks), ("quota", quota)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be positive, got {value}.")
    # Read before anything else: what another run notes from now on is for a later one.
    notes = read_notes(store)
    if not dry_run:
        next_tick(store)
    inventory = take_inventory(store, on_progress, threads)
    least = [record.packs for record in inventory.records]
    sizes = {} if quota is None else pack_sizes(store, least, on_progress, threads)
    now = inventory.tick + dry_run
    run = _Run(store, inventory, now, dry_run, on_progress, threads)
    chosen = choose(
        inventory.records,
        now=now,
        # What cannot be read may go on from what its name says.
        needed=_parents_in([each.name for each in inventory.unread]),
        packs=sizes,
        keep_ticks=keep_ticks,
        quota=quota,
    )
    dropped = tuple(record.name for record in run.drop(chosen))
    gone = set(dropped)
    kept = [record for record in inventory.records if record.name not in gone]
    if not dry_run:
        # A manifest of a tick that is yet to come is as old as from its first run on.
        # What no look-up finds has no mark: its key may be no part of a name.
        ahead = [
            record.key
            for record in kept
            if record.written > now
            and record.used == now
            and len(record.key) == KEY_BYTES
        ]
        mark_used(store, ahead, now)
    swept, noted = run.sweep(kept, notes)
    nbytes = None if quota is None else TotalBytes(kept, sizes).nbytes
    return Collection(
        tick=now,
        dropped=dropped,
        swept=swept,
        noted=noted,
        kept=len(kept),
        kept_bytes=nbytes,
        fits=quota is None or nbytes is None or nbytes <= quota,
        unread=inventory.unread,
        foreign=inventory.foreign,
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the phases of one run share."""

    store: PrefixStore
    inventory: Inventory
    now: int
    dry_run: bool
    on_progress: OnProgress | None
    threads: int

    def drop(self, chosen: Sequence[StoredRecord]) -> list[StoredRecord]:
        """Deletes records, but for those that came into use since they were chosen."""
        if self.dry_run:
            return list(chosen)
        gone = []
        for first in range(0, len(chosen), _AT_ONCE):
            some = chosen[first : first + _AT_ONCE]
            stay = self._came_into_use(some, {record.name for record in gone})
            for record in some:
                if record.name in stay:
                    continue
                if self._was_written_again(record):
                    stay |= ancestors(self.inventory.records, [record.parent])
                    continue
                # One after the other: what goes on from a record goes before it.
                self.store.delete(record.name)
                gone.append(record)
            self._tell("deleting records", first + len(some), len(chosen))
        return gone

    def _came_into_use(
        self, chosen: Sequence[StoredRecord], gone: set[str]
    ) -> set[str]:
        """Names of records that are needed by what was written or used meanwhile."""
        records = self.inventory.records
        known = {each.name for each in (*records, *self.inventory.unread)} - gone
        marks = last_used(self.store)
        used = [
            record.key for record in chosen if marks.get(record.key, 0) > record.used
        ]
        fresh = [n for n in self.store.names(RECORDS + "/") if n not in known]
        return ancestors(records, [*_parents_in(fresh), *used])

    def _was_written_again(self, record: StoredRecord) -> bool:
        read = read_manifests(self.store, [record.name])
        return any(
            not isinstance(found, Manifest) or found.age > record.written
            for _, _, found in read
        )

    def sweep(
        self,
        kept: Sequence[StoredRecord],
        notes: dict[str, dict[str, int]],
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Both phases: packs that went, and packs that were noted for the next run."""
        records = self.inventory.records
        named = {pack for record in kept for pack in record.packs}
        # What is there and was not seen, or was written again after it was deleted.
        seen = {record.name for record in (records if self.dry_run else kept)}
        fresh = [n for n in self.store.names(RECORDS + "/") if n not in seen]
        for _, _, found in read_manifests(self.store, fresh, threads=self.threads):
            if not isinstance(found, Manifest):
                return {}, {}
            named |= {place.pack for part in found.every_part for place in part.blocks}
        before = {pack: size for note in notes.values() for pack, size in note.items()}
        unused = self.inventory.packs - named
        swept = {pack: before[pack] for pack in sorted(unused & before.keys())}
        least = {p: size for record in records for p, size in record.packs.items()}
        rest = sorted(unused - swept.keys())[:MOST_NOTED]
        left = [{pack: least.get(pack, 0)} for pack in rest]
        noted = pack_sizes(self.store, left, threads=self.threads)
        if self.dry_run:
            return swept, noted
        self._delete("deleting packs", list(swept))
        # Last, so that a run that overlaps with this one does not act on its note.
        written = write_note(self.store, self.now, noted) if noted else None
        old = [name for name in notes if name != written]
        self._delete("deleting notes", old)
        forget_marks(self.store, self.now - 1, [record.key for record in kept])
        return swept, noted

    def _delete(self, what: str, names: Sequence[str]) -> None:
        for done, _ in enumerate(in_order(self.store.delete, names, self.threads)):
            self._tell(what, done, len(names))

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(what, done, total)


def _parents_in(names: Sequence[str]) -> list[bytes]:
    """Keys of what records go on from, by their names."""
    said = (record_name(name) for name in names)
    return [name.parent for name in said if name is not None]
