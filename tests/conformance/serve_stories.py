"""Scenarios of whole serving loops: resumed as cold, and blocks that add up."""

import collections
import random

import numpy as np
from engine_stories import bound
from host import Host, Sequence, Tier
from scenario_spec import plan

import hybridcache_jax as hc
from hybridcache_jax.codes import Stage
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.testing import toy, toy_models
from hybridcache_jax.testing.audit import violations

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)


def cold_and_resumed(scenario: dict):
    """A prompt cold, stored, and resumed: what is reused and run add up to it.

    What is read there is compared in a toy of other sizes that has the same forms.
    """
    host = Host(plan(scenario["groups"], length=256, chunk=64))
    prompt, cached, sums = list(range(200)), {}, []
    for step in scenario["steps"]:
        reuse, row = step["cache"] == "on", Sequence(prompt)
        host.open(row, host.match(prompt) if reuse else None)
        assert row.lease is not None
        cached[step["as"]] = row.lease.plan.start
        # What is run is read off the row: it ends where it would end cold.
        before = int(host.cache.rows.length[row.lease.row])
        assert host.run(row, len(prompt), publish=reuse)
        processed = int(host.cache.rows.length[row.lease.row]) - before
        sums.append(row.lease.plan.start + processed)
        host.close(row, publish=reuse)
    assert cached["cold"] == cached["warm1"] == 0
    yield "warm2", "cached_gt", True, cached["warm2"] > 0
    yield "always", "cached_plus_processed", [len(prompt)] * 3, sums
    cold, again, warm = _distributions(toy_models.recurrent())
    yield "warm2", "kl_le", True, _divergence(cold, warm) <= _divergence(cold, again)


def conservation(scenario: dict):
    """Random requests among faults; blocks of every form add up after each."""
    asked = scenario["steps"][0]
    loop = Loop(bound(scenario["groups"], 1, 4))
    for _ in range(asked["requests"]):
        loop.request()
    # Each fault was met, many times over.
    assert set(loop.met) == set(asked["faults"])
    assert min(loop.met.values()) >= asked["requests"] // 50, loop.met
    yield "c", "holds", True, loop.holds


class AtIdle(Host):
    """A host whose changes are not looked at one by one."""

    def put(self, cache: hc.HybridCache) -> None:
        self.cache = cache


