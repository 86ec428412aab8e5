"""Tables of sweeps on canned numbers: differences, corrections, words, and the figure."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence

import pytest

from assay.run.paired import holm
from assay.run.seed_statistics import SeedDifference
from assay.sweep.comparison import SweepTable, compare_arms
from assay.sweep.forest import draw_forest
from assay.sweep.page import Reported, SweepResult, as_markdown, as_text

NOISE = (0.1, -0.1, 0.05, -0.05, 0.12, -0.12, 0.02, -0.02)
SEEDS = range(8)


def table(seeds: Sequence[int] = SEEDS, **means: float) -> SweepTable:
    """Arms whose differences to the first are a mean and noise; seeds differ by far more."""
    values = {
        arm: {
            seed: 10.0 * seed + mean + (NOISE[n % 8] if n_arm else 0.0)
            for n, seed in enumerate(seeds)
        }
        for n_arm, (arm, mean) in enumerate(means.items())
    }
    return compare_arms(values, {}, next(iter(means)), seeds)


def result(first: SweepTable, **more: object) -> SweepResult:
    facts: Mapping[str, object] = {"name": "s", "folder": "sweeps/s", "metric": "accuracy"}
    return SweepResult(**{**facts, "better": "higher", "first": first, **more})  # type: ignore[arg-type]


def test_differences_are_paired_by_seed() -> None:
    found = table(base=0.0, more=0.5).row("more").difference
    expected = SeedDifference.of([0.5 + one for one in NOISE])
    assert found is not None and found.excludes_zero
    assert (found.mean, found.low) == pytest.approx((expected.mean, expected.low))


def test_p_values_are_corrected_over_all_arms() -> None:
    found = table(base=0.0, a=0.1, b=0.05, c=0.0)
    raw = [row.difference.p_value for row in found.compared if row.difference]
    assert [row.p_holm for row in found.compared] == holm(raw)  # type: ignore[arg-type]
    assert found.expected_by_chance == pytest.approx(0.15)
    text = as_text(result(found))
    assert "3 comparisons with base" in text and "0.15 of 3 intervals would exclude 0" in text


def test_the_best_mean_wins_and_the_baseline_wins_a_tie() -> None:
    found = table(base=0.0, a=0.2, b=-0.2)
    assert (found.best(True).arm, found.best(False).arm) == ("a", "b")
    tie = compare_arms({"a": {0: 1.0}, "base": {0: 1.0}}, {}, "base", [0])
    assert tie.best(True).arm == tie.best(False).arm == "base"


def test_missing_runs_are_left_out_and_said() -> None:
    values = {"base": {0: 1.0, 1: 2.0, 2: 3.0}, "a": {1: 2.5, 2: 3.5}}
    found = compare_arms(values, {}, "base", [0, 1, 2])
    difference = found.row("a").difference
    assert difference is not None and (difference.mean, difference.num_seeds) == (0.5, 2)
    text = as_text(result(found, unfinished={"a-seed0": "RunStopped: entropy"}))
    assert "Runs are missing in a." in text and "a-seed0: RunStopped: entropy." in text


@pytest.mark.parametrize("values", [{}, {0: 1.0}])
def test_an_arm_with_no_or_one_run_has_no_interval(values: dict[int, float]) -> None:
    found = compare_arms({"base": {0: 0.5, 1: 0.5}, "a": values}, {}, "base", [0, 1])
    one = result(found)
    assert ElementTree.fromstring(draw_forest(found, "accuracy")).tag.endswith("svg")
    assert json.dumps(one.as_dict(), allow_nan=False)
    assert ("no pair of finished runs" in as_text(one)) == (not values)


def test_a_sweep_without_a_finished_run_says_so() -> None:
    found = compare_arms({"base": {}, "a": {}}, {}, "base", [0])
    assert "No run finished." in as_text(result(found))


def test_reasons_stand_on_the_page_if_no_run_of_the_baseline_finished() -> None:
    found = compare_arms({"base": {}, "a": {0: 0.5}}, {}, "base", [0])
    one = result(found, unfinished={"base-seed0": "RunStopped: entropy"})
    text = as_text(one)
    assert "base-seed0: RunStopped: entropy." in text
    assert "No run of base finished" in text and "No run finished" not in text
    assert one.as_dict()["winner"] is None and json.dumps(one.as_dict(), allow_nan=False)
    assert draw_forest(found, "accuracy")


def test_an_arm_does_not_win_because_its_bad_seeds_failed() -> None:
    values = {"base": {0: 0.1, 1: 0.9}, "a": {1: 0.8}}
    found = compare_arms(values, {}, "base", [0, 1])
    assert found.best(True).arm == "base" and found.best(False).arm == "a"
    assert "No arm is better than base" in as_text(result(found))
    assert "a has the lowest mean difference to base" in as_text(result(found, better="lower"))


def test_replication_is_told_in_words() -> None:
    again = range(8, 16)
    first = table(base=0.0, both=1.0, once=1.0, neither=0.0)
    other = table(again, base=0.0, both=0.8, once=0.0, neither=0.0)
    text = as_text(result(first, other=other))
    assert "both: the difference to base is confirmed by the other seeds." in text
    assert "once: only one of the two sweeps shows a difference: inconclusive." in text
    assert "neither: neither sweep shows a difference." in text
    opposite = table(again, base=0.0, both=-0.8, once=0.0, neither=0.0)
    assert "both: the two sweeps show opposite differences" in as_text(
        result(first, other=opposite)
    )


def test_the_report_set_replaces_the_optimistic_figure() -> None:
    first = table(base=0.0, a=0.2)
    assert "is optimistic" in as_text(result(first))
    reported = Reported(["r.jsonl"], 50, table(base=0.0, a=0.1))
    text = as_text(result(first, has_report=True, reported=reported))
    assert "optimistic" not in text and "accuracy on 50 report problems" in text
    assert "On the report problems, which influenced no choice: accuracy " in text


def test_arms_that_change_nothing_are_named() -> None:
    same = compare_arms(
        {"base": dict.fromkeys(SEEDS, 0.5), "a": dict.fromkeys(SEEDS, 0.5)}, {}, "base", SEEDS
    )
    assert "a: every seed has the value of the baseline" in as_text(result(same))


def test_hostile_texts_do_not_break_the_page_or_the_figure() -> None:
    values = {"base": dict.fromkeys(SEEDS, 0.5), "a": {n: 0.5 + NOISE[n] for n in SEEDS}}
    found = compare_arms(values, {"a": "x | y\nz"}, "base", SEEDS)
    assert "- *a*: x \\| y z" in as_markdown(result(found))
    assert ElementTree.fromstring(draw_forest(found, "eval/<b>&")).tag.endswith("svg")
    assert draw_forest(found, "m") == draw_forest(found, "m")


def test_completions_without_a_verdict_are_named() -> None:
    one = result(table(base=0.0, a=0.2), not_judged={"a-seed3": 2})
    said = "a-seed3: 2 completions of the last evaluation could not be judged and do not count."
    assert said in as_text(one) and one.as_dict()["not_judged"] == {"a-seed3": 2}
