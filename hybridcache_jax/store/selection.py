"""Which records go when a store is made smaller: the longest unused, leaves first.

A record is of use as long as one that goes on from it is.  So what leads to a record is
never chosen before the record itself.
"""

from collections.abc import Iterable, Mapping, Sequence

from hybridcache_jax.store.inventory import StoredRecord


class TotalBytes:
    """Bytes of manifests and of the packs that they name, each pack counted once.

    Attributes:
      nbytes: of all records that are counted now.
    """

    def __init__(self, records: Iterable[StoredRecord], packs: Mapping[str, int]):
        """Counts records.

        Args:
          records: what to count.
          packs: bytes of packs; one that is not there has none.
        """
        self.nbytes = 0
        self._packs = packs
        self._users: dict[str, int] = {}
        for record in records:
            self.nbytes += record.manifest_bytes
            for pack in record.packs:
                users = self._users.get(pack, 0)
                self._users[pack] = users + 1
                self.nbytes += 0 if users else packs.get(pack, 0)

    def remove(self, record: StoredRecord) -> None:
        """Counts one of them no more."""
        self.nbytes -= record.manifest_bytes
        for pack in record.packs:
            self._users[pack] -= 1
            if not self._users[pack]:
                self.nbytes -= self._packs.get(pack, 0)


def choose(
    records: Sequence[StoredRecord],
    *,
    now: int,
    needed: Iterable[bytes],
    packs: Mapping[str, int],
    keep_ticks: int | None,
    quota: int | None,
) -> list[StoredRecord]:
    """Records to drop, in an order that may be cut short anywhere.

    Args:
      records: all there are.
      now: logical time.
      needed: keys of records that stay, with what leads to them.
      packs: bytes of packs by name.
      keep_ticks: what was not of use for more ticks goes; None for no such rule.
      quota: bytes that the others may have; None for no such rule.
    """
    useful, stay = _last_of_use(records), ancestors(records, needed)
    order = sorted(
        (record for record in records if record.name not in stay),
        key=lambda record: (useful[record.name], -record.stop, record.name),
    )
    total, chosen = TotalBytes(records, packs), []
    for record in order:
        old = keep_ticks is not None and now - useful[record.name] > keep_ticks
        if old or (quota is not None and total.nbytes > quota):
            total.remove(record)
            chosen.append(record)
    return chosen


def ancestors(records: Sequence[StoredRecord], keys: Iterable[bytes]) -> set[str]:
    """Names of the records with these keys, and of all that lead to them."""
    by_key = _by_key(records)
    found: set[str] = set()
    pending = list(keys)
    while pending:
        for record in by_key.get(pending.pop(), ()):
            if record.name not in found:
                found.add(record.name)
                pending.append(record.parent)
    return found


def _last_of_use(records: Sequence[StoredRecord]) -> dict[str, int]:
    """When each record, or one that goes on from it, was last of use, by name."""
    by_key = _by_key(records)
    useful = {record.name: record.used for record in records}
    # The latest first: so each record is passed on once.
    pending = sorted(records, key=lambda record: record.used)
    while pending:
        record = pending.pop()
        for parent in by_key.get(record.parent, ()):
            if useful[parent.name] < useful[record.name]:
                useful[parent.name] = useful[record.name]
                pending.append(parent)
    return useful


def _by_key(records: Sequence[StoredRecord]) -> dict[bytes, list[StoredRecord]]:
    # Several records may lead to one prefix; what goes on from it may need any.
    found: dict[bytes, list[StoredRecord]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record)
    return found
