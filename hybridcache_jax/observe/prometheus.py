"""Metrics on a collector registry of ``prometheus_client`` (extra ``metrics``)."""

from collections.abc import Sequence
from typing import Any

from hybridcache_jax.observe.registry import Counter, Gauge, Histogram


class PrometheusRegistry:
    """Declares metrics where a Prometheus exporter finds them."""

    def __init__(self, collectors: Any):
        """Wraps a registry.

        Args:
          collectors: a ``prometheus_client.CollectorRegistry``.

        Raises:
          ImportError: if ``prometheus_client`` is not installed.
        """
        try:
            import prometheus_client
        except ImportError as error:
            raise ImportError(
                "PrometheusRegistry needs the package prometheus-client; install "
                "hybridcache_jax[metrics]."
            ) from error
        self._client = prometheus_client
        self._collectors = collectors

    def counter(self, name: str, help: str, labels: Sequence[str]) -> Counter:
        """See :class:`~hybridcache_jax.observe.Registry`."""
        made = self._client.Counter(name, help, labels, registry=self._collectors)
        return _Series(made)

    def gauge(self, name: str, help: str, labels: Sequence[str]) -> Gauge:
        """See :class:`~hybridcache_jax.observe.Registry`."""
        made = self._client.Gauge(name, help, labels, registry=self._collectors)
        return _Series(made)

    def histogram(
        self, name: str, help: str, labels: Sequence[str], buckets: Sequence[int]
    ) -> Histogram:
        """See :class:`~hybridcache_jax.observe.Registry`."""
        made = self._client.Histogram(
            name, help, labels, registry=self._collectors, buckets=tuple(buckets)
        )
        return _Series(made)


class _Series:
    """One metric of the client, by the names of our protocols."""

    def __init__(self, metric: Any):
        self._metric = metric

    def add(self, amount: int, *labels: str) -> None:
        self._of(labels).inc(amount)

    def set(self, value: int, *labels: str) -> None:
        self._of(labels).set(value)

    def observe(self, value: int, *labels: str) -> None:
        self._of(labels).observe(value)

    def _of(self, labels: tuple[str, ...]) -> Any:
        return self._metric.labels(*labels) if labels else self._metric
