"""Runs scenarios of prefix trees: insert, match, evict, drop, lock, inspect.

Those engines match a key whole and leave the last token to their callers; here one
token is always run, so a key is looked up with one more that is stored nowhere.
"""

import numpy as np
from host import Host, Sequence, Tier, hit
from not_asked import NOT_ASKED
from scenario_spec import layout, plan

import hybridcache_jax as hc
from hybridcache_jax.retention import Retention

# What the engines call a page or a window where the scenario leaves it open.
SYMBOLS = {"p": 1, "w": 4}
PAGES = {"sgl-tree-01": 16}
# Blocks that end where the scenario does: none is shared in part here.
SMALLER_BLOCKS = {"trt-swa-04": 16, "sgl-rec-05": 64}
# Lengths beyond 16 tokens of pools of single tokens.
LENGTHS = {
    "sgl-swa-09": 26,
    "sgl-swa-15": 29,
    "sgl-rec-05": 193,
    "sgl-tree-01": 49,
    "trt-ssm-01": 65,
    "trt-swa-04": 161,
    "trt-swa-02": 201,
    "trt-het-01": 261,
    "idx-01": 513,
    "iss-side-01": 65,
}
VERDICTS = {
    hc.Verdict.RESUMABLE: "resumable",
    hc.Verdict.NEEDS_IO: "io_wait",
    hc.Verdict.NEEDS_PARTIAL_RECOMPUTE: "partial_recompute",
    hc.Verdict.NEEDS_FULL_RECOMPUTE: "full_recompute",
}


