"""Counts and latencies: percentiles, what is fresh, and a bounded number of metrics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.verify.base import Part
from assay.verify.serving.stats import MAX_VERIFIERS, VerifierStats, step_metrics


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_percentiles_are_nearest_ranks(seconds: list[float]) -> None:
    stats = VerifierStats()
    for each in seconds:
        stats.add(Part(1.0, seconds=each))
    ordered, found = sorted(seconds), stats.summary()
    for percent in (50, 95, 99):
        at_least = sum(one <= found[f"p{percent}"] for one in ordered)
        below = sum(one < found[f"p{percent}"] for one in ordered)
        assert 100 * below < percent * len(ordered) <= 100 * at_least


def test_hits_take_no_time_and_are_no_latency() -> None:
    stats = VerifierStats()
    for seconds in (0.25, 0.25):
        stats.add(Part(1.0, seconds=seconds))
    stats.add(Part(1.0), hit=True)
    found = stats.summary()
    assert (found["count"], found["cache_hits"], found["per_second"]) == (3, 1, 4.0)
    assert found["p50"] == 0.25


def test_stats_without_verdicts_are_zero() -> None:
    found = VerifierStats().summary()
    assert (found["count"], found["p99"], found["per_second"], found["not_judged"]) == (0, 0, 0, {})
    assert "asked" not in found


def test_an_alternative_says_how_often_it_accepted() -> None:
    stats = VerifierStats()
    stats.add(Part(1.0), accepted=True)
    stats.add(Part.not_judged("timeout", "killed"), accepted=False)
    found = stats.summary()
    assert (found["asked"], found["accepted"], found["not_judged"]) == (2, 1, {"timeout": 1})


def test_metrics_are_few_and_of_the_busiest() -> None:
    many: dict[str, VerifierStats] = {}
    for number in range(MAX_VERIFIERS + 9):
        many[f"v{number:02d}"] = VerifierStats()
        for _ in range(number + 1):
            many[f"v{number:02d}"].add(Part.not_judged("error", "x", 0.5))
    metrics = step_metrics(many)
    names = {key.split("/")[1] for key in metrics}
    assert names == {f"v{number:02d}" for number in range(9, MAX_VERIFIERS + 9)}
    assert {key.split("/")[2] for key in metrics} == {
        "count", "p50", "p95", "p99", "per_second", "not_judged_error",
    }  # fmt: skip
    assert metrics["verify/v24/not_judged_error"] == metrics["verify/v24/count"] == 25.0
