"""Studies: caching, claims, tables and figures on canned numbers, and one quick run from end to end."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from assay.run.seed_statistics import mean_and_error
from studies import summary
from studies.campaign import Arm, Outcome, Panel, Study, Task, once, run_all, run_one
from studies.claims import (
    Finding,
    Of,
    Outcomes,
    equals,
    exceeds,
    interval_of,
    not_below,
    standing,
)
from studies.page import Run, add_run, band, judged, page, read_runs, run_of, table, write_page

ROOT = Path(__file__).parents[2]
STUDIES = sorted(
    path.stem
    for path in (ROOT / "studies").glob("*.py")
    if "\nSTUDY = " in path.read_text(encoding="utf-8")
)


def canned(**arms: list[float]) -> Outcomes:
    return {
        arm: {n: {"x": value} for n, value in enumerate(values)} for arm, values in arms.items()
    }


def a_study(run: Any = None) -> Study:
    def fails(task: Task) -> Outcome:
        raise AssertionError("nothing is to be run")

    return Study(
        name="canned",
        title="A title",
        source="a paper.",
        setup="a world",
        run=run or fails,
        arms=(Arm("more", "the one"), Arm("less", "the other")),
        claims=(exceeds("More is more.", Of("more", "x"), Of("less", "x"), margin=0.5),),
        panels=(Panel("y", "what rises", window=2),),
        columns={"x": "the value", "absent": "nothing"},
        limits="It is canned.",
    )


def found(**arms: list[float]) -> dict[str, dict[int, dict[str, Any]]]:
    curve = [[1, 1.0], [2, 3.0]]
    return {
        arm: {
            seed: {
                "values": one,
                "curves": {"y": curve},
                "seconds": 2.0,
                "cpu_seconds": 1.0,
                "machine": "a processor",
            }
            for seed, one in by_seed.items()
        }
        for arm, by_seed in canned(**arms).items()
    }


def a_run(kind: Any, more: Sequence[float] = (2.0, 2.1) * 4) -> Run:
    return run_of(a_study(), kind, found(more=[*more], less=[1.0] * 8))


NOISE = (0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1)  # its interval is 0.09 to either side


def around(mean: float, noise: float = 1.0) -> list[float]:
    return [mean + noise * one for one in NOISE]


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        (around(2.0), "reproduced"),
        (around(1.2), "not reproduced"),  # more, surely, but less than the margin
        (around(1.0), "not reproduced"),
        (around(2.0, 30.0), "inconclusive"),
        (around(1.45), "inconclusive"),  # mean below the margin, which is within the interval
    ],
)
def test_exceeds_has_three_answers(more: list[float], verdict: str) -> None:
    claim = exceeds("", Of("more", "x"), Of("less", "x"), margin=0.5)
    assert claim.test(canned(more=more, less=[1.0] * 8)).verdict == verdict


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        (around(1.0), "reproduced"),
        (around(2.0), "not reproduced"),
        (around(0.0), "not reproduced"),
        (around(1.0, 10.0), "inconclusive"),
        (around(1.45), "inconclusive"),
    ],
)
def test_equals_has_three_answers(more: list[float], verdict: str) -> None:
    claim = equals("", Of("more", "x"), Of("less", "x"), margin=0.5)
    assert claim.test(canned(more=more, less=[1.0] * 8)).verdict == verdict


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        (around(3.0), "reproduced"),
        (around(0.8), "reproduced"),
        (around(0.0), "not reproduced"),
        (around(0.5, 10.0), "inconclusive"),
    ],
)
def test_not_below_has_three_answers(more: list[float], verdict: str) -> None:
    claim = not_below("", Of("more", "x"), Of("less", "x"), margin=0.5)
    assert claim.test(canned(more=more, less=[1.0] * 8)).verdict == verdict


@pytest.mark.parametrize("claim", [exceeds, equals, not_below])
def test_fewer_than_eight_seeds_decide_nothing(claim: Any) -> None:
    """However alike they are: two verdicts of three on three seeds changed on another processor."""
    for more in (0.0, 1.0, 9.0):
        few = canned(more=[more] * 7, less=[1.0] * 7)
        found = claim("", Of("more", "x"), Of("less", "x"), margin=0.5).test(few)
        assert found.verdict == "inconclusive"
        assert "7 seeds: too few to decide" in found.numbers


def test_two_standard_errors_over_eight_seeds_are_not_enough() -> None:
    """d = 2.2 e: beyond two standard errors, within Student's 2.36."""
    error = mean_and_error(NOISE)[1]
    found = interval_of([one + 2.2 * error for one in NOISE])
    assert found.low < 0 < found.mean - 2 * error


