"""Operations on sequences: rows are forked, reordered, rewound."""

from typing import TYPE_CHECKING

from hybridcache_jax.codes import Status
from hybridcache_jax.errors import LeaseError, NoRoomError

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Machine

# Of several rows the first one that cannot says why.
_EITHER = (LeaseError, NoRoomError)


def fork(m: "Machine", a: int, b: int, c: int) -> bool:
    """A second row where one stands."""
    holder = m.holder(a)
    if holder is None:
        return False
    stale = holder.row.stale and not m.full
    rows = None
    if not (stale or m.full):
        rows = m.oracle.rows.reorder([holder.row], [0, 0])
    if rows is None:
        error = LeaseError if stale else NoRoomError
        m.refused(error, m.prefixes.fork, m.cache, holder.lease)
        return True
    m.cache, lease = m.prefixes.fork(m.cache, holder.lease)
    m.other_way(m.hold(rows[1], lease, holder.script), b)
    return True


def reorder(m: "Machine", a: int, b: int, c: int) -> bool:
    """A beam: the rows in the bits of ``a``; further places fork, none ends."""
    chosen = m.chosen(a)
    if not chosen:
        return False
    places = b % (m.model.rows + 1)
    parents = [(c >> (3 * n)) % 8 % len(chosen) for n in range(places)]
    leases = [holder.lease for holder in chosen]
    others = len(m.holders) - len(chosen)
    stale = any(chosen[parent].row.stale for parent in parents)
    rows = None
    if others + places <= m.model.rows and not stale:
        rows = m.oracle.rows.reorder([holder.row for holder in chosen], parents)
    if rows is None:
        errors = _EITHER if stale else NoRoomError
        m.refused(errors, m.prefixes.reorder, m.cache, leases, parents)
        return True
    distinct = len(set(parents)) == places
    call = m.prefixes.select if distinct and b % 2 else m.prefixes.reorder
    m.cache, receipts = call(m.cache, leases, parents)
    for place, holder in enumerate(chosen):
        if place not in parents:
            m.void = holder.lease
            m.holders.remove(holder)
    for row, lease, parent in zip(rows, receipts, parents, strict=True):
        if row is chosen[parent].row:
            m.same("the receipt of a row that stays", lease, leases[parent])
        else:
            m.other_way(m.hold(row, lease, chosen[parent].script), c)
    return True


def settle(m: "Machine", a: int, b: int, c: int) -> bool:
    """The end of a speculative round: all rows in the bits of ``a``, or none."""
    chosen = m.chosen(a)
    if not chosen:
        return False
    lengths = [
        max(0, holder.row.length - (b >> (2 * n)) % 4)
        for n, holder in enumerate(chosen)
    ]
    leases = [holder.lease for holder in chosen]
    if any(holder.row.stale for holder in chosen):
        m.refused(_EITHER, m.prefixes.settle, m.cache, leases, lengths)
        return True
    moved = [h.row.length != n for h, n in zip(chosen, lengths, strict=True)]
    # A row that stands where it is to stand is left alone, even in a replay.
    status = m.oracle.rows.rewind(
        [
            (holder.row, length)
            for holder, length, cut in zip(chosen, lengths, moved, strict=True)
            if cut
        ]
    )
    if status != Status.OK:
        error = NoRoomError if status == Status.NO_ROOM else LeaseError
        m.refused(error, m.prefixes.settle, m.cache, leases, lengths)
        return True
    m.cache, receipts = m.prefixes.settle(m.cache, leases, lengths)
    for holder, lease, cut in zip(chosen, receipts, moved, strict=True):
        m.same("new receipt", lease != holder.lease, cut)
        if cut:
            m.void, holder.lease = holder.lease, lease
        m.other_way(holder, c)
        m.learn(holder)
    return True


def rewind(m: "Machine", a: int, b: int, c: int) -> bool:
    """A row as it stood at an earlier length."""
    holder = m.holder(a)
    if holder is None:
        return False
    row, lease = holder.row, holder.lease
    length = row.length - b % 4 if c % 4 else b % (row.length + 2)
    can = m.prefixes.can_rewind(m.cache, lease, length)
    m.same("can_rewind", can, m.oracle.rows.can_rewind(row, length))
    if holder.promise and not row.stale:
        back = m.prefixes.can_rewind(m.cache, lease, holder.promise[0])
        m.same("can_rewind, as was said before", back, True)
    more = a // 8 % 4
    if not row.stale and m.prefixes.can_rewind_after(m.cache, lease, more):
        holder.promise = row.length, row.length + more
    if length < 0 or (length > row.length and not row.stale):
        m.refused(ValueError, m.prefixes.rewind, m.cache, lease, length)
        return True
    status = m.oracle.rows.rewind([(row, length)])
    if status != Status.OK:
        error = NoRoomError if status == Status.NO_ROOM else LeaseError
        m.refused(error, m.prefixes.rewind, m.cache, lease, length)
        return True
    m.void = lease
    m.cache, holder.lease = m.prefixes.rewind(m.cache, lease, length)
    m.other_way(holder, a // 8)
    m.learn(holder)
    return True
