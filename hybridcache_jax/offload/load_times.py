"""How long loads take, so that waiting is weighed by what was seen."""

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

    def asked(self, load: Load) -> None:
        """A load begins."""
        if self._clock is not None:
            self._asked[load.number] = self._clock()

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
            if since is not None and report.ready and self._clock is not None:
                nbytes = report.load.plan.bytes_to_load
                cost = cost.after_load(nbytes, self._clock() - since)
        return cost