def test_an_interval_misses_as_often_as_it_says() -> None:
    """Of 4 000 intervals of eight normal draws, about 5 % leave out the mean (here within 4 deviations)."""
    random = Random(0)
    found = [interval_of([random.gauss(0, 1) for _ in range(8)]) for _ in range(4000)]
    missed = sum(not one.low < 0 < one.high for one in found) / len(found)
    assert missed == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 4000))


def test_a_verdict_is_accepted_if_two_runs_agree() -> None:
    yes, no = Finding("reproduced", ""), Finding("not reproduced", "")
    assert standing([yes, yes]) == "Reproduced"
    assert (
        standing([yes, no])
        == "Inconclusive (reproduced in the first run, not reproduced in the second run)"
    )
    assert standing([yes]) == "Reproduced, in one run"


def test_unmeasured_facts_decide_nothing() -> None:
    claim = exceeds("", Of("more", "y"), Of("less", "x"), margin=0.5)
    assert claim.test(canned(more=[1.0, 2.0], less=[1.0, 1.0])).verdict == "inconclusive"


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ by far more than arms do: paired, the difference is exact."""
    less = [10.0**n for n in range(8)]
    claim = exceeds("", Of("more", "x"), Of("less", "x"), margin=0.5)
    found = claim.test(canned(more=[one + 1.0 for one in less], less=less))
    assert found == claim.test(canned(more=[1.0] * 8, less=[0.0] * 8))
    assert found.verdict == "reproduced"


def test_ratios_are_of_logarithms() -> None:
    claim = exceeds("", Of("more", "x"), Of("less", "x"), margin=1.5, as_ratio=True)
    outcomes = canned(more=[2.0, 20.0] * 4, less=[1.0, 10.0] * 4)
    assert claim.test(outcomes).verdict == "reproduced"
    assert claim.test(outcomes).numbers.startswith("ratio 2.00 ")
    closer = canned(more=[1.2, 12.0] * 4, less=[1.0, 10.0] * 4)
    assert claim.test(closer).verdict == "not reproduced"


def test_a_band_averages_points_then_seeds() -> None:
    points = band([[[1, 0.0], [2, 2.0]], [[1, 2.0], [2, 4.0], [3, 9.0]]], window=2)
    assert points == [(1, 1.0, 1.0), (2, 2.0, 1.0)]  # step 3 is of one seed only


def test_a_table_has_means_errors_and_seeds() -> None:
    lines = table(a_study(), canned(more=[1.0, 3.0], less=[0.0, 0.0])).splitlines()
    assert lines[0] == "| arm | the value | nothing |"
    assert lines[2] == "| more | 2.00 ± 1.00 (1.00, 3.00) |  |"


def test_a_page_says_what_was_found_and_how_it_was_judged() -> None:
    text = page(a_study(), [a_run("first"), a_run("seeds")])
    numbers = "difference 1.05 (95 % interval 1.01 to 1.09, 8 seeds)"
    assert f"- More is more: **Reproduced**; first run: {numbers}; other seeds: {numbers}." in text
    assert text.count("| more | 2.05") == 2
    assert "compares the value, *more* minus *less*. The claim counts as reproduced if" in text
    assert "if the mean difference is at least 0.5" in text
    assert "seeds 0, 1, 2, 3, 4, 5, 6, 7; 16 processes of one thread" in text
    assert "It is canned." in text


def test_a_page_of_one_run_says_so() -> None:
    text = page(a_study(), [a_run("first")])
    assert "**Reproduced, in one run**" in text


def test_the_figure_is_the_same_each_time(tmp_path: Path) -> None:
    numbers = found(more=[2.0, 2.1], less=[1.0, 1.0])
    runs = [run_of(a_study(), "first", numbers)]
    a, b = (write_page(a_study(), runs, tmp_path / name, numbers) for name in "ab")
    assert a.with_suffix(".svg").read_bytes() == b.with_suffix(".svg").read_bytes()
    assert b"what rises" in a.with_suffix(".svg").read_bytes()


def test_a_run_on_other_seeds_decides_in_place_of_one_that_rounds_differently(
    tmp_path: Path,
) -> None:
    same, other = a_run("rounding"), a_run("seeds", more=[1.0] * 8)
    path = write_page(a_study(), [a_run("first"), same], tmp_path)
    assert "**Reproduced**" in path.read_text()
    add_run(a_study(), other, tmp_path)
    text = path.read_text()
    assert (
        "**Inconclusive (reproduced in the first run, not reproduced in the second run)**" in text
    )
    assert [run.kind for run in read_runs(a_study(), text)] == ["first", "seeds", "rounding"]
    add_run(a_study(), a_run("seeds"), tmp_path)
    assert "**Reproduced**" in path.read_text()


def test_runs_are_read_back_from_their_page() -> None:
    runs = [a_run("first"), a_run("seeds", more=[3.0, 4.0] * 4), a_run("rounding")]
    read = read_runs(a_study(), page(a_study(), runs))
    assert [(run.kind, run.machines) for run in read] == [(run.kind, run.machines) for run in runs]
    for one, other in zip(read, runs, strict=True):
        values = {
            arm: {seed: {"x": found["x"]} for seed, found in by_seed.items()}
            for arm, by_seed in other.outcomes.items()
        }
        assert one.outcomes == values  # of the page's columns alone


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_says_what_its_own_numbers_say(name: str) -> None:
    study: Study = importlib.import_module(f"studies.{name}").STUDY
    text = (ROOT / "docs" / "studies" / f"{name}.md").read_text(encoding="utf-8")
    said = re.findall(
        r"^- .*?\*\*([RNI][^*]*)\*\*; first run: (?:difference|ratio)", text, re.MULTILINE
    )
    assert said == [together for _, together in judged(study, read_runs(study, text))]


def test_the_counts_of_the_pages_are_current() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert summary.readme_row() in readme, "run: python -m studies.summary"
    page = (ROOT / "studies" / "README.md").read_text(encoding="utf-8")
    assert summary.table() in page, "run: python -m studies.summary"


def test_results_are_cached_by_their_settings(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(len(made))
        (tmp_path / "run").mkdir()  # a folder that a killed run leaves must be gone by now
        return {"n": len(made)}

    assert once(tmp_path, {"a": 1}, make) == {"n": 1}
    assert once(tmp_path, {"a": 1}, make) == {"n": 1}
    assert once(tmp_path, {"a": 2}, make) == {"n": 2}


def test_a_run_that_failed_is_made_again(tmp_path: Path) -> None:
    def run(task: Task) -> Outcome:
        (task.folder / "rl").mkdir()
        if not (tmp_path / "healed").exists():
            raise RuntimeError("killed")
        return Outcome({"x": task.seed + 0.5})

    study = a_study(run)
    with pytest.raises(RuntimeError):
        run_one(study, study.arms[0], 3, tmp_path, quick=False)
    (tmp_path / "healed").touch()
    assert run_one(study, study.arms[0], 3, tmp_path, quick=False)["values"] == {"x": 3.5}


def test_arms_of_a_study_may_share_a_process(tmp_path: Path) -> None:
    """The canned study's command fails: one process failed where each arm has had its own."""
    together = replace(a_study(), together=True)
    with pytest.raises(SystemExit, match=r"canned: 1 runs failed"):
        run_all(together, [0], tmp_path, jobs=2, quick=True)
    numbers = found(more=[2.0] * 8, less=[1.0] * 8)
    assert "8 processes of one thread" in run_of(together, "first", numbers).machines


