"""An engine's host side made of the library's own calls, with facts alone.

Steps reserve, seal and let go of blocks as a model's step does, but no layer writes
anything: the scenarios ask where blocks are, not what they hold.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

import hybridcache_jax as hc
from hybridcache_jax import append, eviction
from hybridcache_jax.claims import Claims
from hybridcache_jax.codes import Stage, Status
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.lineage import OnFacts
from hybridcache_jax.offload.loads import Load, LoadReport
from hybridcache_jax.rows import block_numbers
from hybridcache_jax.testing.audit import violations
from hybridcache_jax.testing.faults import FaultyTier

VOCAB = 1 << 20
IDENTITY = hc.Identity(weights="weights", config="config", layout="layout")
FOREIGN = VOCAB - 1  # a token that no scenario has
_FACT_BYTES = 48  # what a tier counts per place besides its bytes


def _facts_step(cache, inputs):
    cache, step = append.begin(cache, inputs, VOCAB)
    return append.end(cache, step), step.status


_STEP = OnFacts(_facts_step)
_EVICT = jax.jit(eviction.evict)


@dataclasses.dataclass
class Sequence:
    """One request: its tokens, its namespace, and its row once it has one."""

    tokens: list[int]
    namespace: str = ""
    lease: hc.Lease | None = None
    length: int = 0


class Tier(FaultyTier):
    """A tier of so many grid units of tokens, whose contents can vanish."""

    def __init__(self, plan: hc.CapacityPlan, grids: int):
        per_grid = sum(
            (pool.block_bytes + _FACT_BYTES) * (plan.spec.grid // pool.block_tokens)
            for pool in plan.spec.pools
        )
        index = plan.index_bytes(grids * plan.spec.grid)
        super().__init__(plan, budget=grids * per_grid + index)

    def held(self, pool: int) -> list[int]:
        """Places of a pool that hold a block, in the order of their positions."""
        table = self.places[pool]
        held = np.flatnonzero(table.stage == Stage.ON_DISK)
        return held[np.argsort(table.first[held], kind="stable")].tolist()

    def payloads(self, pool: int) -> list[int]:
        """Places of a pool of which there are bytes."""
        return list(self._payloads[pool])

    def lose(self, pool: int, place: int) -> None:
        """The content is gone, the facts do not know it."""
        del self._payloads[pool][place]


class Host:
    """One cache, its stored prefixes, and the laws checked at every change."""

    def __init__(
        self,
        plan: hc.CapacityPlan,
        tier: Tier | None = None,
        metrics: hc.Metrics = hc.Metrics(),
        **options: Any,
    ):
        self.plan = plan
        self.cache = hc.init(plan)
        policy = hc.ReusePolicy("namespace")
        self.prefixes = hc.PrefixCache(
            plan, policy=policy, tier=tier, metrics=metrics, **options
        )

    def put(self, cache: hc.HybridCache) -> None:
        assert violations(cache) == []
        for counts in self.prefixes.account(cache).values():
            total = counts.pop("total")
            assert sum(counts.values()) == total
        self.cache = cache

    def match(self, tokens, namespace: str = "") -> hc.ResumePlan:
        plan = self.prefixes.match(self.cache, tokens, IDENTITY.within(namespace))
        assert plan.tokens_to_run + plan.start == len(tokens)
        return plan

    def look_up(self, tokens, namespace: str = "") -> hc.ResumePlan:
        """A match that may use all the tokens: one more, which is stored nowhere."""
        return self.match([*tokens, FOREIGN], namespace)

    def open(self, sequence: Sequence, plan: hc.ResumePlan | None = None) -> None:
        """Hands out a row: under a plan, or cold."""
        if plan is None:
            identity = IDENTITY.within(sequence.namespace)
            plan = self.prefixes.cold_plan(sequence.tokens, identity)
        cache, sequence.lease = self.prefixes.acquire(self.cache, plan)
        self.put(cache)
        sequence.length = plan.start

    def run(self, sequence: Sequence, end: int, *, publish: bool = True) -> bool:
        """Runs a sequence up to ``end`` in steps as long as the plan allows.

        Returns:
          False if there was no room even after evicting; the row stays where it was.
        """
        assert sequence.lease is not None
        while sequence.length < end:
            stop = min(end, sequence.length + self.plan.max_chunk)
            needs = self._new_blocks(sequence.length, stop)
            self.put(self.prefixes.make_room(self.cache, needs))
            tokens = sequence.tokens[sequence.length : stop]
            inputs = hc.batch_inputs(
                [(sequence.lease, tokens)], batch=1, width=self.plan.max_chunk
            )
            cache, status = _STEP(self.cache, inputs)
            self.put(cache)
            if int(status[0]) == Status.NO_ROOM:
                return False
            assert int(status[0]) == Status.OK, Status(int(status[0])).explanation
            sequence.length = stop
        if publish:
            self.put(self.prefixes.publish(self.cache, sequence.lease))
        return True

    def close(self, sequence: Sequence, *, publish: bool = True) -> None:
        assert sequence.lease is not None
        self.put(self.prefixes.release(self.cache, sequence.lease, publish=publish))
        sequence.lease = None

    def store(self, tokens, *, ends=(), namespace: str = "", cold=False) -> Sequence:
        """Runs a prompt, stopping and publishing at ``ends``, and gives it back."""
        sequence = Sequence(list(tokens), namespace)
        self.open(sequence, None if cold else self.match(tokens, namespace))
        for end in (*ends, len(sequence.tokens)):
            assert self.run(sequence, max(end, sequence.length))
        self.close(sequence)
        return sequence

    def drop(self, tokens, pool: int, block: int, namespace: str = "") -> None:
        """Loses one stored block behind the index's back; nothing if none is stored."""
        ids = self.claims(tokens, namespace).blocks[pool]
        if block >= len(ids) or ids[block] >= self.plan.blocks[pool]:
            return
        cache = self._aged(pool, ids[block])
        table = _EVICT(cache.tables[pool], np.int32(1))
        assert table.stage[ids[block]] == Stage.FREE
        self.put(_with_table(cache, pool, table))

    def demote(self, tokens, pool: int, block: int) -> None:
        """Moves one stored block to the tier."""
        self.cache = self._aged(pool, self.claims(tokens).blocks[pool][block])
        self.evict([int(number == pool) for number in range(len(self.plan.blocks))])
        assert self.claims(tokens).blocks[pool][block] > self.plan.blocks[pool]

    def move_out(self) -> None:
        """Evicts all that is stored; with a tier it moves there."""
        self.evict(self.plan.blocks)

    def ask(self, tokens, *, deadline: int | None = None) -> Load:
        """Asks for what a prompt, used whole, waits for."""
        plan = self.look_up(tokens)
        return self.prefixes.load(self.cache, plan, deadline=deadline)

    def poll(self) -> tuple[LoadReport, ...]:
        cache, reports = self.prefixes.poll(self.cache)
        self.put(cache)
        return reports

    def load(self, tokens) -> LoadReport:
        """How what a prompt waits for stands after one poll."""
        load = self.ask(tokens)
        return next(report for report in self.poll() if report.load == load)

    def wait(self, ticks: int) -> None:
        """Lets so many ticks of the clock pass, or one more."""
        end = int(self.cache.clock) + ticks
        while self.cache.clock < end:
            row = Sequence([FOREIGN - 1])
            self.open(row)
            self.close(row, publish=False)

    def evict(self, counts) -> None:
        """Evicts stored blocks, so many per pool."""
        free = [int(table.num_free) for table in self.cache.tables]
        wanted = [have + more for have, more in zip(free, counts, strict=True)]
        self.put(self.prefixes.make_room(self.cache, wanted))

    def claims(self, tokens, namespace: str = "") -> Claims:
        """What the index says of a prompt, whatever the facts are."""
        return self.look_up(tokens, namespace).claims

    def held(self, tokens, pool: int, namespace: str = "") -> list[int]:
        """Numbers of the stored blocks of a prompt in one pool."""
        claims = self.claims(tokens, namespace)
        ids, epochs = claims.blocks[pool], claims.epochs[pool]
        table = self.cache.tables[pool]
        place = np.minimum(ids, self.plan.blocks[pool] - 1)
        good = (ids < self.plan.blocks[pool]) & (np.array(table.epoch)[place] == epochs)
        good &= np.array(table.stage)[place] == Stage.SEALED
        return np.flatnonzero(good).tolist()

    def held_ids(self, tokens, pool: int) -> set[int]:
        """Ids of the stored blocks of a prompt in one pool."""
        ids = self.claims(tokens).blocks[pool]
        return set(ids[self.held(tokens, pool)].tolist())

    def uses(self, pool: int, ids) -> set[tuple[int, int]]:
        """Ids with their epochs: what is handed out again is another use."""
        epochs = np.array(self.cache.tables[pool].epoch)
        return {(block, int(epochs[block])) for block in ids}

    def needed(self, pool: int, point: int) -> list[int]:
        """Numbers of the blocks that resuming at ``point`` reads in one pool."""
        spec = self.plan.spec.pools[pool]
        lo, hi = required(spec.form, spec.geometry, point)
        return [
            number
            for number in range(-(-point // spec.block_tokens))
            if number * spec.block_tokens < hi and (number + 1) * spec.block_tokens > lo
        ]

    def row_blocks(self, sequence: Sequence, pool: int) -> dict[int, int]:
        """Number to id of the blocks that a row refers to in one pool."""
        assert sequence.lease is not None
        row = sequence.lease.row
        ids = np.array(self.cache.rows.blocks[pool])[row]
        held = np.array(self.cache.rows.held)[row, pool]
        reach = np.array([max(np.array(self.cache.rows.length)[row], held)])
        size = self.plan.spec.pools[pool].block_tokens
        numbers = block_numbers(reach, size, len(ids))[0]
        return {
            int(number): int(block)
            for number, block in zip(numbers, ids, strict=True)
            if number >= 0 and block < self.plan.blocks[pool]
        }

    def used(self) -> int:
        """Blocks that rows refer to, over all pools."""
        return sum(
            counts["pinned"] + counts["writing"]
            for counts in self.prefixes.account(self.cache).values()
        )

    def _aged(self, pool: int, block: int) -> hc.HybridCache:
        """The cache with one block the longest unused of its pool."""
        used = np.array(self.cache.tables[pool].used)
        used[block] = -1
        table = dataclasses.replace(self.cache.tables[pool], used=used)
        return _with_table(self.cache, pool, table)

    def _new_blocks(self, start: int, end: int) -> list[int]:
        """Per pool, blocks that a step from ``start`` to ``end`` asks for."""
        counts = []
        for pool in self.plan.spec.pools:
            last = (end - 1) // pool.block_tokens
            begun = (start - 1) // pool.block_tokens if start else -1
            if RULES[pool.form].exact:
                counts.append(int(last > begun))
            else:
                counts.append(last - begun)
        return counts


def _with_table(cache: hc.HybridCache, pool: int, table) -> hc.HybridCache:
    tables = list(cache.tables)
    tables[pool] = table
    return dataclasses.replace(cache, tables=tuple(tables))


def hit(plan: hc.ResumePlan) -> int:
    """Tokens proved for every form on the device, whatever else was weighed."""
    ready = (way for way in plan.alternatives if way.verdict == hc.Verdict.RESUMABLE)
    return max((way.length for way in ready), default=0)
