"""Every metric of the platform, and the object through which a process counts.

Owns names, kinds, units and labels. Each process makes one `Metrics` and passes it on; there is no
global registry. `infra/health.py` and the gateway serve what `expose` returns.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["METRICS", "Metric", "MetricName", "Metrics"]

MetricName = Literal[
    # gateway
    "http_requests",
    "http_request_seconds",
    "time_to_first_token_seconds",
    "inter_token_seconds",
    "requests_open",
    "clients_disconnected",
    "clients_too_slow",
    "mailbox_overflows",
    "keyed_requests",
    "replies_orphaned",
    "prompt_tokens",
    "requests_limited",
    "quota_demands",
    "quota_unanswered",
    "batch_items_ended",
    "batches_ended",
    # worker
    "engine_steps",
    "engine_running",
    "engine_waiting",
    "engine_kv_usage_ratio",
    "engine_stalls",
    "tokens_generated",
    "attempts_started",
    "attempts_doubted",
    "requests_given_up",
    "replies_ended",
    "requests_redelivered",
    "lanes_assigned",
    "lane_commits",
    "lane_commits_refused",
    "usage_sent",
    # metering and stream-app
    "usage_rows_inserted",
    "usage_insert_seconds",
    "usage_insert_failures",
    "usage_lag_records",
    "usage_events_counted",
    "usage_events_skipped",
    "quota_grants",
    # every process
    "log_records_read",
    "log_send_failures",
    "dead_letters",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one metric counts, in which unit, by which labels."""

    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()


def _counter(unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(kind="counter", unit=unit, meaning=meaning, labels=labels)


def _gauge(unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(kind="gauge", unit=unit, meaning=meaning, labels=labels)


def _histogram(meaning: str, *labels: str) -> Metric:
    return Metric(kind="histogram", unit="seconds", meaning=meaning, labels=labels)


METRICS: dict[MetricName, Metric] = {
    "http_requests": _counter("requests", "HTTP requests answered", "route", "status"),
    "http_request_seconds": _histogram("From the request's head to the answer's end", "route"),
    "time_to_first_token_seconds": _histogram("From acceptance to the first token sent", "dialect"),
    "inter_token_seconds": _histogram("Between two token events of one reply", "dialect"),
    "requests_open": _gauge("requests", "Requests being answered now"),
    "clients_disconnected": _counter("clients", "Clients that left before their reply's end"),
    "clients_too_slow": _counter("clients", "Clients cut because they read too slowly"),
    "mailbox_overflows": _counter("mailboxes", "Mailboxes dropped and re-read from the log"),
    "keyed_requests": _counter(
        "requests", "Requests with an idempotency key, by whether they were replayed", "replayed"
    ),
    "replies_orphaned": _gauge("replies", "Replies that run on without a client here"),
    "prompt_tokens": _counter("tokens", "Prompt tokens accepted"),
    "requests_limited": _counter("requests", "Requests refused by a limit of their org", "limit"),
    "quota_demands": _counter("demands", "Demands sent to the quota service"),
    "quota_unanswered": _counter("demands", "Demands that the quota service did not answer"),
    "batch_items_ended": _counter("items", "Items of batches run here to their result", "outcome"),
    "batches_ended": _counter("batches", "Batches ended here"),
    "engine_steps": _counter("steps", "Engine steps made"),
    "engine_running": _gauge("requests", "Requests in the engine's batch"),
    "engine_waiting": _gauge("requests", "Requests waiting for the engine"),
    "engine_kv_usage_ratio": _gauge("ratio", "Used share of the KV blocks"),
    "engine_stalls": _counter("stalls", "Times the engine made no step while work waited"),
    "tokens_generated": _counter("tokens", "Tokens the engine generated"),
    "attempts_started": _counter("attempts", "Starts sent"),
    "attempts_doubted": _counter("attempts", "Attempts given up in doubt", "reason"),
    "requests_given_up": _counter("requests", "Requests closed because workers ended over them"),
    "replies_ended": _counter("replies", "Replies whose end this worker read back", "reason"),
    "requests_redelivered": _counter("records", "Request records delivered more than once"),
    "lanes_assigned": _gauge("lanes", "Lanes assigned to this worker"),
    "lane_commits": _counter("commits", "Lane offsets committed"),
    "lane_commits_refused": _counter("commits", "Commits the group refused"),
    "usage_sent": _counter("events", "Usage events acknowledged"),
    "usage_rows_inserted": _counter("rows", "Usage rows inserted into ClickHouse"),
    "usage_insert_seconds": _histogram("Duration of one insert into ClickHouse"),
    "usage_insert_failures": _counter("inserts", "Inserts that failed and were repeated"),
    "usage_lag_records": _gauge("records", "Usage events not yet handled"),
    "usage_events_counted": _counter("events", "Usage events added to totals"),
    "usage_events_skipped": _counter("events", "Usage events seen before"),
    "quota_grants": _counter("grants", "Demands of gateways granted, in part or in full"),
    "log_records_read": _counter("records", "Records read from the log", "topic"),
    "log_send_failures": _counter("sends", "Sends refused or of unknown outcome", "topic"),
    "dead_letters": _counter("records", "Records buried in dead-letters.v1", "source"),
}

# Times between tokens lie near 10 ms, replies near seconds, deadlines at 600 s.
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600)

_BOUNDS = [*map(floatToGoString, _BUCKETS_S), "+Inf"]

_Series = tuple[object, ...]


class _Distribution:
    """One series of a histogram. Counts by bucket, so that an observation is one look-up: a gateway
    makes one for each token of each stream."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(_BUCKETS_S, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return bounds with how many lay at or below each, and the sum."""
        return list(zip(_BOUNDS, accumulate(self._counts), strict=True)), self._sum


class _Histogram(Collector):
    """A histogram's series by their labels' values."""

    def __init__(self, name: str, metric: Metric) -> None:
        self._name = name
        self._metric = metric
        self._series: dict[tuple[str, ...], _Distribution] = {}
        if not metric.labels:
            self.labels()

    def labels(self, **labels: str) -> _Distribution:
        values = tuple(labels[name] for name in self._metric.labels)
        return self._series.setdefault(values, _Distribution())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._metric.meaning, labels=self._metric.labels)
        for values, distribution in self._series.items():
            buckets, total = distribution.read()
            family.add_metric(values, buckets, total)
        yield family


