"""What must be refused and change nothing, and a look at what a row holds."""

from typing import TYPE_CHECKING

from hybridcache_jax.codes import Status
from hybridcache_jax.errors import LeaseError, StaleCacheError
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.soak import compare

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Machine


def misuse(m: "Machine", a: int, b: int, c: int) -> bool:
    """An older cache, a void receipt, a row twice, a replay of other tokens."""
    return (_older, _void, _twice, _other_token)[a % 4](m, a // 4, b, c)


def inspect(m: "Machine", a: int, b: int, c: int) -> bool:
    """All laws, what is overdue, and what one row holds against a cold run."""
    compare.state(m, m.holder(a))
    compare.overdue(m)
    return True


def _older(m: "Machine", a: int, b: int, c: int) -> bool:
    if m.older is None:
        return False
    prompt, holder = m.prompt(a, b, c)[1], m.holder(b)
    who = m.identities[0]
    m.refused(StaleCacheError, m.prefixes.match, m.older, prompt, who)
    if holder:
        m.refused(StaleCacheError, m.prefixes.publish, m.older, holder.lease)
    return True


def _void(m: "Machine", a: int, b: int, c: int) -> bool:
    if m.void is None:
        return False
    m.run([(m.void, [1])], [Status.STALE], [])
    for call in (m.prefixes.publish, m.prefixes.release):
        m.refused(LeaseError, call, m.cache, m.void)
    return True


def _twice(m: "Machine", a: int, b: int, c: int) -> bool:
    """The row's own work stands first in the batch, its double is refused."""
    holder = m.holder(b)
    if holder is None:
        return False
    tokens = holder.script[holder.row.length :][:1]
    statuses = [*m.oracle.rows.step([(holder.row, tokens)]), Status.BAD_ROW]
    parts = [(holder.lease, tokens), (holder.lease, tokens)]
    m.run(parts, statuses, [(holder, tokens)])
    return True


def _other_token(m: "Machine", a: int, b: int, c: int) -> bool:
    holder = m.holder(b)
    if holder is None or holder.row.exact or holder.row.stale:
        return False
    wrong = [(holder.script[holder.row.length] + 1) % toy.VOCAB]
    statuses = m.oracle.rows.step([(holder.row, wrong)])
    m.same("a replay of another token", statuses, [Status.OTHER_TOKEN])
    m.run([(holder.lease, wrong)], statuses, [])
    return True
