"""Where metrics are kept: what a registry must offer, and one in plain Python.

A registry is handed in by whoever wants the numbers; the library has none of its own.
Label values are given in the order in which the metric declared its label names.
"""

import bisect
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Counter(Protocol):
    """A number that only grows."""

    def add(self, amount: int, *labels: str) -> None:
        """Adds ``amount >= 0`` to the series of these label values."""
        ...


class Gauge(Protocol):
    """A number as it was when it was last set."""

    def set(self, value: int, *labels: str) -> None:
        """Sets the series of these label values."""
        ...


class Histogram(Protocol):
    """How often values lay below each of a few bounds."""

    def observe(self, value: int, *labels: str) -> None:
        """Counts one value in the series of these label values."""
        ...


class Registry(Protocol):
    """What :class:`~hybridcache_jax.observe.Metrics` asks of a registry.

    Every name is declared once; a registry refuses a second time with ValueError.
    """

    def counter(self, name: str, help: str, labels: Sequence[str]) -> Counter:
        """Declares a counter."""
        ...

    def gauge(self, name: str, help: str, labels: Sequence[str]) -> Gauge:
        """Declares a gauge."""
        ...

    def histogram(
        self, name: str, help: str, labels: Sequence[str], buckets: Sequence[int]
    ) -> Histogram:
        """Declares a histogram with ascending upper bounds, inclusive."""
        ...


class MemoryRegistry:
    """A registry in plain Python, for tests, notebooks and the command line.

    Reads may come from any thread; what they see is one moment of all metrics.
    """

    def __init__(self):
        """An empty registry."""
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}

    def counter(self, name: str, help: str, labels: Sequence[str]) -> Counter:
        """See :class:`Registry`."""
        return self._declared(_Family(name, "counter", help, labels, self._lock, int))

    def gauge(self, name: str, help: str, labels: Sequence[str]) -> Gauge:
        """See :class:`Registry`."""
        return self._declared(_Family(name, "gauge", help, labels, self._lock, int))

    def histogram(
        self, name: str, help: str, labels: Sequence[str], buckets: Sequence[int]
    ) -> Histogram:
        """See :class:`Registry`."""
        bounds = tuple(buckets)
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"{name}: buckets must ascend, got {bounds}.")
        return self._declared(
            _Family(
                name,
                "histogram",
                help,
                labels,
                self._lock,
                lambda: _Distribution(bounds),
            )
        )

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """All metrics of this moment as JSON-ready data.

        Returns:
          Per name ``{"kind", "help", "samples"}``.  A sample is ``{"labels": {name:
          value}, "value": n}``; one of a histogram has ``"count"``, ``"sum"`` and
          ``"buckets"`` instead: how many values were at most each bound.
        """
        with self._lock:
            return {
                name: {
                    "kind": family.kind,
                    "help": family.help,
                    "samples": [
                        {"labels": labels, **_as_data(value)}
                        for labels, value in family.samples()
                    ],
                }
                for name, family in self._families.items()
            }

    def value(self, name: str, **labels: str) -> int:
        """Sum over the series of one metric that have these label values.

        Args:
          name: a declared metric; of a histogram the observations are counted.
          labels: label values that a series must have; none for all series.

        Raises:
          ValueError: for a metric or a label that was not declared.
        """
        with self._lock:
            family = self._families.get(name)
            if family is None:
                raise ValueError(
                    f"No metric {name!r} was declared here; there are: "
                    f"{', '.join(self._families) or 'none'}."
                )
            if not set(labels) <= set(family.labels):
                raise ValueError(
                    f"{name} has the labels {family.labels}, got {tuple(labels)}."
                )
            return sum(
                value.count if isinstance(value, _Distribution) else value
                for mine, value in family.samples()
                if labels.items() <= mine.items()
            )

    def _declared(self, family: "_Family") -> "_Family":
        with self._lock:
            if family.name in self._families:
                raise ValueError(
                    f"{family.name} is declared here already; share one Metrics, or "
                    "give each its own registry."
                )
            self._families[family.name] = family
        return family


class _Distribution:
    """What a histogram knows of one series; ``counts`` are per bucket."""

    def __init__(self, bounds: tuple[int, ...]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    @property
    def count(self) -> int:
        return sum(self.counts)


class _Family:
    """One metric, of any kind, with a series per tuple of label values."""

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        labels: Sequence[str],
        lock: threading.Lock,
        empty: Callable[[], Any],
    ):
        self.name, self.kind, self.help = name, kind, help
        self.labels = tuple(labels)
        self._lock, self._empty = lock, empty
        # A metric without labels has its one series from the start.
        self._series: dict[tuple[str, ...], Any] = {} if labels else {(): empty()}

    def add(self, amount: int, *labels: str) -> None:
        if amount < 0:
            raise ValueError(f"{self.name} only grows, got {amount}.")
        with self._lock:
            self._series[labels] = self._at(labels) + amount

    def set(self, value: int, *labels: str) -> None:
        with self._lock:
            self._at(labels)
            self._series[labels] = value

    def observe(self, value: int, *labels: str) -> None:
        with self._lock:
            series = self._at(labels)
            series.counts[bisect.bisect_left(series.bounds, value)] += 1
            series.sum += value

    def samples(self) -> list[tuple[dict[str, str], Any]]:
        return [
            (dict(zip(self.labels, values, strict=True)), value)
            for values, value in self._series.items()
        ]

    def _at(self, labels: tuple[str, ...]) -> Any:
        if len(labels) != len(self.labels):
            raise ValueError(
                f"{self.name} takes values for the labels {self.labels}, got {labels}."
            )
        return self._series.setdefault(labels, self._empty())


def _as_data(value: Any) -> dict[str, Any]:
    if not isinstance(value, _Distribution):
        return {"value": value}
    below, buckets = 0, {}
    for bound, count in zip((*value.bounds, "+Inf"), value.counts, strict=True):
        below += count
        buckets[str(bound)] = below
    return {"count": value.count, "sum": value.sum, "buckets": buckets}
