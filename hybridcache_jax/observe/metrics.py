"""Metrics: what happened, in short calls, on a registry that the user hands in."""

import logging
from typing import TYPE_CHECKING, Any

from hybridcache_jax.codes import Status, Verdict
from hybridcache_jax.forms import Form
from hybridcache_jax.observe.declarations import (
    PREFIX,
    TABLE,
    Phase,
    SaveEnd,
    Tier,
    Where,
    Why,
)
from hybridcache_jax.observe.registry import Registry
from hybridcache_jax.resume_plan import ResumePlan

if TYPE_CHECKING:
    from hybridcache_jax.offload.loads import LoadStage


_LOG = logging.getLogger("hybridcache_jax")


class Metrics:
    """All metrics of the library, declared once on one registry.

    A registry that raises while something is counted costs that count and nothing else:
    the error goes to the logger ``hybridcache_jax``.

    Caches that share a ``Metrics`` add to the same counters and overwrite each other's
    gauges; give each its own registry where they shall be told apart.

    Attributes:
      enabled: whether there is a registry; without one every call returns at once.
    """

    def __init__(self, registry: Registry | None = None):
        """Declares every row of :data:`~hybridcache_jax.observe.TABLE`.

        Args:
          registry: where the numbers go; None counts nothing.

        Raises:
          ValueError: if the registry has one of the names already.
        """
        self.enabled = registry is not None
        self._of: dict[str, Any] = {}
        if registry is None:
            return
        for metric in TABLE:
            common = (PREFIX + metric.name, metric.help, metric.labels)
            if metric.kind == "histogram":
                made = registry.histogram(*common, metric.buckets)
            elif metric.kind == "gauge":
                made = registry.gauge(*common)
            else:
                made = registry.counter(*common)
            self._of[metric.name] = made

    def matched(self, plan: ResumePlan) -> None:
        """A prompt was looked up; nothing is reused by that yet."""
        if not self.enabled:
            return
        self._add("lookups_total")
        self._add("verdicts_total", 1, plan.verdict.name)
        self._add("alignment_lost_tokens_total", plan.alignment_loss)
        if plan.claimed_length == 0:
            self._add("misses_total", 1, plan.reason.name)
            return
        self._add("hits_total")
        gap = plan.history_length - plan.joint_length
        self._tell("history_gap_tokens", "observe", gap)
        if plan.verdict != Verdict.RESUMABLE or plan.length < plan.claimed_length:
            self._add("fallbacks_total", 1, plan.verdict.name)
        # Pools of one form count once.
        limits = {(report.form, report.reason) for report in plan.limiting}
        for form, reason in limits:
            self._add("limiting_forms_total", 1, form.name, reason.name)

    def acquired(self, plan: ResumePlan, *, outer: int = 0) -> None:
        """A plan was acquired: its blocks are pinned, a row stands at its start.

        Args:
          plan: what was acquired; may be a cold one.  A shadow run is no admission.
          outer: how many of the ``plan.start`` tokens that are not run had to be
            loaded from an outer tier.
        """
        if not self.enabled or plan.shadow:
            return
        self._add("admissions_total", 1, plan.verdict.name)
        self._add("prompt_tokens_total", plan.num_tokens)
        self._add("reused_tokens_total", plan.length)
        self._by_tier("hit_tokens_total", plan, outer)
        self._add("saved_tokens_total", plan.start)

    def stale(self, where: Where) -> None:
        """A plan or a lease no longer held."""
        self._add("stale_leases_total", 1, where)

    def released(self, plan: ResumePlan, position: int, ticks: int) -> None:
        """A lease ended.

        Args:
          plan: what it was granted on, or what a fork or a rewind made of that.
          position: where its row stood.
          ticks: of the cache's clock since it was granted.
        """
        if not self.enabled:
            return
        left = plan.num_tokens - max(position, plan.counted)
        self._add("abandoned_tokens_total", max(left, 0))
        self._tell("pin_ticks", "observe", ticks)

    def stored(self, form: Form, blocks: int, size: int) -> None:
        """Stored prefixes took over ``blocks`` blocks, ``size`` bytes in all."""
        self._add("stored_blocks_total", blocks, form.name)
        self._add("stored_bytes_total", size, form.name)

    def evicted(self, form: Form, blocks: int, size: int, why: Why) -> None:
        """Stored prefixes lost ``blocks`` blocks, ``size`` bytes in all."""
        self._add("evicted_blocks_total", blocks, form.name, why)
        self._add("evicted_bytes_total", size, form.name, why)

    def ran(self, plan: ResumePlan, position: int, count: int, status: Status) -> None:
        """A compiled step was given one row.  Call it for every row of every step.

        Args:
          plan: of the row's lease.
          position: where the row stood.
          count: tokens it was given.
          status: what the step did with it; only an OK row ran.
        """
        if not self.enabled:
            return
        self._add("step_rows_total", 1, status.name)
        if status == Status.STALE:
            self.stale(Where.STEP)
        if status != Status.OK:
            return
        begin, end = position, position + count
        for phase, stop in (
            (Phase.SHADOW if plan.shadow else Phase.AGAIN, plan.counted),
            (Phase.REPLAY, plan.length),
            (Phase.PREFILL, plan.num_tokens),
        ):
            stop = max(begin, min(stop, end, plan.num_tokens))
            self._add("run_tokens_total", stop - begin, phase)
            begin = stop
        self._add("run_tokens_total", end - begin, Phase.DECODE)

    def retraced(self, shapes: int) -> None:
        """So many shapes were compiled after warm-up; 0 is the normal case."""
        self._add("retraces_total", shapes)

    def moved_out(self, form: Form, blocks: int, size: int) -> None:
        """The outer tier took copies of so many blocks and bytes of a form."""
        self._add("moved_out_blocks_total", blocks, form.name)
        self._add("moved_out_bytes_total", size, form.name)

    def store_failed(self, form: Form) -> None:
        """The outer tier failed to take a block of a form; it is lost."""
        self._add("store_failures_total", 1, form.name)

    def loaded(self, form: Form, blocks: int, size: int) -> None:
        """So many blocks and bytes of a form came back and are stored again."""
        self._add("loaded_blocks_total", blocks, form.name)
        self._add("loaded_bytes_total", size, form.name)
        self.stored(form, blocks, size)

    def load_failed(self, stage: "LoadStage") -> None:
        """A load from an outer tier failed at this stage; it registered nothing."""
        self._add("load_failures_total", 1, stage)

    def save_ended(self, end: SaveEnd) -> None:
        """A published prefix was saved to a store, or was not."""
        self._add("saves_total", 1, end)

    def lookup_failed(self) -> None:
        """A store failed to say what it has."""
        self._add("store_lookup_failures_total")

    def passed_by(self, records: int) -> None:
        """So many records of a store could not be used."""
        self._add("records_passed_by_total", records)

    def shadow_sampled(self) -> None:
        """A hit was chosen to be computed again."""
        self._add("shadow_sampled_total")

    def shadow_compared(self, *, equal: bool) -> None:
        """A chosen hit was compared with its cold run."""
        self._add("shadow_compared_total")
        if not equal:
            self._add("shadow_mismatches_total")

    def overturned(self, plan: ResumePlan, *, outer: int = 0) -> None:
        """A hit was found wrong; the arguments as when it was acquired."""
        if self.enabled:
            self._by_tier("overturned_tokens_total", plan, outer)

    def holds(self, pool: str, blocks: dict[str, int]) -> None:
        """One pool's blocks by state, as ``lifecycle.account`` counts them."""
        self._by_state("blocks", pool, blocks)

    def holds_bytes(self, form: Form, sizes: dict[str, int]) -> None:
        """One form's bytes by state, over all its pools."""
        self._by_state("form_bytes", form.name, sizes)

    def leases(self, in_time: int, overdue: int) -> None:
        """Leases by whether their deadline lies behind the clock."""
        self._tell("leases", "set", in_time, "in_time")
        self._tell("leases", "set", overdue, "overdue")

    def index(self, tokens: int, size: int) -> None:
        """What the prefix index claims, and its bytes."""
        self._tell("index_tokens", "set", tokens)
        self._tell("index_bytes", "set", size)

    def _add(self, name: str, amount: int = 1, *labels: str) -> None:
        self._tell(name, "add", amount, *labels)

    def _tell(self, name: str, call: str, value: int, *labels: str) -> None:
        if not self.enabled:
            return
        try:
            getattr(self._of[name], call)(value, *labels)
        except Exception:
            # The caller would lose the cache whose memory was donated on the way.
            _LOG.exception("The metric %s could not be counted.", PREFIX + name)

    def _by_tier(self, name: str, plan: ResumePlan, outer: int) -> None:
        self._add(name, plan.start - outer, Tier.DEVICE)
        self._add(name, outer, Tier.OUTER)
        self._add(name, plan.length - plan.start, Tier.REPLAYED)

    def _by_state(self, name: str, label: str, counts: dict[str, int]) -> None:
        for state, count in counts.items():
            # The total is the sum of the parts; a series for it would double every sum.
            if state != "total":
                self._tell(name, "set", count, label, state)