class Tree:
    """One scenario's prefixes, over a host."""

    def __init__(self, scenario: dict):
        self.symbols = SYMBOLS | {"p": PAGES.get(scenario["id"], SYMBOLS["p"])}
        size = SMALLER_BLOCKS.get(scenario["id"])
        groups = [self._bound(group, size) for group in scenario["groups"]]
        self.names = [group["name"] for group in groups]
        self.pools = layout(groups).pools
        ends = any(step.get("minimal_swa") for step in scenario["steps"])
        policy = Retention.ends() if ends else Retention.every_block()
        length = LENGTHS.get(scenario["id"], 16)
        capacity = plan(groups, length=length, retention=policy)
        moves = any(step["op"] == "demote" for step in scenario["steps"])
        self.host = Host(capacity, Tier(capacity, length) if moves else None)
        self.locks: dict[str, Sequence] = {}
        self.slots: dict[int, int] = {}  # of our blocks, as the scenario numbers them

    def run(self, step: dict) -> dict:
        """What one step gives, under the names that the scenarios use."""
        return getattr(self, step["op"])(step) or {}

    def insert(self, step):
        key, space = self.key(step), step.get("ns") or ""
        before = self._held(key, space)
        sequence = Sequence(key, space)
        self.host.open(sequence, self.host.match(key, space))
        if "swa_dead_before" in step:
            # A last step of one token lets go of what that token does not see.
            assert self.host.run(sequence, len(key) - 1, publish=False)
        for end in step.get("snapshots", ()):
            assert self.host.run(sequence, end)
        assert self.host.run(sequence, len(key))
        self.host.close(sequence)
        if "slots" in step:
            ids = self.host.claims(key, space).blocks[self.pools[0]].tolist()
            self.slots |= dict(zip(ids, step["slots"], strict=True))
        after = self._held(key, space)
        added = {
            name: (len(after[name]) - len(before[name])) * self._size(name)
            for name in self.names
        }
        return {"full_added": added.get("full"), "swa_live_added": added.get("swa")}

    def match(self, step):
        key = self.key(step)
        found = self.host.look_up(key, step.get("ns") or "")
        point = hit(found)
        missing = [
            self._name(report.pool)
            for report in found.limiting
            if report.reason != hc.Reason.IN_OUTER_TIER
        ]
        kept = found.history_length
        slots = found.claims.blocks[self.pools[0]].tolist()
        copied = "copy_state_to_request" in step and self._has_state(key, found)
        return {
            "slots": [self.slots.get(block) for block in slots],
            "request_state_equals_cached_state": copied,
            "hit": point,
            "full_hit": kept,
            "attention_only_hit": kept,
            "verdict": VERDICTS[found.verdict],
            "miss_group": missing[0] if missing else None,
            "checkpoint_wanted_at": kept if kept > point else None,
        }

    def evict(self, step):
        before = self.host.prefixes.account(self.host.cache)
        counts = [0] * len(self.host.plan.blocks)
        for name, pool in zip(self.names, self.pools, strict=True):
            counts[pool] = self._number(step.get(name, 0)) // self._size(name)
        self.host.evict(counts)
        after = self.host.prefixes.account(self.host.cache)
        gone = [after[pool]["free"] - before[pool]["free"] for pool in after]
        return {"evicted_ge": sum(gone)}

    def drop(self, step):
        """Loses blocks of one group: all of a key, or the one that ends at a place."""
        name = step["group"]
        pool, size = self.pools[self.names.index(name)], self._size(name)
        if "at" in step:
            self.host.drop(self.stored, pool, step["at"] // size - 1)
            return
        key = self.key(step)
        for block in range(len(key) // size):
            self.host.drop(key, pool, block)

    def lock(self, step):
        key = self.key(step)
        before = self._counts()
        sequence = Sequence(key)
        self.host.open(sequence, self.host.look_up(key))
        self.locks[step["as"]] = sequence
        return self._moved(before)

    def unlock(self, step):
        before = self._counts()
        self.host.close(self.locks.pop(step["lock"]), publish=False)
        return self._moved(before)

    def inspect(self, step):
        key = self.key(step) if "key" in step else self.stored
        held = self._held(key, "")["swa"]
        alive = [block in held for block in range(len(key) // self._size("swa"))]
        return {"segments": _segments(alive, self._size("swa")), "blocks": alive}

    def demote(self, step):
        """Moves all that some groups store to the tier."""
        counts = [0] * len(self.host.plan.blocks)
        for name in step["groups"]:
            pool = self.pools[self.names.index(name)]
            counts[pool] = self.host.plan.blocks[pool]
        self.host.evict(counts)

    def overwrite(self, step):
        """The group's blocks go to another request, and nothing is told."""
        pool = self.pools[self.names.index(step["group"])]
        for block in self.host.held(self.stored, pool):
            self.host.drop(self.stored, pool, block)
        self.host.store([9] * len(self.stored))

    def advance_swa_frontier(self, step):
        """How far a row let go of its window once a position has run."""
        at = step["decode_pos"]
        row = Sequence([7] * (at + 1))
        self.host.open(row)
        assert self.host.run(row, at, publish=False)
        assert self.host.run(row, at + 1, publish=False)
        pool = self.pools[self.names.index("swa")]
        frontier = min(self.host.row_blocks(row, pool)) * self._size("swa")
        self.host.close(row, publish=False)
        return {"frontier": frontier}

    def key(self, step) -> list[int]:
        """Distinct ascending ids per run: the engines' tests count up."""
        key: list[int] = []
        for first, count in step["key"]:
            key += range(first, first + self._number(count))
        if step["op"] == "insert":
            self.stored = key
        return key

    def _number(self, count) -> int:
        """A count such as ``8``, ``"2p"`` or ``"p-1"``."""
        if isinstance(count, int):
            return count
        factor, _, rest = count.partition("p")
        return int(factor or 1) * self.symbols["p"] + int(rest or 0)

    def expected(self, name: str, value):
        """A scenario's expectation with its symbols bound."""
        if name in ("hit", "full_hit") and value is not None:
            return self._number(value)
        return value

    def _bound(self, group: dict, size: int | None) -> dict:
        page, window = group["block_size"], group["window"]
        return {
            **group,
            "block_size": size or self.symbols.get(page, page),
            "window": self.symbols.get(window, window),
        }

    def _name(self, pool: str) -> str:
        names = [self.host.plan.spec.pools[number].name for number in self.pools]
        return self.names[names.index(pool)]

    def _size(self, name: str) -> int:
        pool = self.pools[self.names.index(name)]
        return self.host.plan.spec.pools[pool].block_tokens

    def _held(self, key, space) -> dict[str, list[int]]:
        return {
            name: self.host.held(key, pool, space)
            for name, pool in zip(self.names, self.pools, strict=True)
        }

    def _has_state(self, key, found) -> bool:
        """Whether a row under a plan holds the very checkpoint that is stored."""
        pool = self.pools[self.names.index("state")]
        row = Sequence(key)
        self.host.open(row, found)
        held = list(self.host.row_blocks(row, pool).values())
        self.host.close(row, publish=False)
        last = found.length // self._size("state") - 1
        return held == [int(found.claims.blocks[pool][last])]

    def _counts(self):
        return self.host.prefixes.account(self.host.cache)

    def _moved(self, before):
        """Tokens of the first group that became pinned, and that can go no more."""
        pool = self.host.plan.spec.pools[self.pools[0]]
        now, size = self._counts()[pool.name], pool.block_tokens
        return {
            "protected_delta": (now["pinned"] - before[pool.name]["pinned"]) * size,
            "evictable_delta": (now["evictable"] - before[pool.name]["evictable"])
            * size,
        }


def outcomes(scenario: dict) -> dict[tuple[str, str], tuple]:
    """What a scenario expects and what we give: ``(step, name)`` to a pair."""
    tree, found = Tree(scenario), {}
    skipped = NOT_ASKED.get(scenario["id"], {})
    for step in scenario["steps"]:
        ours = tree.run(step)
        for name, value in scenario["expect"].get(step.get("as"), {}).items():
            if (step["as"], name) in skipped:
                continue
            want = tree.expected(name, value)
            mine = ours[name]
            if name.endswith("_ge"):
                mine = want if mine >= want else mine
            found[step["as"], name] = (want, mine)
    return found


def _segments(alive: list[bool], size: int) -> list[dict]:
    edges = np.flatnonzero(np.diff(alive)) + 1
    parts = np.split(np.array(alive), edges)
    return [
        {"len": len(part) * size, "swa": "live" if part[0] else "dead"}
        for part in parts
    ]
