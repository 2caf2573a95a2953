"""Operations on the outer tier: plans that wait are loaded, in time, late or never."""

from typing import TYPE_CHECKING

from hybridcache_jax.codes import Verdict
from hybridcache_jax.errors import LeaseError
from hybridcache_jax.offload.loads import LOAD_TICKS, LoadStage
from hybridcache_jax.points import Point
from hybridcache_jax.testing import faults
from hybridcache_jax.testing.soak.operations.memory import evict, evict_for
from hybridcache_jax.testing.soak.operations.serving import (
    acquired,
    crowd,
    give_back,
    is_current,
    matched,
)
from hybridcache_jax.testing.soak.oracle.outer import CutError, Fault, Reads
from hybridcache_jax.testing.soak.oracle.plans import Rates

if TYPE_CHECKING:
    from hybridcache_jax.offload.loads import Load
    from hybridcache_jax.testing.soak.machine import Machine, Planned

# Powers of two: costs are exact, and equal ones are met.
_BYTE_RATES = (0.0, 2.0**-13, 2.0**-11, 2.0**-9, 2.0**-6)
_LOAD_RATES = (0.0, 0.0, 0.5, 4.0)


def load(m: "Machine", a: int, b: int, c: int) -> bool:
    """What a plan waits for is asked back; the plan is kept for later."""
    if m.tier is None:
        return False
    planned = _moved_out(m, a, b, c)
    if planned.expected.verdict == Verdict.NEEDS_IO:
        _ask(m, planned, b // 64)
    else:
        m.refused(ValueError, m.prefixes.load, m.cache, planned.plan)
    m.plans = [*m.plans[-3:], planned]
    return True


def load_late(m: "Machine", a: int, b: int, c: int) -> bool:
    """A plan of before is loaded; much may have happened since."""
    waiting = [p for p in m.plans if p.expected.verdict == Verdict.NEEDS_IO]
    if not waiting:
        return False
    planned = waiting[a % len(waiting)]
    if is_current(m, planned.expected.who):
        _ask(m, planned, b)
    else:
        m.refused(LeaseError, m.prefixes.load, m.cache, planned.plan)
    return True


def poll(m: "Machine", a: int, b: int, c: int) -> bool:
    """Every load goes as far as it does, with something going wrong or not."""
    if m.tier is None or m.oracle.blocks.evicting():
        return False
    polled(m, _fault(b, c), b)
    return True


def wait(m: "Machine", a: int, b: int, c: int) -> bool:
    """A request that waits for its load, and gets its row if that goes well."""
    if m.tier is None or m.oracle.blocks.evicting():
        return False
    planned = _moved_out(m, a, b, c)
    if planned.expected.verdict == Verdict.NEEDS_IO:
        _ask(m, planned, 0)
        rows = crowd(m, a) if c // 1024 % 3 == 0 else []
        polled(m, _fault(b // 32, c // 32), b)
        for holder in rows:
            give_back(m, holder, store=True)
        planned = matched(m, a, b, c, again=True)
    if c // 256 % 4 == 0:
        # What came stays protected, and the room is taken.
        return True
    if m.full:
        give_back(m, m.holders[0], store=b % 2 > 0)
    acquired(m, planned)
    return True


def cancel(m: "Machine", a: int, b: int, c: int) -> bool:
    """A load is given up; what it brought stays."""
    if not m.loads:
        return False
    load = m.loads.pop(a % len(m.loads))
    m.oracle.outer.cancel(load.number)
    m.prefixes.cancel(load)
    return True


def set_cost(m: "Machine", a: int, b: int, c: int) -> bool:
    """The tier becomes faster or slower, and so does the store."""
    rates = Rates(byte=_BYTE_RATES[a % len(_BYTE_RATES)])
    if m.objects is not None:
        rates = rates._replace(
            stored_byte=_BYTE_RATES[b % len(_BYTE_RATES)],
            load=_LOAD_RATES[c % len(_LOAD_RATES)],
            stored_load=_LOAD_RATES[c // 8 % len(_LOAD_RATES)],
        )
    m.oracle.store.rates = rates
    m.set_cost()
    return True


def _moved_out(m: "Machine", a: int, b: int, c: int) -> "Planned":
    """A plan that goes on from what is stored; forms move out until it waits."""
    planned = matched(m, a, b, c, again=True)
    for form in range(len({pool.form for pool in m.model.plan.spec.pools})):
        waits = planned.expected.verdict == Verdict.NEEDS_IO
        if waits or not planned.expected.claimed or m.oracle.blocks.evicting():
            break
        evict(m, c // 16 + form, 0, 0)
        planned = matched(m, a, b, c, again=True)
    return planned


def _ask(m: "Machine", planned: "Planned", b: int) -> "Load":
    """A load, some of them with a deadline that is soon."""
    ticks = 1 + b // 4 % 8 if b % 4 == 3 else None
    due = int(m.cache.clock) + (ticks or LOAD_TICKS)
    number = m.oracle.outer.ask(planned.expected, due)
    load = m.prefixes.load(m.cache, planned.plan, deadline=ticks)
    m.same("number of a load", load.number, number)
    m.loads = [*m.loads[-7:], load]
    return load


def _fault(b: int, c: int) -> Fault:
    """Nearly half of all polls go well."""
    return (
        Fault(late=1 + b % 5),
        Fault(error=(OSError, KeyError)[b % 2]),
        Fault(damage=LoadStage.DIGEST),
        Fault(damage=LoadStage.LAYOUT),
        Fault(cut=(Point.LOAD_VERIFIED, Point.LOAD_READ)[b % 2], passes=b // 2 % 3),
        *(Fault(),) * 4,
    )[c % 9]


def polled(m: "Machine", fault: Fault, b: int = 0) -> None:
    """A poll with something going wrong or not; every report must be the oracle's."""
    assert m.tier is not None
    ages, now = m.ages(), int(m.cache.clock)
    m.tier.delay(fault.late)
    m.tier.fail(fault.error and fault.error("on purpose"))
    damage = None
    if fault.damage is not None:
        other = faults.other_layout("float16")
        damage = other if fault.damage == LoadStage.LAYOUT else faults.flipped(b)
    m.tier.damage(damage)
    reports = None

    def call():
        nonlocal reports
        m.cache, reports = m.prefixes.poll(m.cache)

    died = fault.cut is not None and m.cut(fault.cut, call, fault.passes)
    if fault.cut is None:
        call()
    m.tier.delay(0)
    m.tier.fail(None)
    m.tier.damage(None)
    reads = Reads(fault)
    try:
        results = m.oracle.outer.poll(now, reads, lambda want: evict_for(m, want, ages))
    except CutError:
        m.same("a poll dies", died, True)
        return
    m.oracle.saves.step(reads)
    m.same("a poll dies", died, False)
    got = [(r.load.number, r.stage, r.failed) for r in reports or ()]
    m.same("reports of loads", got, [tuple(result) for result in results])
    for report in reports or ():
        # One that is held up lets go of what came from the store; here it gives up.
        number, waits = report.load.number, report.stage == LoadStage.ROOM
        if waits and m.oracle.outer.comes_from_store(number):
            m.oracle.outer.cancel(number)
            m.prefixes.cancel(report.load)
    for result in results:
        late = result.stage == LoadStage.READ and not result.failed
        m.loaded["LATE" if late else result.stage.name] += 1
