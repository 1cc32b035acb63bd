"""What a process's metrics expose, read by the library's own parser."""

from prometheus_client.parser import text_string_to_metric_families

from infra.metrics import Metrics


def samples(metrics: Metrics, family: str) -> dict[str, float]:
    """Return a family's samples by name and labels."""
    found = {}
    for one in text_string_to_metric_families(metrics.expose().decode()):
        if one.name == f"millstream_{family}":
            for sample in one.samples:
                labels = ",".join(
                    f"{name}={value}" for name, value in sorted(sample.labels.items())
                )
                found[f"{sample.name.removeprefix('millstream_')}{{{labels}}}"] = sample.value
    return found


def test_a_histogram_counts_what_lies_at_or_below_each_bound() -> None:
    """Values on a bound, between two and above all of them; the sum and the count beside."""
    metrics = Metrics()
    for value in (0.001, 0.002, 600.0, 600.5):
        metrics.observe("inter_token_seconds", value, dialect="openai")
    found = samples(metrics, "inter_token_seconds")
    assert found["inter_token_seconds_bucket{dialect=openai,le=0.001}"] == 1
    assert found["inter_token_seconds_bucket{dialect=openai,le=0.0025}"] == 2
    assert found["inter_token_seconds_bucket{dialect=openai,le=600.0}"] == 3
    assert found["inter_token_seconds_bucket{dialect=openai,le=+Inf}"] == 4
    assert found["inter_token_seconds_count{dialect=openai}"] == 4
    assert found["inter_token_seconds_sum{dialect=openai}"] == 0.001 + 0.002 + 600.0 + 600.5


def test_series_are_apart_by_label() -> None:
    """Each value of a label counts for itself."""
    metrics = Metrics()
    metrics.observe("inter_token_seconds", 1.0, dialect="openai")
    metrics.observe("inter_token_seconds", 1.0, dialect="anthropic")
    metrics.count("http_requests", route="/", status="200")
    metrics.count("http_requests", 2, route="/", status="529")
    found = samples(metrics, "inter_token_seconds")
    assert found["inter_token_seconds_count{dialect=anthropic}"] == 1
    assert samples(metrics, "http_requests")["http_requests_total{route=/,status=529}"] == 2


def test_a_histogram_without_labels_is_there_from_the_start() -> None:
    """Whoever watches it sees a zero, not nothing."""
    metrics = Metrics()
    assert samples(metrics, "usage_insert_seconds")["usage_insert_seconds_count{}"] == 0
    metrics.observe("usage_insert_seconds", 0.3)
    assert samples(metrics, "usage_insert_seconds")["usage_insert_seconds_bucket{le=0.5}"] == 1
