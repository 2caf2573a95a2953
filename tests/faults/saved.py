"""A session whose prefixes outlive it: for the tests of a cache over a store."""

import toy
from tiered import FORMS

import hybridcache_jax as hc
from hybridcache_jax import Verdict
from hybridcache_jax.testing.faults import FaultyTier
from hybridcache_jax.testing.stores import Inline, MemoryStore


class Saved(toy.Session):
    """A session over a store, whose evicted blocks move to a tier first."""

    def __init__(self, some, store=None, *, budget="1MiB", known=64, **options):
        self.objects = MemoryStore() if store is None else store
        self.tier = FaultyTier(some.plan, budget=budget, known_tokens=known)
        self.registry = hc.MemoryRegistry()
        options.setdefault("executor", Inline())
        self.options = {"budget": budget, "known": known, **options}
        super().__init__(
            some,
            # A load donates it, and the model's own is everybody's.
            hc.init(some.plan),
            tier=self.tier,
            store=self.objects,
            metrics=hc.Metrics(self.registry),
            **options,
        )

    def restarted(self, **changed):
        """Another process: nothing is left but what lies in the store."""
        return Saved(self.model, self.objects, **(self.options | changed))

    def save(self):
        """Everything that was published is in the store."""
        self.put(self.prefixes.flush(self.cache))

    def move_out(self):
        for form in FORMS:
            self.evict(form)

    def ends(self):
        """How saves ended, by how many."""
        samples = self.registry.snapshot()["hybridcache_saves_total"]["samples"]
        return {sample["labels"]["end"]: sample["value"] for sample in samples}

    def total(self, name):
        """A counter over all its labels."""
        samples = self.registry.snapshot()[f"hybridcache_{name}"]["samples"]
        return sum(sample["value"] for sample in samples)

    def load(self, tokens):
        """Asks for what a prompt waits for; how that stands after two polls."""
        plan = self.match(tokens)
        assert plan.verdict == Verdict.NEEDS_IO
        load = self.prefixes.load(self.cache, plan)
        for _ in range(2):
            cache, reports = self.prefixes.poll(self.cache)
            self.put(cache)
            for report in reports:
                if report.load == load:
                    return report
        return None

    def admit(self, tokens):
        if self.match(tokens).verdict == Verdict.NEEDS_IO:
            self.load(tokens)
        plan = self.match(tokens)
        if plan.verdict == Verdict.NEEDS_IO:
            plan = self.prefixes.cold_plan(tokens, self.model.identity)
        return self.acquire(plan)
