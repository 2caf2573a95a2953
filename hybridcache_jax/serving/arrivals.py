"""Requests without a row: those that wait for one, and those that wait for blocks.

A request whose plan needs blocks from an outer tier steps aside while they come, and
others are admitted.  When they are there it is the next to be looked at; what it is
admitted with is planned again then.
"""

import collections
import dataclasses
import time

from hybridcache_jax.offload.loads import Load, LoadReport
from hybridcache_jax.resume_plan import ResumePlan
from hybridcache_jax.serving.request import Request

# Loads that one request may wait for; a store that fails must not keep it for ever.
_MOST_LOADS = 3


@dataclasses.dataclass
class Arrival:
    """One request without a row.

    Attributes:
      number: of the request.
      request: what was asked.
      started: when it was first looked at, in seconds of ``time.perf_counter``; 0
        before.
      waited: the plan it waited for last, if it did.
      loads: how many loads it has waited for.
    """

    number: int
    request: Request
    started: float = 0.0
    waited: ResumePlan | None = None
    loads: int = 0

    @property
    def may_wait(self) -> bool:
        """Whether it may wait for a load once more."""
        return self.loads < _MOST_LOADS


class Arrivals:
    """The queue of one engine."""

    def __init__(self):
        """Empty."""
        self._waiting: collections.deque[Arrival] = collections.deque()
        self._loading: dict[int, Arrival] = {}

    def __len__(self) -> int:
        """Requests without a row."""
        return len(self._waiting) + len(self._loading)

    def add(self, number: int, request: Request) -> None:
        """A request comes last."""
        self._waiting.append(Arrival(number, request))

    def first(self) -> Arrival | None:
        """The next one to be looked at; it stays in the queue."""
        if not self._waiting:
            return None
        arrival = self._waiting[0]
        arrival.started = arrival.started or time.perf_counter()
        return arrival

    def loading(self) -> list[Request]:
        """Those that wait for blocks."""
        return [arrival.request for arrival in self._loading.values()]

    def admitted(self) -> None:
        """The first one has a row."""
        self._waiting.popleft()

    def wait(self, load: Load) -> None:
        """The first one waits for a load; the next one is first."""
        arrival = self._waiting.popleft()
        arrival.waited, arrival.loads = load.plan, arrival.loads + 1
        self._loading[load.number] = arrival

    def reported(self, reports: tuple[LoadReport, ...]) -> None:
        """Whose load has come, or is over, is first again, the oldest before others."""
        over = [
            self._loading.pop(report.load.number)
            for report in reports
            if (report.ready or report.failed) and report.load.number in self._loading
        ]
        for arrival in sorted(over, key=lambda each: each.number, reverse=True):
            self._waiting.appendleft(arrival)
