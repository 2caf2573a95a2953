"""A cache, its claims, its outer tier, a store beyond it and the oracle, in step.

An operation is a name and three numbers, which mean something in every state: any list
of operations can be run, and so can any part of it.  After every operation all facts
are compared with the oracle's; every verdict is, and what a step read; what a row holds
is compared with a cold run by the operation ``inspect``.

What each operation does lies by topic in ``operations``; what they share is here.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridcache_jax.codes import Status
from hybridcache_jax.cost import CostModel
from hybridcache_jax.lease import Lease, batch_inputs
from hybridcache_jax.observe import MemoryRegistry, Metrics
from hybridcache_jax.offload.loads import Load
from hybridcache_jax.offload.places import places_for, tier_bytes
from hybridcache_jax.points import Point
from hybridcache_jax.prefix_cache import PrefixCache
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.rollout import ReusePolicy, Scope
from hybridcache_jax.state import HybridCache, init
from hybridcache_jax.testing import toy
from hybridcache_jax.testing.faults import FaultyTier, InjectedError, Interrupt
from hybridcache_jax.testing.soak import compare
from hybridcache_jax.testing.soak.compare import DivergenceError, Occupied
from hybridcache_jax.testing.soak.operations import OPERATIONS
from hybridcache_jax.testing.soak.oracle import Oracle
from hybridcache_jax.testing.soak.oracle.ledger import Expected, Row, pools_of
from hybridcache_jax.testing.soak.oracle.records import Records
from hybridcache_jax.testing.stores import Inline, MemoryStore

_STREAMS = 3


class Operation(NamedTuple):
    """A name and three numbers of at least 0."""

    name: str
    a: int = 0
    b: int = 0
    c: int = 0


@dataclasses.dataclass(eq=False)
class Holder:
    """A row with its receipt, and what it will run.

    Attributes:
      row: as the oracle has it.
      lease: its receipt.
      script: what it will run.
      promise: a length to which it was said that it can come back, and the furthest
        that it may have stood meanwhile.
    """

    row: Row
    lease: Lease
    script: list[int]
    promise: tuple[int, int] | None = None


class Planned(NamedTuple):
    """A plan, what it must be, and what its row will run."""

    plan: ResumePlan
    expected: Expected
    script: list[int]


class Machine:
    """One cache under operations; every one is checked.

    Attributes:
      model: the toy.
      width: tokens of one row in one step.
      objects: the store that outlives the process, if there is one.
      manifests: of its records, those that were compared.
      tier: the outer tier, if there is one.
      cache: the newest value.
      prefixes: its claims.
      registry: what they count.
      oracle: what all of them must be.
      identities: producers; the first two differ in weights, the third is a tenant's,
        the last one is not complete.
      occupied: per pool, the blocks that were in use after the last operation.
      placed: likewise, the places of the tier.
      holders: who has a row.
      plans: some of those made before.
      loads: receipts of some that were asked for.
      older: an older value of the cache.
      void: a receipt that holds no more.
      identity: number of the producer that is served.
      scopes: per producer, how widely it is reused.
      generations: per producer, how often that changed.
      mismatches: shadow runs that differed.
      counts: operations by name, without those that found nothing to do.
      verdicts: plans by verdict.
      origins: plans of a replay that goes on from pools that were kept.
      loaded: what became of loads, once per poll: by stage how they ended,
        ``REGISTERED`` if they came; ``ROOM`` for one that waits for free blocks,
        ``LATE`` for one that waits for what is still on its way.
      found: plans for which something of the store was claimed.
      tokens: tokens run.
    """

    def __init__(
        self,
        model: toy.Model,
        tier_grids: int = 0,
        width: int = 8,
        known_grids: int = 0,
    ):
        """An empty cache, no claims, and an empty store.

        Args:
          model: the toy; with a forward pass of its own only verdicts and facts are
            compared, for its values are unknown.
          tier_grids: grid units of every form that an outer tier holds; 0 for no tier.
          width: tokens of one row in one step.
          known_grids: grid units besides, of which the tier has places for what lies in
            a store; 0 for no store.

        Raises:
          ValueError: for a model without a form that grows with the history, or a store
            without a tier.
        """
        base = model.identity
        self.model, self.width = model, width
        self.identities = (
            base,
            dataclasses.replace(base, weights="other weights"),
            base.within("tenant"),
            dataclasses.replace(base, weights=""),
        )
        if known_grids and not tier_grids:
            raise ValueError("What a store has needs places in a tier; give it one.")
        self._grids = tier_grids, known_grids
        self.objects = Written() if known_grids else None
        self.manifests: dict[str, bytes] = {}
        self._records = Records(pools_of(model), model.grid) if known_grids else None
        self.counts: collections.Counter = collections.Counter()
        self.verdicts: collections.Counter = collections.Counter()
        self.loaded: collections.Counter = collections.Counter()
        self._saved: collections.Counter = collections.Counter()
        self.tokens = self.origins = self.found = 0
        self.identity = 0
        self._begin()
        random = np.random.default_rng(11)
        shape = (_STREAMS, model.max_length + width)
        self.streams: list[list[int]] = random.integers(0, toy.VOCAB, shape).tolist()

    def set_cost(self) -> None:
        """Plans weigh by the oracle's rates."""
        rates = self.oracle.store.rates
        self.prefixes.cost = CostModel(
            rates.token,
            rates.byte,
            seconds_per_load=rates.load,
            store_seconds_per_byte=rates.stored_byte,
            store_seconds_per_load=rates.stored_load,
        )

    @property
    def saved(self) -> collections.Counter:
        """Saves by how they ended, in all processes."""
        return self._saved + self.oracle.saves.ends

    def restart(self) -> None:
        """The process ends; another one has nothing but what lies in the store."""
        self._saved, rates = self.saved, self.oracle.store.rates
        self._begin()
        # The machine is as fast as before.
        self.oracle.store.rates = rates
        self.set_cost()

    def _begin(self) -> None:
        model, (grids, known) = self.model, self._grids
        self.tier = None
        if grids:
            budget = tier_bytes(model.plan, grids, known)
            self.tier = FaultyTier(
                model.plan, budget=budget, known_tokens=known * model.grid
            )
        places = self.tier.places if self.tier else ()
        self.oracle = Oracle(
            model,
            [len(table.stage) for table in places],
            places_for(model.plan, grids),
            lambda: int(self.cache.clock),
            self._records,
        )
        if not self.oracle.prunes:
            raise ValueError(
                "No form of this model grows with the history: a replay rebuilds all "
                "of it, nothing is ever lost; give it a layer with global entries."
            )
        self.registry = MemoryRegistry()
        self.prefixes = PrefixCache(
            model.plan,
            # Every hit is due for a shadow run: the operation decides which are.
            policy=ReusePolicy(Scope.NAMESPACE, shadow_share=1.0),
            metrics=Metrics(self.registry),
            tier=self.tier,
            store=self.objects,
            executor=Inline() if self.objects is not None else None,
            at=lambda point: self._interrupt(point),
        )
        self.set_cost()
        # What is loaded before the first step donates the cache; the model's is shared.
        self.cache = model.empty if self.objects is None else init(model.plan)
        self.occupied = [
            Occupied({}, np.asarray(table.epoch)) for table in self.cache.tables
        ]
        self.placed = [Occupied({}, table.epoch.copy()) for table in places]
        self.scopes = [Scope.NAMESPACE] * len(self.identities)
        self.generations = [0] * len(self.identities)
        self.mismatches = 0
        self.holders: list[Holder] = []
        self.plans: list[Planned] = []
        self.loads: list[Load] = []
        self.older: HybridCache | None = None
        self.void: Lease | None = None
        self._interrupt: Callable[[Point], None] = _go_on
        self._record_moves()

    def apply(self, operation: Operation) -> bool:
        """Runs one operation on the library and on the oracle.

        Args:
          operation: a name and numbers.

        Returns:
          Whether there was anything to do.

        Raises:
          DivergenceError: if the library did something else than the oracle.
        """
        before, process = self.cache, self.prefixes
        done = OPERATIONS[operation.name](self, *operation[1:])
        if done:
            self.counts[operation.name] += 1
            compare.facts(self)
        if process is self.prefixes and int(before.stamp) != int(self.cache.stamp):
            self.older = before
        return done

    # What operations do to the library.

    def cut(self, point: Point, call: Callable[[], Any], passes: int = 0) -> bool:
        """Runs a call that is to die at a point; whether it did.

        Args:
          point: where.
          call: what it would have returned is lost.
          passes: how often the point is passed before.
        """
        self._interrupt = Interrupt(point, passes=passes)
        try:
            call()
        except InjectedError:
            return True
        finally:
            self._interrupt = _go_on
        return False

    def refused(
        self, errors: type[Exception] | tuple[type[Exception], ...], call, *arguments
    ) -> None:
        """Something that must be refused, and change nothing."""
        try:
            call(*arguments)
        except errors:
            return
        raise DivergenceError(f"{call.__name__}{arguments[1:]} was to raise {errors}.")

    def same(self, what: str, got, want) -> None:
        """Something that the library says, and what it was to say."""
        if got != want:
            raise DivergenceError(f"{what}: {got}, expected {want}.")

    def run(
        self,
        parts: Sequence[tuple[Lease, Sequence[int]]],
        statuses: Sequence[Status],
        holders: Sequence[tuple[Holder, Sequence[int]]],
    ) -> None:
        """One step of the library, with what must come of it.

        Args:
          parts: receipts and tokens.
          statuses: what must become of each.
          holders: those of the first parts, for what they must have read.
        """
        if len(parts) > self.model.rows:
            parts, statuses = parts[: self.model.rows], statuses[: self.model.rows]
        inputs = batch_inputs(
            [(lease, list(tokens)) for lease, tokens in parts],
            batch=self.model.rows,
            width=self.width,
        )
        self.cache, status, reads = self.model.step(self.cache, inputs)
        codes, values = np.asarray(status), np.asarray(reads)
        got = [Status(int(code)) for code in codes[: len(parts)]]
        self.same("status", got, list(statuses))
        for place, (holder, tokens) in enumerate(holders):
            if got[place] == Status.OK:
                self.learn(holder)
                self.tokens += len(tokens)
                compare.reads(self, holder, values[:, place, : len(tokens)])

    # Rows and plans.

    def holder(self, a: int) -> Holder | None:
        """One of those who have a row."""
        return self.holders[a % len(self.holders)] if self.holders else None

    def chosen(self, a: int) -> list[Holder]:
        """Those in the bits of ``a``."""
        return [holder for n, holder in enumerate(self.holders) if a >> n & 1]

    @property
    def full(self) -> bool:
        """Whether every row is taken."""
        return len(self.holders) == self.model.rows

    def hold(self, row: Row, lease: Lease, script: Sequence[int]) -> Holder:
        """Somebody has a row now."""
        holder = Holder(row, lease, list(script))
        self.holders.append(holder)
        self.learn(holder)
        return holder

    def other_way(self, holder: Holder, a: int) -> None:
        """Other tokens from here on, unless a replay is to run those it knows."""
        length = holder.row.length
        if holder.row.exact:
            holder.script[length:] = self.streams[a % _STREAMS][length:]

    def prompt(
        self, a: int, b: int, c: int, stored: Sequence[Sequence[int]] = ()
    ) -> tuple[list[int], list[int]]:
        """What a row would run for good, and the part of it that is a prompt.

        Args:
          a: which tokens.
          b: how many of them.
          c: where they go another way.
          stored: what to begin with, one of these; without them any tokens will do.
        """
        script, longest = list(self.streams[a % 4 % _STREAMS]), self.model.max_length
        if stored:
            found = stored[a // 4 % len(stored)]
            # Rarely less than all of it: the last token is run in any case.
            cut = len(found) if c % 4 else c // 4 % len(found)
            script[:cut] = found[:cut]
            return script, script[: min(longest, cut + 1 + b % 4)]
        if c % 2:
            cut = c // 2 % longest
            script[cut:] = self.streams[a // 4 % _STREAMS][cut:]
        return script, script[: b % (longest + 1)]

    def learn(self, holder: Holder) -> None:
        """Reads which places a row's new blocks were handed, and where it stands."""
        if holder.promise and not (
            holder.promise[0] <= holder.row.length <= holder.promise[1]
        ):
            holder.promise = None
        for index, pool in enumerate(self.oracle.pools):
            new = [b for b in holder.row.blocks[index].values() if b.id < 0]
            if not new:
                continue
            columns = np.asarray(self.cache.rows.blocks[index])[holder.lease.row]
            for block in new:
                place = int(columns[block.number % pool.columns])
                used = place in self.oracle.blocks.at[index]
                if not 0 <= place < pool.count or used:
                    raise DivergenceError(
                        f"Pool {index}: row {holder.lease.row} was handed block "
                        f"{place} for its block {block.number}; it is not free."
                    )
                block.id = place
                self.oracle.blocks.at[index][place] = block

    def ages(self) -> list[list[int]]:
        """Per pool and place, when a block was last in use."""
        return [np.asarray(table.used).tolist() for table in self.cache.tables]

    def _record_moves(self) -> None:
        """The oracle is told which places and names were handed out."""
        index, moves = self.prefixes._index, self.oracle.tier.moves
        move = index.move

        def recorded(pool, old, new):
            moves[pool].update(zip(old[0].tolist(), new[0].tolist(), strict=True))
            move(pool, old, new)

        index.move = recorded
        if self.objects is None:
            return
        tier, told = self.tier, self.oracle.tier.claimed
        assert tier is not None
        claim = tier.claim

        def claimed(pool, *wanted, **facts):
            places = claim(pool, *wanted, **facts)
            told[pool] += places.tolist()
            return places

        tier.claim = claimed
        self.objects.names_written = self.oracle.records.told


@dataclasses.dataclass
class Written(MemoryStore):
    """A store that tells the names of the records and packs that are written.

    Attributes:
      names_written: in order.
    """

    names_written: list[str] = dataclasses.field(default_factory=list)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """See ``PrefixStore``."""
        super().put(name, data)
        if name.startswith(("records/", "packs/")):
            self.names_written.append(name)


def _go_on(point: Point) -> None:
    del point
