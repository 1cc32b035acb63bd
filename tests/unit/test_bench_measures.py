"""What a bench reports: bounds, tables, medians of paired ratios, slopes."""

import dataclasses
import json

import pytest

from infra.bench.hooks import hooks_measures
from infra.bench.measure import failed, measure, report, table
from infra.bench.serve import BARE, OURS, TUNED, serve_measures
from infra.bench.serving import Loop
from infra.bench.statistics import median, paired, percentile, slope_per_minute


def test_a_bound_is_judged_on_the_shown_figure() -> None:
    """0.18004 is shown as 0.18 and so holds <= 0.18; 0.1811 does not."""
    assert measure("a", 0.18004, "ratio", "<= 0.18").holds is True
    assert measure("a", 0.1811, "ratio", "<= 0.18").holds is False
    assert measure("a", 1.05, "ratio", ">= 1.05").holds is True
    assert measure("a", 1, "ratio").holds is None


def test_a_bound_of_another_form_is_refused() -> None:
    """A bound is a comparison and a number."""
    with pytest.raises(ValueError, match="is no bound"):
        measure("a", 1, "ratio", "about 1")


def test_the_report_has_the_documented_form() -> None:
    """The JSON names bench and measures, each with value, unit, bound and verdict."""
    found = report("x", [measure("a", 0.17, "ratio", "<= 0.18")])
    assert json.loads(json.dumps(found)) == {
        "bench": "x",
        "measures": [
            {"name": "a", "value": 0.17, "unit": "ratio", "bound": "<= 0.18", "holds": True}
        ],
    }


def test_what_fails_stands_out() -> None:
    """The table says which bound does not hold, and `failed` returns it."""
    measures = [measure("good", 1, "x", "<= 1"), measure("bad", 2, "x", "<= 1")]
    assert [item.name for item in failed(measures)] == ["bad"]
    lines = table(measures).splitlines()
    assert lines[0].endswith("holds") and lines[1].endswith("DOES NOT HOLD")


def test_percentiles_are_nearest_ranks() -> None:
    """The p99 of 100 values is the 99th, the p50 of one is that one."""
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.99) == 99
    assert percentile([5.0], 0.5) == 5
    assert median([1.0, 2.0, 4.0, 3.0]) == 2.5


def test_spread_goes_with_the_median() -> None:
    """Ratios of rounds are summed up by their median, lowest and highest."""
    found = paired([1.1, 0.9, 1.0])
    assert (found.middle, found.low, found.high, found.rounds) == (1.0, 0.9, 1.1, 3)


def test_hooks_are_judged_by_pairs_of_rounds() -> None:
    """Each round's ratio of on to off counts, and a load that was no load breaks the bench."""
    off, on = loop(100.0, 50.0), loop(98.0, 52.0)
    broken = dataclasses.replace(loop(96.0, 50.0), valid=False)
    measures = {item.name: item for item in hooks_measures({8: [(on, off), (broken, off)]})}
    ratio = measures["8 streams: tokens/s with hooks, of those without"]
    assert (ratio.value, ratio.holds) == (0.97, True)
    assert measures["invalid loops"].holds is False


def test_a_slope_is_per_minute() -> None:
    """Two units in 30 s are four a minute; one point has no slope."""
    assert slope_per_minute([(0, 1), (15, 2), (30, 3)]) == pytest.approx(4)
    assert slope_per_minute([(0, 1)]) == 0


def loop(tokens_per_s: float, ttft_ms: float) -> Loop:
    """Return a loop's figures."""
    return Loop(
        tokens_per_s=tokens_per_s,
        ttft_p50_ms=ttft_ms,
        ttft_p99_ms=ttft_ms,
        pace_p50_ms=10,
        gap_p99_ms=10,
        cpu_s_per_1000={"engine": 1.0},
    )


def test_ratios_are_taken_within_a_round() -> None:
    """A round that was slow for all does not move the ratio."""
    rounds = {
        BARE: [loop(100, 10), loop(50, 20)],
        TUNED: [loop(80, 10), loop(40, 20)],
        OURS: [loop(96, 12), loop(48, 22)],
    }
    found = {item.name: item for item in serve_measures({("short", 8): rounds})}
    beside = found[f"short 8: tokens/s of {TUNED}'s"]
    assert beside.value == 1.2 and beside.holds
    assert found[f"short 8: tokens/s of the {BARE}'s"].value == 0.96
    assert found[f"short 8: TTFT p50 above {TUNED}"].value == 2
