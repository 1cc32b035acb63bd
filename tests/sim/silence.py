"""Metrics that count nothing: a run makes many processes, and series cost too much."""

from infra.metrics import MetricName, Metrics


class SilentMetrics(Metrics):
    """Takes every figure and keeps none."""

    def __init__(self) -> None:
        """Make no series."""

    def count(self, name: MetricName, n: float = 1, **labels: str) -> None:
        """Drop it."""

    def gauge(self, name: MetricName, value: float, **labels: str) -> None:
        """Drop it."""

    def observe(self, name: MetricName, value: float, **labels: str) -> None:
        """Drop it."""
