"""A session over a tier that can go wrong, for the tests of outer tiers."""

import toy

from hybridcache_jax import Form, Verdict
from hybridcache_jax.testing import faults

FORMS = tuple(form for form in Form if form != Form.NONE)


class Tiered(toy.Session):
    """A session whose evicted blocks move to a tier that can go wrong."""

    def __init__(self, some, cache=None, *, budget="1MiB", known=0, **options):
        self.tier = faults.FaultyTier(some.plan, budget=budget, known_tokens=known)
        super().__init__(some, cache, tier=self.tier, **options)

    def move_out(self):
        """Everything that is stored leaves the device."""
        for form in FORMS:
            self.evict(form)

    def ask(self, tokens, **options):
        plan = self.match(tokens)
        assert plan.verdict == Verdict.NEEDS_IO
        return self.prefixes.load(self.cache, plan, **options)

    def poll(self):
        cache, reports = self.prefixes.poll(self.cache)
        self.put(cache)
        return reports

    def load(self, tokens):
        """Asks for what a prompt waits for; how that stands after a poll."""
        load = self.ask(tokens)
        return next(report for report in self.poll() if report.load == load)

    def admit(self, tokens):
        """Waits for what can be waited for; cold if that failed or is late."""
        if self.match(tokens).verdict == Verdict.NEEDS_IO:
            self.load(tokens)
        plan = self.match(tokens)
        if plan.verdict == Verdict.NEEDS_IO:
            plan = self.prefixes.cold_plan(tokens, self.model.identity)
        return self.acquire(plan)


def grids(some, count, known=0):
    """Bytes of a tier for so many grid units of every form, and not for one more.

    Per block 48 bytes of facts, also of ``known`` tokens beside those; and what the
    index keeps of them.
    """
    places = count - -known // some.grid
    blocks = sum(
        (count * pool.block_bytes + places * 48) * (some.grid // pool.block_tokens)
        for pool in some.plan.spec.pools
    )
    return blocks + some.plan.index_bytes(places * some.grid)


def only_full(**options):
    """One full layer, blocks of 4."""
    return Tiered(toy.only_full(), **options)
