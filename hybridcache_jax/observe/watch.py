"""What one ``PrefixCache`` tells its metrics: from cache values to counts.

Nothing is computed unless there is a registry.
"""

import collections
import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridcache_jax._typing import AnyArray
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.deadlines import ticks_late
from hybridcache_jax.lease import Lease, Receipt
from hybridcache_jax.observe.declarations import SaveEnd, Where, Why
from hybridcache_jax.observe.hooks import Hooks
from hybridcache_jax.observe.metrics import Metrics
from hybridcache_jax.prefix_index import PrefixIndex
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.state import HybridCache

if TYPE_CHECKING:
    from hybridcache_jax.offload.loads import LoadReport, LoadStage


_LOG = logging.getLogger("hybridcache_jax")

# Different things that are logged before any of them is logged again.
_MOST_SAID = 1000


@dataclasses.dataclass(frozen=True)
class _Open:
    """A lease that is not yet released: clock at its grant, plan, tokens loaded."""

    since: int
    plan: ResumePlan
    outer: int = 0


class Watch:
    """The metrics of one line of cache values."""

    def __init__(self, plan: CapacityPlan, metrics: Metrics, hooks: Hooks = Hooks()):
        """Watches caches of ``plan``."""
        self._metrics, self._hooks = metrics, hooks
        self._paused = False
        self._pools = tuple(
            (pool.form, plan.block_bytes(number))
            for number, pool in enumerate(plan.spec.pools)
        )
        self._names = tuple(pool.name for pool in plan.spec.pools)
        self._open: dict[tuple[int, int], _Open] = {}
        self._said: set[tuple[str, ...]] = set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts nothing counts: a warm-up serves nobody."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def matched(self, plan: ResumePlan) -> None:
        """See :meth:`Metrics.matched`."""
        self._metrics.matched(plan)

    def stale(self, where: Where) -> None:
        """See :meth:`Metrics.stale`."""
        self._metrics.stale(where)

    def shadow_sampled(self) -> None:
        """See :meth:`Metrics.shadow_sampled`."""
        self._metrics.shadow_sampled()

    def shadow_compared(self, *, equal: bool) -> None:
        """See :meth:`Metrics.shadow_compared`."""
        self._metrics.shadow_compared(equal=equal)

    def overturned(self, hit: Lease, cold: Lease, serving: Lease) -> None:
        """A hit was found wrong; ``serving`` is its cold row, gone on from instead."""
        receipt = (hit.row, hit.ticket)
        if not self._on or receipt not in self._open:
            return
        was = self._open[receipt]
        self._metrics.overturned(was.plan, outer=was.outer)
        if self._open[cold.row, cold.ticket].plan.shadow:
            # One prompt, of which the cold row now runs what the hit did not.
            self._replan(hit, was.plan.counted_to(was.plan.num_tokens))
            self._replan(cold, serving.plan)

    def acquired(self, cache: HybridCache, lease: Lease, outer: int) -> None:
        """A lease was granted on its plan; ``outer`` of its tokens had to be loaded."""
        if self._on:
            self._metrics.acquired(lease.plan, outer=outer)
            self.granted(cache, lease, outer)

    def granted(self, cache: HybridCache, lease: Lease, outer: int = 0) -> None:
        """A lease exists from now on; its pin time begins."""
        if self._on:
            opened = _Open(int(cache.clock), lease.plan, outer)
            self._open[lease.row, lease.ticket] = opened

    def reissued(self, old: Lease, new: Lease) -> None:
        """A row got a new receipt and keeps what it pins; its pin time goes on."""
        if self._on and (old.row, old.ticket) in self._open:
            self._open[new.row, new.ticket] = self._open.pop((old.row, old.ticket))
            self._replan(new, new.plan)

    def released(self, before: HybridCache, after: HybridCache, lease: Receipt) -> None:
        """A lease ended between two values."""
        was = self._open.pop((lease.row, lease.ticket), None)
        if self._on and was is not None:
            position = int(np.asarray(before.rows.length)[lease.row])
            ticks = int(after.clock) - was.since
            self._metrics.released(was.plan, position, ticks)

    def reordered(
        self,
        before: HybridCache,
        after: HybridCache,
        old: Sequence[Lease],
        new: Sequence[Lease],
    ) -> None:
        """Some leases ended, others exist from now on, in one transition."""
        for lease in old:
            if lease not in new:
                self.released(before, after, lease)
        for lease in new:
            if lease not in old:
                self.granted(after, lease)

    def stored(self, before: HybridCache, after: HybridCache) -> None:
        """Stored prefixes took over blocks between two values."""
        if not self._on:
            return
        for (form, size), old, new in self._kept(before, after):
            count = int(np.count_nonzero(new & ~old))
            if count:
                self._metrics.stored(form, count, count * size)

    def lost(
        self,
        before: HybridCache,
        after: HybridCache,
        chosen: Sequence[AnyArray] = (),
        why: Why = Why.DEAD_WEIGHT,
    ) -> None:
        """Stored prefixes lost blocks between two values.

        Args:
          before: the earlier value.
          after: the later one.
          chosen: per pool, ids of blocks that were chosen to go, padded as
            ``eviction.begin`` pads them; what else was lost was dead weight.
          why: why these were chosen.
        """
        told = self._hooks.on_evicted is not None and not self._paused
        if not (self._on or told):
            return
        for number, ((form, size), old, new) in enumerate(self._kept(before, after)):
            gone = old & ~new
            picked = np.zeros_like(gone)
            if chosen:
                ids = np.asarray(chosen[number])
                picked[ids[ids < len(picked)]] = True
            for mask, reason in ((picked, why), (~picked, Why.DEAD_WEIGHT)):
                count = int(np.count_nonzero(gone & mask))
                if count:
                    self._metrics.evicted(form, count, count * size, reason)
                    self._hooks.evicted(form, count, reason)

    def moved_out(self, pool: int, blocks: int) -> None:
        """The outer tier took copies of blocks of a pool."""
        form, size = self._pools[pool]
        if self._on and blocks:
            self._metrics.moved_out(form, blocks, blocks * size)

    def store_failed(self, pool: int) -> None:
        """The outer tier failed to take a block of a pool."""
        if self._on:
            self._metrics.store_failed(self._pools[pool][0])

    def loaded(self, pool: int, blocks: int) -> None:
        """Blocks of a pool came back from the outer tier."""
        form, size = self._pools[pool]
        if self._on and blocks:
            self._metrics.loaded(form, blocks, blocks * size)

    def load_failed(self, stage: "LoadStage") -> None:
        """See :meth:`Metrics.load_failed`."""
        self._metrics.load_failed(stage)

    def reported(self, report: "LoadReport") -> None:
        """A poll reported on a load."""
        self._hooks.reported(report)

    def save_ended(self, end: SaveEnd, error: Exception | None = None) -> None:
        """See :meth:`Metrics.save_ended`; an error is logged."""
        self._metrics.save_ended(end)
        if error is not None:
            self._say("A prefix was not saved: %s", _words(error))

    def lookup_failed(self, error: BaseException | None = None) -> None:
        """See :meth:`Metrics.lookup_failed`; an error is logged."""
        self._metrics.lookup_failed()
        if error is not None:
            self._say("A store did not answer, nothing is reused: %s", _words(error))

    def passed_by(self, problems: Sequence[tuple[str, str]]) -> None:
        """See :meth:`Metrics.passed_by`; what is wrong with each record is logged."""
        if problems:
            self._metrics.passed_by(len(problems))
        for name, why in problems:
            self._say("%s is not used: %s", name, why)

    def _say(self, *said: str) -> None:
        """Logs a warning once: what is wrong with a store is met at every match."""
        if len(self._said) == _MOST_SAID:
            self._said.clear()
        if said not in self._said:
            self._said.add(said)
            _LOG.warning(*said)

    def sampled(
        self,
        cache: HybridCache,
        accounts: dict[str, dict[str, int]],
        index: PrefixIndex,
    ) -> None:
        """Gauges of this moment.

        Args:
          cache: of this moment.
          accounts: per pool, blocks by state, as ``PrefixCache.account`` gives them.
          index: the claims.
        """
        if not self._on:
            return
        sizes: dict = collections.defaultdict(collections.Counter)
        for name, (form, size) in zip(self._names, self._pools, strict=True):
            self._metrics.holds(name, accounts[name])
            for state, count in accounts[name].items():
                sizes[form][state] += count * size
        for form, states in sizes.items():
            self._metrics.holds_bytes(form, states)
        overdue = int(np.count_nonzero(ticks_late(cache) > 0))
        granted = int(np.count_nonzero(np.asarray(cache.rows.live)))
        self._metrics.leases(granted - overdue, overdue)
        self._metrics.index(index.stored_tokens, index.nbytes)

    def _replan(self, lease: Receipt, plan: ResumePlan) -> None:
        receipt = (lease.row, lease.ticket)
        self._open[receipt] = dataclasses.replace(self._open[receipt], plan=plan)

    @property
    def _on(self) -> bool:
        return self._metrics.enabled and not self._paused

    def _kept(self, before: HybridCache, after: HybridCache):
        """Per pool, its form and block bytes, and the keep marks of both values."""
        for pool, old, new in zip(
            self._pools, before.tables, after.tables, strict=True
        ):
            yield pool, np.asarray(old.kept), np.asarray(new.kept)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
