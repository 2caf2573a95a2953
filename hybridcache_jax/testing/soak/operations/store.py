"""Operations on what outlives the process: saves, restarts, damage, house-keeping."""

from typing import TYPE_CHECKING

from hybridcache_jax.store.collection import collect as collect_garbage
from hybridcache_jax.testing.soak.operations.tier import polled
from hybridcache_jax.testing.soak.oracle.outer import Fault, Reads

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Machine


def save(m: "Machine", a: int, b: int, c: int) -> bool:
    """Everything that waits is saved, or has failed."""
    saves = m.oracle.saves
    if not saves.waiting or m.oracle.blocks.evicting():
        return False
    if m.oracle.outer.waiting:
        # Loads go on, too, and are reported.
        while saves.waiting:
            polled(m, Fault())
        return True
    m.cache, saves.hurried = m.prefixes.flush(m.cache), True
    while saves.waiting:
        saves.step(Reads(Fault()))
    return True


def restart(m: "Machine", a: int, b: int, c: int) -> bool:
    """The process ends; another one has nothing but the store."""
    if m.objects is None:
        return False
    m.restart()
    return True


def spoil(m: "Machine", a: int, b: int, c: int) -> bool:
    """A record or a pack is damaged, or gone."""
    if m.objects is None:
        return False
    names = sorted([*m.objects.names("records/"), *m.objects.names("packs/")])
    if not names:
        return False
    name, gone = names[a % len(names)], b % 2 > 0
    if gone:
        m.objects.delete(name)
    else:
        # As long as before or empty; no toy ever holds such numbers.
        size = len(m.objects.objects[name]) if c % 2 else 0
        m.objects.objects[name] = b"\xa5" * size
    m.oracle.records.damage(name, gone)
    return True


def collect(m: "Machine", a: int, b: int, c: int) -> bool:
    """House-keeping, by age or of leftovers alone."""
    if m.objects is None:
        return False
    keep = (None, 1, 2, 4)[a % 4]
    collect_garbage(m.objects, keep_ticks=keep)
    m.oracle.records.collect(keep)
    return True
