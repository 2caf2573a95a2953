"""How long loads take, so that waiting is weighed by what was seen."""

import math
from collections.abc import Callable, Sequence

from hybridcache_jax.cost import CostModel
from hybridcache_jax.offload.loads import Load, LoadReport

# Seconds from any moment on, such as ``time.perf_counter``.
Clock = Callable[[], float]


class LoadTimes:
    """From asking for a load to its blocks on the device, for one ``PrefixCache``."""

    def __init__(self, clock: Clock | None):
        """Nothing is on its way.

        Args:
          clock: what measures; None to measure nothing.
        """
        self._clock = clock
        self._asked: dict[int, float] = {}

    def now(self) -> float:
        """What the clock says; 0 without one."""
        return 0.0 if self._clock is None else self._clock()

    def asked(self, load: Load, since: float) -> None:
        """A load was asked for.

        Args:
          load: its receipt.
          since: what :meth:`now` said before.
        """
        if self._clock is not None:
            self._asked[load.number] = since

    def cancelled(self, load: Load) -> None:
        """A load was given up; unknown ones are ignored."""
        self._asked.pop(load.number, None)

    def learned(self, cost: CostModel, reports: Sequence[LoadReport]) -> CostModel:
        """The cost model after what a poll reports.

        Args:
          cost: before it.
          reports: those that came are measured, those that failed are forgotten.
        """
        for report in reports:
            if not (report.ready or report.failed):
                continue
            since = self._asked.pop(report.load.number, None)
            if since is not None and report.ready:
                # A clock that fails or was set back measures nothing; the load came all
                # the same, and the cache that has it must reach the caller.
                try:
                    seconds = self.now() - since
                except Exception:
                    continue
                if 0 <= seconds < math.inf:
                    plan = report.load.plan
                    cost = cost.after_load(
                        plan.bytes_to_load, seconds, from_store=plan.bytes_from_store
                    )
        return cost
