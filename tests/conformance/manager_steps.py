"""Runs a scenario of vLLM's cache manager: its steps, in our words.

``alloc`` plans tokens there and makes them findable at once.  Here it runs them in a
step and publishes what was run, for nothing is findable before it is computed.
"""

import itertools
import math

import numpy as np
from host import Host, Sequence, hit
from not_asked import NOT_ASKED
from scenario_spec import layout, plan

import hybridcache_jax as hc
from hybridcache_jax.codes import Stage
from hybridcache_jax.retention import Retention

_GENERATED = 77  # a token that is decoded where the scenario names none


class Manager:
    """One scenario's requests, over a host."""

    def __init__(self, scenario: dict):
        groups, options = scenario["groups"], scenario["options"]
        self.pools = layout(groups).pools
        self.unit = options.get(
            "hash_block_size", math.gcd(*(group["block_size"] for group in groups))
        )
        longest = _longest(scenario["steps"])
        self.host = Host(_capacity(scenario, longest))
        self.requests: dict[str, Sequence] = {}
        self.plans: dict[str, hc.ResumePlan] = {}
        self.last = ""  # the request that was matched last
        self.before_drops: hc.HybridCache | None = None
        tight = scenario["id"] in TIGHT
        self.ballast = _fill_up(self.host, scenario["num_blocks"] - 1) if tight else 0

    def run(self, step: dict) -> dict:
        """What one step gives, under the names that the scenarios use."""
        return getattr(self, step["op"])(step) or {}

    def request(self, step):
        self.requests[step["req"]] = Sequence(
            tokens(step["tokens"]), step.get("salt", "")
        )

    def append(self, step):
        self.requests[step["req"]].tokens += tokens(step["tokens"])

    def match(self, step):
        request = self.requests[step["req"]]
        found = self.host.match(request.tokens, request.namespace)
        self.plans[step["req"]] = found
        self.last = step["req"]
        point = hit(found)
        kept = found.history_length
        return {
            "hit": point,
            "blocks": [self._place(pool, point) for pool in self.pools],
            "lens": [point // self._size(pool) for pool in self.pools],
            "shared_boundary": kept if kept > point else 0,
        }

    def alloc(self, step):
        request = self.requests[step["req"]]
        if request.lease is None:
            found = self.plans[step["req"]] if step.get("use_match") else None
            self.host.open(request, found)
            before = found.length if found else 0
        else:
            before = request.length
        if step["n"] == "rest" or step.get("full_fit"):
            end = len(request.tokens)
        else:
            end = min(before + step["n"] + step.get("external", 0), len(request.tokens))
        given = [set(self._row(request, pool)) for pool in self.pools]
        ok = True
        if "reserved" in step:
            # What others were promised is free still when these tokens have run.
            ok = self.host.run(request, before + step["n"])
            free = [int(table.num_free) for table in self.host.cache.tables]
            ok &= min(free) >= step["reserved"]
        ok &= self.host.run(request, end)
        # A block that fell behind the window in the same step was new as well.
        new = [
            len(set(self._row(request, pool)) - had)
            for pool, had in zip(self.pools, given, strict=True)
        ]
        return {"ok": ok, "new": new, "num_new": new}

    def commit(self, step):
        assert self.requests[step["req"]].length == step["computed"]

    def free(self, step):
        self.host.close(self.requests[step["req"]])

    def preempt(self, step):
        self.host.close(self.requests[step["req"]])

    def step(self, step):
        """Steps of the scheduler bound nothing here: each alloc is one of its own."""

    def cached_units(self, step):
        return {"units": self._units(step["req"], self.pools[step["group"]])}

    def drop(self, step):
        if self.before_drops is None:
            self.before_drops = self.host.cache
        request, pool = self.requests[step["req"]], self.pools[step["group"]]
        end = (step["unit"] + 1) * self.unit
        if end % self._size(pool) == 0:
            block = end // self._size(pool) - 1
            self.host.drop(request.tokens, pool, block, request.namespace)

    def restore(self, step):
        if self.before_drops is not None:
            self.host.put(self.before_drops)
        self.before_drops = None

    def reset(self, step):
        for form in {pool.form for pool in self.host.plan.spec.pools}:
            self.host.put(self.host.prefixes.evict(self.host.cache, form))
        return {"ok": self.host.prefixes.stored_tokens == 0}

    def refs(self, step):
        """References to the blocks of the last hit."""
        found = self.plans[self.last]
        pool = self.pools[0]
        ids = found.claims.blocks[pool][: hit(found) // self._size(pool)]
        return {"refs": np.array(self.host.cache.tables[pool].pins)[ids].tolist()}

    def free_count(self, step):
        """As blocks in use: pools are larger here, where nothing must be evicted."""
        return {"count": self.host.used() - self.ballast}

    def retire(self, step):
        """Once settled, the next step lets go of what it does not need."""
        request = self.requests[step["req"]]
        if step["processed"]:
            if len(request.tokens) == request.length:
                request.tokens.append(_GENERATED)
                assert self.host.run(request, request.length + 1)
            else:
                assert request.length == step["processed"]

    def null_count(self, step):
        request = self.requests[step["req"]]
        nulls = []
        for pool in self.pools:
            held = len(self._row(request, pool))
            nulls.append(-(-request.length // self._size(pool)) - held)
        return {"nulls": nulls}

    def check_unique(self, step):
        request = self.requests[step["req"]]
        pins = []
        unique = True
        for pool in self.pools:
            ids = list(self._row(request, pool).values())
            unique &= len(set(ids)) == len(ids)
            pins += np.array(self.host.cache.tables[pool].pins)[ids].tolist()
        return {"unique": unique, "min_ref": min(pins)}

    def block_table(self, step):
        """Nothing to do: the rows have it."""

    def free_order_split(self, step):
        """Blocks that no prefix holds are free; the others wait for an eviction."""
        ok = True
        for table in self.host.cache.tables:
            stage, kept = np.array(table.stage), np.array(table.kept)
            ok &= bool(((stage == Stage.FREE) == ~kept).all())
        return {"ok": ok}

    def copies(self, step):
        """Nothing to count: a block is never copied."""

    def free_order(self, step):
        """Order of the free list: ours is of no consequence."""

    def _row(self, request: Sequence, pool: int) -> dict[int, int]:
        return self.host.row_blocks(request, pool)

    def _size(self, pool: int) -> int:
        return self.host.plan.spec.pools[pool].block_tokens

    def _place(self, pool: int, point: int) -> list[bool]:
        """Per block of a hit, whether resuming there reads it."""
        needed = self.host.needed(pool, point)
        return [n in needed for n in range(point // self._size(pool))]

    def _units(self, name: str, pool: int) -> list[int]:
        request = self.requests[name]
        per_block = self._size(pool) // self.unit
        held = self.host.held(request.tokens, pool, request.namespace)
        return [(block + 1) * per_block - 1 for block in held]


# Scenarios that fill a pool; elsewhere its size is of no consequence.
TIGHT = ("C01", "C05", "C43a")


def outcomes(scenario: dict) -> dict[tuple[str, str], tuple]:
    """What a scenario expects and what we give: ``(step, name)`` to a pair."""
    manager, found = Manager(scenario), {}
    skipped = NOT_ASKED.get(scenario["id"], {})
    for number, step in enumerate(scenario["steps"]):
        ours = manager.run(step)
        for name, value in scenario["expect"].get(str(number), {}).items():
            if (str(number), name) not in skipped:
                want = _as_ours(name, value, scenario["num_blocks"])
                found[str(number), name] = (want, ours[name])
    return found


def tokens(runs) -> list[int]:
    """Token ids of a scenario's run-length pairs or range."""
    if isinstance(runs, dict):
        return list(range(*runs["range"]))
    return list(itertools.chain.from_iterable([token] * count for token, count in runs))


def _as_ours(name: str, value, num_blocks: int):
    """A scenario's number in the terms of :class:`Manager`: no ids, no free list."""
    if name == "new":
        return [len(ids) for ids in value]
    if name == "blocks":
        return [[block != 0 for block in ids] for ids in value]
    if name == "count":
        return num_blocks - 1 - value
    return value


def _longest(steps: list[dict]) -> int:
    """Most tokens that any request comes to, one decoded token included."""
    lengths: dict[str, int] = {}
    for step in steps:
        if step["op"] in ("request", "append"):
            old = lengths.get(step["req"], 0) if step["op"] == "append" else 0
            lengths[step["req"]] = old + len(tokens(step["tokens"]))
    return max(lengths.values()) + 1


def _capacity(scenario: dict, longest: int) -> hc.CapacityPlan:
    groups, options = scenario["groups"], scenario["options"]
    if scenario["id"] in TIGHT:
        spec = layout(groups).spec
        whole = -(-(longest - 1) // spec.grid)
        usable = scenario["num_blocks"] - 1
        blocks = (max(usable, whole + 2),)
        return plan(groups, length=whole * spec.grid, rows=3, blocks=blocks)
    if "max_in_flight_tokens" in options:
        # Two chunks are in flight at once here: one runs, the one before is let go.
        chunk = options["max_in_flight_tokens"] // 2
        whole = options["max_model_len"] // groups[0]["block_size"]
        blocks = (whole, scenario["num_blocks"] - 1 - whole)
        length = options["max_model_len"]
        return plan(groups, length=length, rows=1, chunk=chunk, blocks=blocks)
    interval = options.get("retention_interval")
    return plan(groups, length=longest, retention=retention(interval))


def retention(interval: int | None) -> Retention:
    """Every so many tokens; 0 keeps the ends alone there."""
    if interval is None:
        return Retention.every_block()
    return Retention.every(interval) if interval else Retention.ends()


def _fill_up(host: Host, usable: int) -> int:
    """Takes the blocks that a pool has beyond the scenario's; says how many."""
    spare = host.plan.blocks[0] - usable
    if spare:
        ballast = Sequence([_GENERATED] * (spare * host.plan.spec.grid))
        host.open(ballast)
        assert host.run(ballast, len(ballast.tokens), publish=False)
    return spare
