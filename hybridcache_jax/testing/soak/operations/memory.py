"""Operations on memory: blocks are evicted, wholly or half way, and calls die."""

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from hybridcache_jax import eviction
from hybridcache_jax.codes import Stage
from hybridcache_jax.points import Point
from hybridcache_jax.testing.soak.operations.serving import is_current

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Machine

_EVICTION = (
    Point.EVICTION_BEGUN,
    Point.EVICTION_COPIED,
    Point.EVICTION_FORGOTTEN,
)


def evict(m: "Machine", a: int, b: int, c: int) -> bool:
    """Every block of one form that nobody has pinned."""
    if m.oracle.blocks.evicting():
        return False
    form, wanted = _form(m, a)
    ages = m.ages()
    m.cache = m.prefixes.evict(m.cache, form)
    m.oracle.store.evict(wanted, ages)
    return True


def make_room(m: "Machine", a: int, b: int, c: int) -> bool:
    """So many blocks of each pool are to be free."""
    if m.oracle.blocks.evicting():
        return False
    want = [
        (n * (index + 3)) % (pool.count // (1 + c % 3) + 1)
        for index, (n, pool) in enumerate(
            zip((a, b, c, a + b, b + c) * 4, m.oracle.pools, strict=False)
        )
    ]
    if b % 2:
        # One pool alone: its neighbours are what a replay goes on from.
        only = a % len(want)
        want = [m.oracle.pools[only].count * (n == only) for n in range(len(want))]
    ages, before = m.ages(), m.cache
    m.cache = m.prefixes.make_room(m.cache, want)
    same = not evict_for(m, want, ages)
    m.same("room that is there is made", m.cache is before, same)
    return True


def evict_for(m: "Machine", want: list[int], ages: list[list[int]]) -> bool:
    """The oracle evicts until so much is free; whether there was need to."""

    def short() -> list[int]:
        room = m.oracle.blocks.room
        return [max(0, n - free) for n, free in zip(want, room, strict=True)]

    if not any(short()):
        return False
    # Dead weight goes before anything that can be resumed.
    m.oracle.store.settle()
    if any(short()):
        m.oracle.store.evict(short(), ages)
    return True


def shrink(m: "Machine", a: int, b: int, c: int) -> bool:
    """So many bytes of stored blocks go: windows first, the history last."""
    if m.oracle.blocks.evicting():
        return False
    most = sum(pool.nbytes * pool.count for pool in m.oracle.pools)
    nbytes, ages = a * (b % 4) % (most // 8), m.ages()
    m.cache = m.prefixes.shrink(m.cache, nbytes)
    m.oracle.store.settle()
    ranked = []
    for index, pool in enumerate(m.oracle.pools):
        rank = 2 if pool.grows else int(pool.exact)
        kept = m.oracle.outer.protected(index)
        for place in m.oracle.blocks.evictable(index) - kept:
            first = m.oracle.blocks.at[index][place].number * pool.size
            ranked.append((rank, ages[index][place], -first, index, place))
    wanted = [0] * len(m.oracle.pools)
    for *_, index, _ in sorted(ranked):
        if nbytes <= 0:
            break
        wanted[index] += 1
        nbytes -= m.oracle.pools[index].nbytes
    m.oracle.store.evict(wanted, ages)
    return True


def begin_eviction(m: "Machine", a: int, b: int, c: int) -> bool:
    """An eviction that is interrupted between its phases; others go on."""
    if m.oracle.blocks.evicting():
        return False
    index = a % len(m.oracle.pools)
    free = m.oracle.blocks.evictable(index)
    count = min(len(free), b % 4)
    tables = list(m.cache.tables)
    nothing = np.zeros(tables[index].stage.shape, bool)
    tables[index], _ = eviction.begin(tables[index], jnp.int32(count), nothing)
    m.cache = dataclasses.replace(m.cache, tables=tuple(tables))
    stage = np.asarray(tables[index].stage)
    begun = set(np.flatnonzero(stage == Stage.EVICTING).tolist())
    m.same("evicting", (len(begun), begun <= free), (count, True))
    for place in begun:
        m.oracle.blocks.at[index][place].stage = Stage.EVICTING
    return bool(begun)


def crash(m: "Machine", a: int, b: int, c: int) -> bool:
    """An eviction dies half way; one goes on from the value of before."""
    if m.oracle.blocks.evicting():
        return False
    form, wanted = _form(m, a)
    point = _EVICTION[b % len(_EVICTION)]
    if m.tier is None and point == Point.EVICTION_COPIED:
        return False
    ages = m.ages()
    died = m.cut(point, lambda: m.prefixes.evict(m.cache, form))
    m.same("an eviction dies", died, True)
    m.oracle.store.evict(wanted, ages, point)
    return True


def cut_short(m: "Machine", a: int, b: int, c: int) -> bool:
    """A row is stored, and the call dies when its claims are made."""
    holder = m.holder(a)
    if holder is None or holder.row.stale:
        return False
    lease, row = holder.lease, holder.row
    stored = is_current(m, row.who) and m.oracle.store.publish(
        row, finished=b % 2 > 0, keep=False, marked=b % 2 > 0
    )
    if b % 2:
        point, call = Point.RELEASE_PUBLISHED, m.prefixes.release
    elif stored:
        point, call = Point.PUBLISH_CLAIMED, m.prefixes.publish
    else:
        return False
    m.same("a call dies", m.cut(point, lambda: call(m.cache, lease)), True)
    return True


def recover(m: "Machine", a: int, b: int, c: int) -> bool:
    """What an interrupted eviction left behind is settled."""
    for block in m.oracle.blocks.evicting():
        block.stage = Stage.SEALED
    m.cache = m.prefixes.recover(m.cache)
    m.oracle.store.settle()
    return True


def _form(m: "Machine", a: int):
    """One form, and per pool how many blocks of it there are."""
    specs = m.model.plan.spec.pools
    forms = sorted({pool.form for pool in specs})
    form = forms[a % len(forms)]
    return form, [
        pool.count if spec.form == form else 0
        for pool, spec in zip(m.oracle.pools, specs, strict=True)
    ]
