"""Operations of serving: a prompt is matched, gets a row, runs, is stored, is over."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridcache_jax.codes import Status, Verdict
from hybridcache_jax.errors import LeaseError, NoRoomError
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import Scope
from hybridcache_jax.testing.soak.oracle.ledger import Expected, Who

if TYPE_CHECKING:
    from hybridcache_jax.testing.soak.machine import Holder, Machine, Planned

_REMEMBERED = 4
# The producer of each identity: tenants of one producer have one scope.
PRODUCER = (0, 1, 0, 3)


def match(m: "Machine", a: int, b: int, c: int) -> bool:
    """A plan that is kept for later."""
    m.plans = [*m.plans[1 - _REMEMBERED :], matched(m, a, b, c)]
    return True


def admit(m: "Machine", a: int, b: int, c: int) -> bool:
    """A plan, and a row under it, some with a deadline."""
    ticks = b // 64 % 16
    acquired(m, matched(m, a, b, c), ticks if 0 < ticks < 6 else None)
    return True


def serve(m: "Machine", a: int, b: int, c: int) -> bool:
    """A request from its plan to its end: what it ran is stored."""
    if m.full:
        give_back(m, m.holders[0], store=True)
    planned = matched(m, a, b, c)
    holder = acquired(m, planned)
    if holder is None:
        return True
    end = min(len(planned.expected.prompt) + b // 64 % 8, m.model.max_length)
    while advance(m, [holder], end):
        pass
    give_back(m, holder, store=True)
    return True


def acquire_late(m: "Machine", a: int, b: int, c: int) -> bool:
    """A row under a plan of before; much may have happened since."""
    if not m.plans:
        return False
    acquired(m, m.plans.pop(a % len(m.plans)))
    return True


def advance(m: "Machine", holders: "Sequence[Holder]", end: int) -> bool:
    """One step of some rows towards a length; whether one of them moved."""
    parts = [
        (h, h.script[h.row.length : min(h.row.length + m.width, end)]) for h in holders
    ]
    statuses = m.oracle.rows.step([(h.row, tokens) for h, tokens in parts])
    m.run([(h.lease, tokens) for h, tokens in parts], statuses, parts)
    return Status.OK in statuses


def crowd(m: "Machine", a: int) -> "list[Holder]":
    """Rows that take what room there is: all that were free, as long as can be."""
    new: list[Holder] = []
    while not m.full:
        plan = matched(m, a + len(new), m.model.max_length, 0)
        holder = acquired(m, plan)
        if holder is None:
            break
        new.append(holder)
    while m.holders and advance(m, m.holders, m.model.max_length):
        pass
    return new


def step(m: "Machine", a: int, b: int, c: int) -> bool:
    """One batch: the rows in the bits of ``a``, so many tokens each."""
    parts: list[tuple[Holder, list[int]]] = []
    for place, holder in enumerate(m.holders):
        count = (b >> (4 * place)) % 16 % (m.width + 1)
        if not a >> place & 1:
            continue
        begin = holder.row.length
        if c % 16:
            count = min(count, m.model.max_length - begin)
        parts.append((holder, holder.script[begin : begin + count]))
    if not parts:
        return False
    statuses = m.oracle.rows.step([(h.row, tokens) for h, tokens in parts])
    m.run([(h.lease, tokens) for h, tokens in parts], statuses, parts)
    return True


def publish(m: "Machine", a: int, b: int, c: int) -> bool:
    """What a row ran so far is stored."""
    holder = m.holder(a)
    if holder is None:
        return False
    if holder.row.stale:
        m.refused(LeaseError, m.prefixes.publish, m.cache, holder.lease)
        return True
    if is_current(m, holder.row.who):
        m.oracle.store.publish(holder.row, finished=False)
    m.cache = m.prefixes.publish(m.cache, holder.lease)
    return True


def release(m: "Machine", a: int, b: int, c: int) -> bool:
    """A row is given back, stored or not."""
    holder = m.holder(a)
    if holder is None:
        return False
    give_back(m, holder, store=b % 8 > 0)
    return True


def renew(m: "Machine", a: int, b: int, c: int) -> bool:
    """A lease gets another deadline, or none."""
    holder = m.holder(a)
    if holder is None:
        return False
    ticks = (None, 1, 2, 4, 8, 0)[b % 6]
    if ticks == 0 or holder.row.stale:
        error = LeaseError if ticks != 0 else ValueError
        m.refused(error, m.prefixes.renew, m.cache, holder.lease, ticks)
        return True
    holder.row.deadline = None if ticks is None else int(m.cache.clock) + ticks
    m.cache = m.prefixes.renew(m.cache, holder.lease, ticks)
    return True


def matched(m: "Machine", a: int, b: int, c: int, *, again: bool = False) -> "Planned":
    """A plan, which must be the oracle's.

    Args:
      m: the machine.
      a: who asks for what.
      b: for how much of it.
      c: where that goes another way.
      again: whether the prompt goes on from what is stored, if anything is; if not,
        most do.
    """
    from hybridcache_jax.testing.soak.machine import Planned

    who = a // 16
    number = m.identity if who % 8 else who // 8 % len(m.identities)
    request, session = f"request {who // 64 % 2}", "session"
    if who // 8 % 32 == 0:
        request = session = ""
    stored = stored_for(m, number, request, session) if again or c // 4096 % 4 else []
    script, prompt = m.prompt(a, b, c, stored)
    return Planned(*planned(m, number, request, session, prompt), script)


def stored_for(
    m: "Machine", number: int, request: str, session: str
) -> list[tuple[int, ...]]:
    """The prefixes that somebody finds."""
    who = who_asks(m, number, request, session)
    return m.oracle.store.prefixes(who) + m.oracle.records.prefixes(who)


def planned(
    m: "Machine", number: int, request: str, session: str, prompt: list[int]
) -> tuple[ResumePlan, Expected]:
    """The plan for a prompt, by the library and by the oracle."""
    plan = m.prefixes.match(
        m.cache, prompt, m.identities[number], request=request, session=session
    )
    who = who_asks(m, number, request, session)
    expected = m.oracle.store.expected(who, prompt)
    last = max(len(prompt) - 1, 0)
    whole = last - last % m.model.grid
    waits = expected.verdict in (Verdict.RESUMABLE, Verdict.NEEDS_IO)
    # What can be had already is not looked up.
    if (
        m.objects is not None
        and who.outlives
        and not (waits and expected.point >= whole)
        and m.oracle.discover(who, prompt[:whole])
    ):
        m.found += 1
        expected = m.oracle.store.expected(who, prompt)
    m.verdicts[plan.verdict.name] += 1
    m.origins += bool(plan.kept)
    what = f"plan for {prompt} of {who}"
    m.same(
        what,
        (plan.verdict.name, plan.length, plan.start, plan.kept),
        (expected.verdict.name, expected.point, expected.start, expected.kept),
    )
    loads = tuple(tuple(numbers.tolist()) for numbers in plan.loads)
    m.same(f"{what}: loads", loads, expected.loads)
    m.same(f"{what}: from the store", plan.bytes_from_store, expected.far)
    if who.shares:
        m.same(f"{what}: claimed length", plan.claimed_length, expected.claimed)
        held = tuple(report.held for report in plan.forms)
        m.same(f"{what}: forms held", held, expected.held)
    return plan, expected


def who_asks(m: "Machine", number: int, request: str, session: str) -> Who:
    """Whose claims are met in the scope of this moment."""
    producer = PRODUCER[number]
    scope = m.scopes[producer]
    owners = {Scope.REQUEST: request, Scope.SESSION: session}
    owner = owners.get(scope, "")
    return Who(
        identity=producer if scope == Scope.GLOBAL else number,
        owner=owner,
        generation=m.generations[producer],
        shares=m.identities[number].complete
        and scope != Scope.OFF
        and not (scope in owners and not owner),
        producer=producer,
        scope=scope,
    )


def is_current(m: "Machine", who: Who) -> bool:
    """Whether the reuse scope is still the one it was found in."""
    return who.generation == m.generations[PRODUCER[who.identity]]


def acquired(
    m: "Machine", planned: "Planned", ticks: int | None = None
) -> "Holder | None":
    """A row under a plan, unless it must be refused.

    Args:
      m: the machine.
      planned: the plan.
      ticks: of the clock until the lease is overdue; None for never.
    """
    plan, expected, script = planned
    waits = expected.verdict == Verdict.NEEDS_IO
    if waits or (expected.point and not is_current(m, expected.who)):
        m.refused(LeaseError, m.prefixes.acquire, m.cache, plan)
        return None
    row = None if m.full else m.oracle.rows.admit(expected)
    if row is None:
        error = NoRoomError if m.full else LeaseError
        m.refused(error, m.prefixes.acquire, m.cache, plan)
        return None
    m.oracle.outer.acquired(expected)
    row.deadline = None if ticks is None else int(m.cache.clock) + ticks
    m.cache, lease = m.prefixes.acquire(m.cache, plan, deadline=ticks)
    if expected.point:
        m.oracle.uses.add(expected.who, tuple(expected.prompt[: expected.point]))
    return m.hold(row, lease, script)


def give_back(m: "Machine", holder: "Holder", *, store: bool) -> None:
    """A row is released; a stale one stores nothing."""
    if store and not holder.row.stale and is_current(m, holder.row.who):
        m.oracle.store.publish(holder.row, finished=True)
    m.oracle.rows.release(holder.row)
    m.cache = m.prefixes.release(m.cache, holder.lease, publish=store)
    m.holders.remove(holder)
    m.void = holder.lease