class Loop:
    """Requests over a small cache with a small tier, and things that go wrong."""

    length = 8

    def __init__(self, groups: list[dict]):
        capacity = plan(groups, length=16, rows=2, blocks=(40,) * len(groups))
        self.registry = hc.MemoryRegistry()
        self.tier = Tier(capacity, 16)
        self.host = AtIdle(capacity, self.tier, hc.Metrics(self.registry))
        self.draw = random.Random(3)
        self.rows: list[Sequence] = []
        self.met: collections.Counter[str] = collections.Counter()
        self.holds = True

    def request(self) -> None:
        """One more request; the one before it may still run."""
        while len(self.rows) == self.host.plan.max_sequences:
            self._finish(self.rows.pop(self.draw.randrange(len(self.rows))))
        row = Sequence([self.draw.randrange(2) for _ in range(self.length)])
        found = self.host.match(row.tokens)
        if found.verdict == hc.Verdict.NEEDS_IO:
            found = self._loaded(row, found)
        self.host.open(row, found)
        self.rows.append(row)
        self._run(row)
        if self.draw.random() < 0.3:
            self._evict()
        self.holds &= violations(self.host.cache) == []
        self._look()

    def _loaded(self, row: Sequence, found: hc.ResumePlan) -> hc.ResumePlan | None:
        """What there is once the load has come, was given up, or lost what it needs."""
        self.tier.delay(self.draw.choice([0, 3]))
        load = self.host.prefixes.load(self.host.cache, found)
        (report,) = self.host.poll()
        waits = not report.ready and not report.failed
        self._look()
        if waits and self.draw.random() < 0.5:
            self._evict()
            self.met["evict during load"] += 1
        if waits and self.draw.random() < 0.3:
            self.host.prefixes.cancel(load)
            self.met["abort mid-load"] += 1
        self.tier.delay(0)
        for report in self.host.poll():
            assert report.stage in (LoadStage.REGISTERED, LoadStage.ROOM), report
            if not report.ready:
                self.host.prefixes.cancel(report.load)
        self._look()
        found = self.host.match(row.tokens)
        return None if found.verdict == hc.Verdict.NEEDS_IO else found

    def _run(self, row: Sequence) -> None:
        end = self.draw.randrange(row.length + 1, self.length + 1)
        if not self.host.run(row, end):
            self.rows.remove(row)
            self.host.close(row, publish=False)

    def _finish(self, row: Sequence) -> None:
        if row.length < self.length and self.draw.random() < 0.3:
            self.met["abort mid-prefill"] += 1
            self.host.close(row, publish=False)
        else:
            done = self.host.run(row, self.length)
            self.host.close(row, publish=done)
        self._look()

    def _evict(self) -> None:
        """Makes room; now and then the tier takes nothing."""
        fails = self.draw.random() < 0.3
        self.tier.fail_stores(OSError("the tier takes nothing") if fails else None)
        before = self.registry.value("hybridcache_store_failures_total")
        self.host.evict([self.draw.randrange(16) for _ in self.host.plan.blocks])
        after = self.registry.value("hybridcache_store_failures_total")
        assert fails or after == before
        self.met["backup failure"] += after > before
        self.tier.fail_stores(None)

    def _look(self) -> None:
        """Counts every block by hand, on the device and outside."""
        cache = self.host.cache
        accounts = self.host.prefixes.account(cache)
        for number, spec in enumerate(self.host.plan.spec.pools):
            table, account = cache.tables[number], dict(accounts[spec.name])
            used = collections.Counter(self._of_rows(number))
            free = np.array(table.free)[: int(table.num_free)].tolist()
            kept = np.flatnonzero(np.array(table.kept)).tolist()
            held = {*used, *kept}
            total = self.host.plan.blocks[number]
            # Every block is free or held, and pinned as often as rows refer to it.
            self.holds &= sorted([*free, *held]) == list(range(total))
            pins = np.array(table.pins).tolist()
            self.holds &= pins == [used[block] for block in range(total)]
            self.holds &= account.pop("total") == sum(account.values()) == total
            self.holds &= account["free"] == len(free)
            self.holds &= account["evictable"] == len(held - set(used))
            places = self.tier.places[number].stage
            outside = np.flatnonzero(places == Stage.ON_DISK).tolist()
            self.holds &= outside == sorted(self.tier.payloads(number))
            self.holds &= bool(np.isin(places, [Stage.ON_DISK, Stage.FREE]).all())

    def _of_rows(self, pool: int):
        """Ids that rows refer to, once per row."""
        for row in self.rows:
            if row.lease is not None:
                yield from set(self.host.row_blocks(row, pool).values())


STORIES = {"e2e-01": cold_and_resumed, "e2e-03": conservation}


def _distributions(model: toy.Model) -> list[np.ndarray]:
    """Of a prompt cold, cold again, and resumed: what its last token read."""
    identity, cache = model.identity, model.empty
    prefixes = hc.PrefixCache(model.plan, policy=hc.ReusePolicy("namespace"))
    found = []
    for reuse in (False, False, True):
        resumed = prefixes.match(cache, PROMPT, identity)
        chosen = resumed if reuse else prefixes.cold_plan(PROMPT, identity)
        assert bool(chosen.start) == reuse
        cache, lease = prefixes.acquire(cache, chosen)
        reads = np.zeros(())
        for at in range(chosen.start, len(PROMPT)):
            inputs = hc.batch_inputs(
                [(lease, PROMPT[at : at + 1])], batch=model.rows, width=8
            )
            cache, status, reads = model.step(cache, inputs)
            assert int(status[0]) == hc.Status.OK
            if at + 1 == model.grid:
                cache = prefixes.publish(cache, lease)
        cache = prefixes.release(cache, lease)
        last = np.abs(np.asarray(reads, np.float64)[:, 0, 0]).ravel() + 1e-9
        found.append(last / last.sum())
    return found


def _divergence(one: np.ndarray, other: np.ndarray) -> float:
    """Kullback-Leibler divergence, in nats."""
    return float(np.sum(one * np.log(one / other)))
