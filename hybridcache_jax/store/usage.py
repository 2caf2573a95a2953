"""What the bytes of a store are used for."""

import dataclasses
from collections.abc import Iterable

from hybridcache_jax.store.inventory import (
    QUARANTINE,
    Unread,
    is_foreign,
    read_manifests,
)
from hybridcache_jax.store.pack import is_pack_name
from hybridcache_jax.store.prefix_store import SNAPSHOTS, PrefixStore, is_name
from hybridcache_jax.store.sizes import OnProgress, block_size, pack_sizes


@dataclasses.dataclass(frozen=True)
class Usage:
    """Bytes of a store.

    Attributes:
      records: how many there are.
      manifest_bytes: of all of them.
      packs: packs that records name.
      pack_bytes: of those.
      form_bytes: form to bytes of its blocks; what several records have, once.
      shared_bytes: what they would take more if each record had its own.
      unread: objects among the records that cannot be read, and their bytes.
      leftovers: packs that no record names, and their bytes; where a manifest cannot be
        read, it may be that one that names them.
      quarantined: what was moved out of the way, and its bytes.
      foreign: objects that are not this library's, and their bytes.
      snapshots: files of whole caches that lie below the store, also of those that were
        begun and not ended, and their bytes; without the few whose names are none of
        objects.
    """

    records: int
    manifest_bytes: int
    packs: int
    pack_bytes: int
    form_bytes: dict[str, int]
    shared_bytes: int
    unread: tuple[int, int]
    leftovers: tuple[int, int]
    quarantined: tuple[int, int]
    foreign: tuple[int, int]
    snapshots: tuple[int, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of everything but ticks, marks of use and notes."""
        rest = (self.unread, self.leftovers, self.quarantined, self.foreign)
        rest += (self.snapshots,)
        return self.manifest_bytes + self.pack_bytes + sum(size for _, size in rest)


def measure(
    store: PrefixStore, on_progress: OnProgress | None = None, threads: int = 1
) -> Usage:
    """Counts the bytes of a store by what the store has, not by what manifests say.

    Args:
      store: which.
      on_progress: told ``(what, done, total)``.
      threads: how many requests are made at once; many for a bucket.

    Raises:
      StoreError: if the store fails.
    """
    records = manifest_bytes = all_bytes = 0
    forms: dict[str, dict[tuple[str, int], int]] = {}
    hints: list[dict[str, int]] = []
    unread: list[Unread] = []
    for _, size, found in read_manifests(store, None, on_progress, threads):
        if isinstance(found, Unread):
            unread.append(found)
            continue
        records, manifest_bytes = records + 1, manifest_bytes + size
        for part in found.every_part:
            block = block_size(part) or 0
            places = [place for place in part.blocks if is_pack_name(place.pack)]
            blocks = {(place.pack, place.start): block for place in places}
            all_bytes += block * len(blocks)
            forms.setdefault(part.form, {}).update(blocks)
            hints.append({pack: start + block for pack, start in sorted(blocks)})
    packs = pack_sizes(store, hints, on_progress, threads)
    form_bytes = {form: sum(blocks.values()) for form, blocks in sorted(forms.items())}
    names = [name for name in store.names("") if is_name(name)]
    whole = [name for name in names if name.startswith(SNAPSHOTS + "/")]
    moved = [name for name in names if name.startswith(QUARANTINE + "/")]
    left = [name for name in names if is_pack_name(name) and name not in packs]
    return Usage(
        records=records,
        manifest_bytes=manifest_bytes,
        packs=len(packs),
        pack_bytes=sum(packs.values()),
        form_bytes=form_bytes,
        shared_bytes=all_bytes - sum(form_bytes.values()),
        unread=(len(unread), sum(each.nbytes for each in unread)),
        leftovers=_sized(store, left, threads),
        quarantined=_sized(store, moved, threads),
        foreign=_sized(store, filter(is_foreign, names), threads),
        snapshots=_sized(store, whole, threads),
    )


def _sized(store: PrefixStore, names: Iterable[str], threads: int) -> tuple[int, int]:
    sizes = pack_sizes(store, [{name: 0} for name in names], None, threads)
    return len(sizes), sum(sizes.values())
