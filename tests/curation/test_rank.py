"""Rank: by reward, with errors of a stated size; what it writes, `pairs` reads."""

from __future__ import annotations

from math import exp
from pathlib import Path
from random import Random
from typing import Any

import pytest
from stage_runs import run_on, took, written

from assay.curation.base import run_stage
from assay.curation.rank import SHIPPED, ranking
from assay.errors import DataError


def judged(problem: str, text: str, reward: float | None, **more: Any) -> dict[str, Any]:
    status = "not_judged" if reward is None else "passed"
    verdict = {"status": status, "reward": reward}
    return {"prompt": problem, "completion": text, "verdict": verdict, **more}


def test_completions_of_a_problem_stand_in_the_order_of_their_rewards(tmp_path: Path) -> None:
    rows = [
        judged("2+2?", "4", 1.0, tags=["sums"], problem_id="a"),
        judged("2+2?", "5", 0.0, problem_id="a"),
        judged("2+2?", "four", 1.0, problem_id="a"),
        judged("2+2?", "3", -0.5, problem_id="a"),
        judged("2+2?", " 4 ", 1.0, problem_id="a"),
        judged("2+2?", "  ", 0.0, problem_id="a"),
        judged("2+2?", "?", None, problem_id="a"),
        judged("3+3?", "6", 1.0, problem_id="b"),
    ]
    kept, manifest = run_on(tmp_path, "rank", rows)
    (row,) = kept
    assert (row["id"], row["prompt"], row["tags"]) == ("a", "2+2?", ["sums"])
    assert row["completions"] == ["4", "5", "four", "3"] and row["ranking"] == [1, 2, 1, 3]
    assert took(manifest) == {"empty": 1, "not judged": 1, "duplicate": 1, "alone": 1}
    assert manifest.measured["pairs ranked in the order of their rewards"] == 1.0
    assert manifest.measured["pairs on which two annotators agree"] == 1.0
    ranked = str(tmp_path / "rank" / "rows.jsonl")
    run_stage("pairs", {"inputs": [ranked], "most": 6}, tmp_path / "pairs")
    found = {(one["chosen"], one["rejected"]) for one in written(tmp_path / "pairs")}
    assert found == {("4", "5"), ("4", "3"), ("four", "5"), ("four", "3"), ("5", "3")}


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_annotators_err_as_often_as_is_said(noise: float) -> None:
    rng, draws = Random(0), 6000
    first = sum(ranking([1.0, 0.0], noise, rng) == [1, 2] for _ in range(draws))
    assert first / draws == pytest.approx(1 / (1 + exp(-1.0 / noise)), abs=0.02)


def test_what_was_measured_agrees_with_the_rankings(tmp_path: Path) -> None:
    rows = [
        judged(f"{n}?", text, reward)
        for n in range(400)
        for text, reward in (("good", 1.0), ("bad", 0.0), ("worse", 0.0))
    ]
    kept, manifest = run_on(tmp_path, "rank", rows, noise=1.0)
    better = [row["ranking"][0] < rank for row in kept for rank in row["ranking"][1:]]
    assert manifest.measured["pairs of different rewards"] == len(better) == 800
    assert manifest.measured["pairs ranked in the order of their rewards"] == sum(better) / 800
    assert 0.67 < sum(better) / 800 < 0.79
    assert 0.5 < manifest.measured["pairs on which two annotators agree"] < 0.65
    again, _ = run_on(tmp_path / "again", "rank", rows, noise=1.0)
    other, _ = run_on(tmp_path / "other", "rank", rows, noise=1.0, seed=1)
    assert [row["ranking"] for row in again] == [row["ranking"] for row in kept]
    assert [row["ranking"] for row in other] != [row["ranking"] for row in kept]


def test_the_guide_lies_beside_the_rows(tmp_path: Path) -> None:
    rows = [judged("2+2?", "4", 1.0), judged("2+2?", "5", 0.0)]
    run_on(tmp_path, "rank", rows, guide="rlhf_guide.md")
    shipped = (SHIPPED / "rlhf_guide.md").read_text(encoding="utf-8")
    assert (tmp_path / "rank" / "guide.md").read_text(encoding="utf-8") == shipped
    (tmp_path / "mine.md").write_text("Be kind.", encoding="utf-8")
    run_on(tmp_path / "two", "rank", rows, guide=str(tmp_path / "mine.md"))
    assert (tmp_path / "two" / "rank" / "guide.md").read_text(encoding="utf-8") == "Be kind."
    with pytest.raises(DataError, match=r'guide: found "gide.md"; .*a Markdown file.*rlhf_guide'):
        run_on(tmp_path / "three", "rank", rows, guide="gide.md")


def test_a_row_without_a_verdict_is_told(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2?", "completion": "4"}]
    with pytest.raises(DataError, match=r"input-0.jsonl:1 verdict: found none; accepted: a .verd"):
        run_on(tmp_path, "rank", rows)