def test_a_failed_run_is_named(tmp_path: Path) -> None:
    """The command of the canned study does not exist, so that each of its runs fails."""
    with pytest.raises(SystemExit, match=r"2 runs failed.*-0/log\.txt"):
        run_all(a_study(), [0], tmp_path, jobs=2, quick=True)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_judges_what_it_shows(name: str) -> None:
    """Claims name arms and columns that exist, and equal numbers decide: nothing exceeds, all are equal."""
    study: Study = importlib.import_module(f"studies.{name}").STUDY
    assert study.name == name
    assert len({arm.name for arm in study.arms}) == len(study.arms)
    values = dict.fromkeys(study.columns, 1.0)
    outcomes = {arm.name: dict.fromkeys(range(8), values) for arm in study.arms}
    for claim in study.claims:
        assert claim.test(outcomes).verdict in ("reproduced", "not reproduced")


def test_a_quick_study_runs_from_cold_start_on(tmp_path: Path) -> None:
    study: Study = importlib.import_module("studies.clip_higher").STUDY
    kept = run_one(study, study.arms[0], 0, tmp_path, quick=True)
    assert {"entropy_end", "accuracy", "passed_end"} <= kept["values"].keys()
    assert [x for x, _ in kept["curves"]["entropy"]] == [1, 2]
    assert (tmp_path / "quick" / "cold-start-0" / "demo-cold-start" / "config.toml").is_file()
