"""A cache, its store and the oracle, in step.

An operation is a name and three numbers, which mean something in every state: any list
of operations can be run, and so can any part of it.  After every operation all facts
are compared with the oracle's; every verdict is, and what a step read; what a row holds
is compared with a cold run by the operation ``inspect``.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np

from hybridcache_jax import eviction
from hybridcache_jax.codes import Stage, Status
from hybridcache_jax.errors import LeaseError, NoRoomError, StaleCacheError
from hybridcache_jax.lease import Lease, batch_inputs
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import ReusePolicy, Scope
from hybridcache_jax.state import HybridCache
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.audit import violations
from hybridcache_jax.testing.soak.ledger import Expected, Row, Who
from hybridcache_jax.testing.soak.oracle import Oracle

_STREAMS = 3
_REMEMBERED = 4
# The producer of each identity: tenants of one producer have one scope.
_PRODUCER = (0, 1, 0, 3)


class Operation(NamedTuple):
    """A name and three numbers of at least 0."""

    name: str
    a: int = 0
    b: int = 0
    c: int = 0


class DivergenceError(AssertionError):
    """The library did something else than the oracle."""


@dataclasses.dataclass(eq=False)
class _Holder:
    """A row with its receipt, and what it will run."""

    row: Row
    lease: Lease
    script: list[int]


class Machine:
    """One cache under operations; every one is checked.

    Attributes:
      model: the toy.
      cache: the newest value.
      prefixes: its store.
      oracle: what both must be.
      counts: operations by name, without those that found nothing to do.
      verdicts: plans by verdict.
      tokens: tokens run.
    """

    def __init__(self, model: toy.Model, width: int = 8):
        """An empty cache and an empty store.

        Args:
          model: the toy; with a forward pass of its own only verdicts and facts are
            compared, for its values are unknown.
          width: tokens of one row in one step.

        Raises:
          ValueError: for a model without a form that grows with the history.
        """
        base = model.identity
        self.model = model
        self.width = width
        self.identities = (
            base,
            dataclasses.replace(base, weights="other weights"),
            base.within("tenant"),
            dataclasses.replace(base, weights=""),
        )
        self.oracle = Oracle(model)
        if not self.oracle.prunes:
            raise ValueError(
                "No form of this model grows with the history: a replay rebuilds all "
                "of it, nothing is ever lost; give it a layer with global entries."
            )
        self.counts: collections.Counter = collections.Counter()
        self.verdicts: collections.Counter = collections.Counter()
        self.tokens = 0
        self.prefixes = PrefixCache(model.plan, policy=ReusePolicy(Scope.NAMESPACE))
        self.cache = model.empty
        self._identity = 0
        self._scopes = [Scope.NAMESPACE] * len(self.identities)
        self._generations = [0] * len(self.identities)
        self._holders: list[_Holder] = []
        self._plans: list[tuple[ResumePlan, Expected, list[int]]] = []
        self._older: HybridCache | None = None
        self._void: Lease | None = None
        random = np.random.default_rng(11)
        shape = (_STREAMS, model.max_length + width)
        self._streams = random.integers(0, toy.VOCAB, shape).tolist()

    def apply(self, operation: Operation) -> bool:
        """Runs one operation on the library and on the oracle.

        Args:
          operation: a name and numbers.

        Returns:
          Whether there was anything to do.

        Raises:
          DivergenceError: if the library did something else than the oracle.
        """
        before = self.cache
        done = getattr(self, f"_{operation.name}")(*operation[1:])
        if done:
            self.counts[operation.name] += 1
            self._compare()
        if int(before.stamp) != int(self.cache.stamp):
            self._older = before
        return bool(done)

    # Operations.

    def _match(self, a: int, b: int, c: int) -> bool:
        script, prompt = self._prompt(a, b, c)
        plan, expected = self._matched(prompt, a // 16)
        self._plans = [*self._plans[1 - _REMEMBERED :], (plan, expected, script)]
        return True

    def _admit(self, a: int, b: int, c: int) -> bool:
        script, prompt = self._prompt(a, b, c)
        return self._acquired(*self._matched(prompt, a // 16), script)

    def _acquire_late(self, a: int, b: int, c: int) -> bool:
        """Under a plan of before; much may have happened since."""
        if not self._plans:
            return False
        return self._acquired(*self._plans.pop(a % len(self._plans)))

    def _step(self, a: int, b: int, c: int) -> bool:
        """One batch: the rows in the bits of ``a``, so many tokens each."""
        parts: list[tuple[_Holder, list[int]]] = []
        for place, holder in enumerate(self._holders):
            count = (b >> (4 * place)) % 16 % (self.width + 1)
            if not a >> place & 1:
                continue
            begin = holder.row.length
            if c % 16:
                count = min(count, self.model.max_length - begin)
            parts.append((holder, holder.script[begin : begin + count]))
        if not parts:
            return False
        statuses = self.oracle.step([(h.row, tokens) for h, tokens in parts])
        self._run([(h.lease, tokens) for h, tokens in parts], statuses, parts)
        return True

    def _publish(self, a: int, b: int, c: int) -> bool:
        holder = self._holder(a)
        if holder is None:
            return False
        if self._is_current(holder.row.who):
            self.oracle.publish(holder.row)
        self.cache = self.prefixes.publish(self.cache, holder.lease)
        return True

    def _release(self, a: int, b: int, c: int) -> bool:
        holder = self._holder(a)
        if holder is None:
            return False
        publish = b % 8 > 0
        if publish and self._is_current(holder.row.who):
            self.oracle.publish(holder.row)
        self.oracle.release(holder.row)
        self.cache = self.prefixes.release(self.cache, holder.lease, publish=publish)
        self._holders.remove(holder)
        self._void = holder.lease
        return True

    def _fork(self, a: int, b: int, c: int) -> bool:
        holder = self._holder(a)
        if holder is None:
            return False
        full = len(self._holders) == self.model.rows
        rows = None if full else self.oracle.reorder([holder.row], [0, 0])
        if rows is None:
            self._refused(NoRoomError, self.prefixes.fork, holder.lease)
            return True
        self.cache, lease = self.prefixes.fork(self.cache, holder.lease)
        self._hold(rows[1], lease, holder.script, b)
        return True

    def _reorder(self, a: int, b: int, c: int) -> bool:
        """A beam: the rows in the bits of ``a``; further places fork, none ends."""
        chosen = [h for n, h in enumerate(self._holders) if a >> n & 1]
        if not chosen:
            return False
        places = b % (self.model.rows + 1)
        parents = [(c >> (3 * n)) % 8 % len(chosen) for n in range(places)]
        leases = [holder.lease for holder in chosen]
        others = len(self._holders) - len(chosen)
        rows = None
        if others + places <= self.model.rows:
            rows = self.oracle.reorder([holder.row for holder in chosen], parents)
        if rows is None:
            self._refused(NoRoomError, self.prefixes.reorder, leases, parents)
            return True
        distinct = len(set(parents)) == places
        call = self.prefixes.select if distinct and b % 2 else self.prefixes.reorder
        self.cache, receipts = call(self.cache, leases, parents)
        for place, holder in enumerate(chosen):
            if place not in parents:
                self._void = holder.lease
                self._holders.remove(holder)
        for row, lease, parent in zip(rows, receipts, parents, strict=True):
            if row is chosen[parent].row:
                self._same("the receipt of a row that stays", lease, leases[parent])
            else:
                self._hold(row, lease, chosen[parent].script, c)
        return True

    def _settle(self, a: int, b: int, c: int) -> bool:
        """The end of a speculative round: all rows in the bits of ``a``, or none."""
        chosen = [h for n, h in enumerate(self._holders) if a >> n & 1]
        if not chosen:
            return False
        lengths = [
            max(0, holder.row.length - (b >> (2 * n)) % 4)
            for n, holder in enumerate(chosen)
        ]
        leases = [holder.lease for holder in chosen]
        moved = [h.row.length != n for h, n in zip(chosen, lengths, strict=True)]
        # A row that stands where it is to stand is left alone, even in a replay.
        status = self.oracle.rewind(
            [
                (holder.row, length)
                for holder, length, cut in zip(chosen, lengths, moved, strict=True)
                if cut
            ]
        )
        if status != Status.OK:
            error = NoRoomError if status == Status.NO_ROOM else LeaseError
            self._refused(error, self.prefixes.settle, leases, lengths)
            return True
        self.cache, receipts = self.prefixes.settle(self.cache, leases, lengths)
        for holder, lease, cut in zip(chosen, receipts, moved, strict=True):
            self._same("new receipt", lease != holder.lease, cut)
            if cut:
                self._void, holder.lease = holder.lease, lease
            self._other_way(holder, c)
            self._learn(holder)
        return True

    def _rewind(self, a: int, b: int, c: int) -> bool:
        holder = self._holder(a)
        if holder is None:
            return False
        row = holder.row
        length = row.length - b % 4 if c % 4 else b % (row.length + 2)
        can = self.prefixes.can_rewind(self.cache, holder.lease, length)
        self._same("can_rewind", can, self.oracle.can_rewind(row, length))
        if not 0 <= length <= row.length:
            self._refused(ValueError, self.prefixes.rewind, holder.lease, length)
            return True
        status = self.oracle.rewind([(row, length)])
        if status != Status.OK:
            error = NoRoomError if status == Status.NO_ROOM else LeaseError
            self._refused(error, self.prefixes.rewind, holder.lease, length)
            return True
        self._void = holder.lease
        self.cache, holder.lease = self.prefixes.rewind(
            self.cache, holder.lease, length
        )
        self._other_way(holder, a // 8)
        self._learn(holder)
        return True

    def _evict(self, a: int, b: int, c: int) -> bool:
        """Every block of one form that nobody has pinned."""
        if self._begun():
            return False
        forms = sorted({pool.form for pool in self.model.plan.spec.pools})
        form = forms[a % len(forms)]
        self._evicted(
            [
                pool.count if spec.form == form else 0
                for pool, spec in self._pools_and_specs()
            ],
            lambda: self.prefixes.evict(self.cache, form),
        )
        return True

    def _make_room(self, a: int, b: int, c: int) -> bool:
        if self._begun():
            return False
        want = [
            (n * (index + 3)) % (pool.count // (1 + c % 3) + 1)
            for index, (n, pool) in enumerate(
                zip((a, b, c, a + b, b + c) * 4, self.oracle.pools, strict=False)
            )
        ]
        short = [max(0, n - r) for n, r in zip(want, self.oracle.room, strict=True)]
        if any(short):
            self._evicted(short, lambda: self.prefixes.make_room(self.cache, want))
        else:
            same = self.prefixes.make_room(self.cache, want) is self.cache
            self._same("room that is there is made", same, True)
        return True

    def _begin_eviction(self, a: int, b: int, c: int) -> bool:
        """An eviction that is interrupted between its phases; others go on."""
        if self._begun():
            return False
        index = a % len(self.oracle.pools)
        free = self.oracle.evictable(index)
        count = min(len(free), b % 4)
        tables = list(self.cache.tables)
        nothing = np.zeros(tables[index].stage.shape, bool)
        tables[index], _ = eviction.begin(tables[index], jnp.int32(count), nothing)
        self.cache = dataclasses.replace(self.cache, tables=tuple(tables))
        stage = np.asarray(tables[index].stage)
        begun = set(np.flatnonzero(stage == Stage.EVICTING).tolist())
        self._same("evicting", (len(begun), begun <= free), (count, True))
        for place in begun:
            self.oracle.blocks[index][place].stage = Stage.EVICTING
        return bool(begun)

    def _crash(self, a: int, b: int, c: int) -> bool:
        """An eviction dies half way; one goes on from the value of before."""
        if self._begun():
            return False
        forms = sorted({pool.form for pool in self.model.plan.spec.pools})
        form = forms[a % len(forms)]
        lost = {
            self.oracle.blocks[index][place]
            for index, (_, spec) in enumerate(self._pools_and_specs())
            if spec.form == form
            for place in self.oracle.evictable(index)
        }

        died = mock.patch.object(
            self.prefixes._upkeep, "_finish", side_effect=InterruptedError
        )
        with died, contextlib.suppress(InterruptedError):
            self.prefixes.evict(self.cache, form)
        self.oracle.forget_units(lost)
        return True

    def _recover(self, a: int, b: int, c: int) -> bool:
        for block in self._begun():
            block.stage = Stage.SEALED
        self.cache = self.prefixes.recover(self.cache)
        self.oracle.settle()
        return True

    def _bump(self, a: int, b: int, c: int) -> bool:
        """Other weights from here on."""
        self._identity = a % 2 if b % 4 == 0 else 0
        return True

    def _set_scope(self, a: int, b: int, c: int) -> bool:
        """Reuse of one producer, in all its namespaces, becomes wider or narrower."""
        producer = _PRODUCER[a % len(self.identities)]
        scope = Scope(b % len(Scope)) if c % 2 else Scope.NAMESPACE
        self.prefixes.set_scope(self.identities[producer], scope)
        if scope != self._scopes[producer]:
            self._scopes[producer] = scope
            self._generations[producer] += 1
            self.oracle.drop(lambda who: _PRODUCER[who.identity] == producer)
        return True

    def _end_request(self, a: int, b: int, c: int) -> bool:
        """What only this request could find is found no more."""
        if not self._plans:
            return False
        plan, expected, _ = self._plans[a % len(self._plans)]
        self.prefixes.end_request(plan)
        if expected.who.owner.startswith("request"):
            self.oracle.drop(lambda who: who == expected.who)
        return True

    def _misuse(self, a: int, b: int, c: int) -> bool:
        """What must be refused, and change nothing."""
        holder = self._holder(b)
        if a % 4 == 0 and self._older is not None:
            prompt = self._prompt(a // 4, b, c)[1]
            who = self.identities[0]
            self._refused(StaleCacheError, self.prefixes.match, prompt, who, old=True)
            if holder:
                self._refused(
                    StaleCacheError, self.prefixes.publish, holder.lease, old=True
                )
            return True
        if a % 4 == 1 and self._void is not None:
            self._run([(self._void, [1])], [Status.STALE], [])
            for call in (self.prefixes.publish, self.prefixes.release):
                self._refused(LeaseError, call, self._void)
            return True
        if a % 4 == 2 and holder:
            # The row's own work stands first in the batch, its double is refused.
            tokens = holder.script[holder.row.length :][:1]
            statuses = [*self.oracle.step([(holder.row, tokens)]), Status.BAD_ROW]
            parts = [(holder.lease, tokens), (holder.lease, tokens)]
            self._run(parts, statuses, [(holder, tokens)])
            return True
        if a % 4 == 3 and holder and holder.row.length < holder.row.known:
            wrong = [(holder.script[holder.row.length] + 1) % toy.VOCAB]
            statuses = self.oracle.step([(holder.row, wrong)])
            self._same("a replay of another token", statuses, [Status.OTHER_TOKEN])
            self._run([(holder.lease, wrong)], statuses, [])
            return True
        return False

    def _inspect(self, a: int, b: int, c: int) -> bool:
        """All laws, and what one row holds against a cold run."""
        if not self._begun():
            self._same("laws", violations(self.cache), [])
        holder = self._holder(a)
        if holder and holder.row.exact and self.model.style:
            state = toy.held(self.model, self.cache, holder.lease.row)
            cold = _cold(self.model, tuple(holder.row.tokens))
            self._same("state", toy.differences(state, cold), [])
        return True

    # What the operations share.

    def _prompt(self, a: int, b: int, c: int) -> tuple[list[int], list[int]]:
        """What a row would run for good, and the part of it that is a prompt."""
        script = list(self._streams[a % 4 % _STREAMS])
        if c % 2:
            cut = c // 2 % self.model.max_length
            script[cut:] = self._streams[a // 4 % _STREAMS][cut:]
        return script, script[: b % (self.model.max_length + 1)]

    def _matched(self, prompt: list[int], a: int) -> tuple[ResumePlan, Expected]:
        number = self._identity if a % 8 else a // 8 % len(self.identities)
        request, session = f"request {a // 64 % 2}", "session"
        if a // 8 % 32 == 0:
            request = session = ""
        plan = self.prefixes.match(
            *(self.cache, prompt, self.identities[number]),
            request=request,
            session=session,
        )
        who = self._who(number, request, session)
        expected = self.oracle.expected(who, prompt)
        self.verdicts[plan.verdict.name] += 1
        self._same(
            f"plan for {prompt} of {who}",
            (plan.verdict.name, plan.length, plan.start),
            (expected.verdict.name, expected.point, expected.start),
        )
        if who.shares:
            self._same("claimed length", plan.claimed_length, expected.claimed)
            held = tuple(report.held for report in plan.forms)
            self._same("forms held", held, expected.held)
        return plan, expected

    def _who(self, number: int, request: str, session: str) -> Who:
        """Whose claims are met in the scope of this moment."""
        producer = _PRODUCER[number]
        scope = self._scopes[producer]
        owners = {Scope.REQUEST: request, Scope.SESSION: session}
        owner = owners.get(scope, "")
        return Who(
            identity=producer if scope == Scope.GLOBAL else number,
            owner=owner,
            generation=self._generations[producer],
            shares=self.identities[number].complete
            and scope != Scope.OFF
            and not (scope in owners and not owner),
        )

    def _is_current(self, who: Who) -> bool:
        return who.generation == self._generations[_PRODUCER[who.identity]]

    def _acquired(self, plan: ResumePlan, expected: Expected, script) -> bool:
        if expected.point and not self._is_current(expected.who):
            self._refused(LeaseError, self.prefixes.acquire, plan)
            return True
        full = len(self._holders) == self.model.rows
        row = None if full else self.oracle.admit(expected)
        if row is None:
            error = NoRoomError if full else LeaseError
            self._refused(error, self.prefixes.acquire, plan)
            return True
        self.cache, lease = self.prefixes.acquire(self.cache, plan)
        self._holders.append(_Holder(row, lease, list(script)))
        return True

    def _hold(self, row: Row, lease: Lease, script: list[int], a: int) -> None:
        """A row that came out of another one, and goes another way."""
        holder = _Holder(row, lease, list(script))
        self._holders.append(holder)
        self._other_way(holder, a)
        self._learn(holder)

    def _other_way(self, holder: _Holder, a: int) -> None:
        """Other tokens from here on, unless a replay is to run those it knows."""
        length = holder.row.length
        if holder.row.exact:
            holder.script[length:] = self._streams[a % _STREAMS][length:]

    def _run(self, parts, statuses: list[Status], holders) -> None:
        """One step of the library, with what must come of it."""
        if len(parts) > self.model.rows:
            parts, statuses = parts[: self.model.rows], statuses[: self.model.rows]
        inputs = batch_inputs(parts, batch=self.model.rows, width=self.width)
        self.cache, status, reads = self.model.step(self.cache, inputs)
        status = [Status(int(s)) for s in np.asarray(status)[: len(parts)]]
        self._same("status", status, statuses)
        reads = np.asarray(reads)
        for place, (holder, tokens) in enumerate(holders):
            if statuses[place] != Status.OK:
                continue
            self._learn(holder)
            self.tokens += len(tokens)
            end = holder.row.length
            first = max(end - len(tokens), holder.row.known)
            if not self.model.style or first >= end:
                continue
            cold = _cold(self.model, tuple(holder.row.tokens)).reads[:, first:end]
            skipped = first - end + len(tokens)
            got = reads[:, place, skipped : len(tokens)]
            if not np.allclose(got, cold, rtol=3e-7, atol=0):
                raise DivergenceError(
                    f"Row {holder.lease.row} read {got.tolist()} at positions "
                    f"{first}..{end - 1} of {holder.row.tokens}, a cold run reads "
                    f"{cold.tolist()}."
                )

    def _evicted(self, wanted: Sequence[int], call: Callable) -> None:
        self.cache = call()
        gone = []
        for index, table in enumerate(self.cache.tables):
            free = np.asarray(table.stage) == Stage.FREE
            gone.append({n for n in self.oracle.blocks[index] if free[n]})
        wrong = self.oracle.evict(gone, wanted)
        if wrong:
            raise DivergenceError(f"An eviction of {list(wanted)}: {wrong}.")

    def _refused(self, error: type[Exception], call, *arguments, old=False) -> None:
        cache = self._older if old else self.cache
        try:
            call(cache, *arguments)
        except error:
            return
        raise DivergenceError(
            f"{call.__name__}{arguments} was to raise {error.__name__}."
        )

    def _holder(self, a: int) -> _Holder | None:
        return self._holders[a % len(self._holders)] if self._holders else None

    def _begun(self):
        return [
            block
            for blocks in self.oracle.blocks
            for block in blocks.values()
            if block.stage == Stage.EVICTING
        ]

    def _pools_and_specs(self):
        specs = self.model.plan.spec.pools
        return list(zip(self.oracle.pools, specs, strict=True))

    def _learn(self, holder: _Holder) -> None:
        """Reads which places a row's new blocks were handed."""
        for index, pool in enumerate(self.oracle.pools):
            new = [b for b in holder.row.blocks[index].values() if b.id < 0]
            if not new:
                continue
            columns = np.asarray(self.cache.rows.blocks[index])[holder.lease.row]
            for block in new:
                place = int(columns[block.number % pool.columns])
                if not 0 <= place < pool.count or place in self.oracle.blocks[index]:
                    raise DivergenceError(
                        f"Pool {index}: row {holder.lease.row} was handed block "
                        f"{place} for its block {block.number}; it is not free."
                    )
                block.id = place
                self.oracle.blocks[index][place] = block

    def _compare(self) -> None:
        """Every block and every row, as the facts and as the oracle have them."""
        rows, holders = self.cache.rows, self._holders
        live = np.zeros(self.model.rows, bool)
        live[[holder.lease.row for holder in holders]] = True
        self._equal("live rows", np.asarray(rows.live), live)
        length = np.asarray(rows.length)
        for holder in holders:
            self._same("length", int(length[holder.lease.row]), holder.row.length)
        for index, pool in enumerate(self.oracle.pools):
            table = self.cache.tables[index]
            blocks = self.oracle.blocks[index].values()
            want = np.zeros((3, pool.count), np.int32)
            for block in blocks:
                want[:, block.id] = block.stage, block.pins, block.kept
            for name, column in zip(("stage", "pins", "kept"), want, strict=True):
                self._equal(f"pool {index}: {name}", getattr(table, name), column)
            columns = np.full((self.model.rows, pool.columns), pool.count, np.int32)
            for holder in holders:
                for number, block in holder.row.blocks[index].items():
                    columns[holder.lease.row, number % pool.columns] = block.id
            self._equal(f"pool {index}: references", rows.blocks[index], columns)

    def _equal(self, what: str, got, want: np.ndarray) -> None:
        got = np.asarray(got)
        if not np.array_equal(got, want):
            raise DivergenceError(f"{what}: {got.tolist()}, expected {want.tolist()}.")

    def _same(self, what: str, got, want) -> None:
        if got != want:
            raise DivergenceError(f"{what}: {got}, expected {want}.")


@functools.lru_cache(maxsize=8192)
def _cold(model: toy.Model, tokens: tuple[int, ...]) -> toy.Cold:
    return toy.cold(model, tokens)
