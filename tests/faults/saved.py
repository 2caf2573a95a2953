"""A session whose prefixes outlive it: for the tests of a cache over a store."""

from tiered import Tiered

import hybridcache_jax as hc
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.testing.stores import Inline, MemoryStore


class Saved(Tiered):
    """A session over a store, whose evicted blocks move to a tier first."""

    def __init__(
        self, some, store=None, *, budget="1MiB", known=64, window=None, **options
    ):
        self.objects = MemoryStore() if store is None else store
        self.registry = hc.MemoryRegistry()
        options.setdefault("executor", Inline())
        self.options = {"budget": budget, "known": known, "window": window, **options}
        super().__init__(
            some,
            # A load donates it, and the model's own is everybody's.
            hc.init(some.plan),
            budget=budget,
            known=known,
            store=self.objects,
            metrics=hc.Metrics(self.registry),
            **options,
        )
        if window is not None:
            self.prefixes._outer.staging.window = window

    def restarted(self, **changed):
        """Another process: nothing is left but what lies in the store."""
        return Saved(self.model, self.objects, **(self.options | changed))

    def store_cold(self, tokens):
        """Runs a prompt without looking what there is of it, and stores it."""
        lease = self.acquire(self.prefixes.cold_plan(tokens, self.model.identity))
        self.feed(lease, tokens)
        self.release(lease)

    def save(self):
        """Everything that was published is in the store."""
        self.put(self.prefixes.flush(self.cache))

    def load_whole(self, tokens):
        """How a load ends that comes a window at a time, or that it has no room."""
        load = self.ask(tokens)
        while True:
            report = next(each for each in self.poll() if each.load == load)
            if report.failed or report.stage != LoadStage.READ:
                return report

    def ends(self):
        """How saves ended, by how many."""
        samples = self.registry.snapshot()["hybridcache_saves_total"]["samples"]
        return {sample["labels"]["end"]: sample["value"] for sample in samples}

    def total(self, name):
        """A counter over all its labels."""
        samples = self.registry.snapshot()[f"hybridcache_{name}"]["samples"]
        return sum(sample["value"] for sample in samples)