class Metrics:
    """Counts for one process. Series are kept, so that a hot path pays one dict access."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._families = {name: self._family(name, metric) for name, metric in METRICS.items()}
        self._series: dict[_Series, Counter | Gauge | _Distribution] = {}

    def count(self, name: MetricName, n: float = 1, **labels: str) -> None:
        """Add `n` to a counter."""
        series = self._find(name, labels)
        assert isinstance(series, Counter), f"{name} is no counter"
        series.inc(n)

    def gauge(self, name: MetricName, value: float, **labels: str) -> None:
        """Set a gauge."""
        series = self._find(name, labels)
        assert isinstance(series, Gauge), f"{name} is no gauge"
        series.set(value)

    def observe(self, name: MetricName, value: float, **labels: str) -> None:
        """Add one observation, in the metric's unit, to a histogram."""
        series = self._find(name, labels)
        assert isinstance(series, _Distribution), f"{name} is no histogram"
        series.observe(value)

    def expose(self) -> bytes:
        """Return all series in Prometheus's text format."""
        return generate_latest(self._registry)

    def _find(self, name: MetricName, labels: dict[str, str]) -> Counter | Gauge | _Distribution:
        key = (name, *labels.items())
        series = self._series.get(key)
        if series is None:
            family = self._families[name]
            if isinstance(family, _Histogram):
                series = family.labels(**labels)
            else:
                series = family.labels(**labels) if labels else family
            self._series[key] = series
        return series

    def _family(self, name: str, metric: Metric) -> Counter | Gauge | _Histogram:
        full = f"millstream_{name}"
        if metric.kind == "histogram":
            histogram = _Histogram(full, metric)
            self._registry.register(histogram)
            return histogram
        kind = Counter if metric.kind == "counter" else Gauge
        return kind(full, metric.meaning, metric.labels, registry=self._registry)


assert set(get_args(MetricName)) == set(METRICS), "each metric name has exactly one definition"
