"""`assay run calibration`: confidences against correctness, pass@k and distinct answers, by hand."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from assay.cli.command import run_command
from assay.errors import RunError
from assay.evaluation.answer_confidence import (
    _PREDICTIONS,
    _diversity,
    answers_of,
    calibration,
    stated_confidence,
)
from assay.report.behavior_charts import calibration_charts
from assay.report.report import write_report

RUN = Path(__file__).parents[2] / "examples" / "gsm8k_cpu" / "run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def row(
    text: str, status: str, extracted: str | None, group: str = "a", **more: Any
) -> dict[str, Any]:
    facts = {"group_id": group, "text": text, "status": status, "extracted": extracted}
    return {
        **facts,
        "model_logprobs": [math.log(0.5), math.log(0.125)],
        "sampled": [True, False],
        **more,
    }


def test_a_completion_is_as_probable_as_its_sampled_tokens() -> None:
    group = [row("2", "passed", "2"), row("3", "failed", "3", model_logprobs=None)]
    assert _PREDICTIONS["log_probability"](group) == [(pytest.approx(0.5), True)]


def test_votes_of_equal_answers_are_added() -> None:
    group = [
        row("2", "passed", "2"),
        row("2.0", "passed", "2.0"),
        row("3", "failed", "3"),
        row("", "failed", None),
    ]
    assert answers_of(group) == [True, True, "3"]
    assert _PREDICTIONS["vote"](group) == [(pytest.approx(2 / 3), True)]
    assert _PREDICTIONS["vote"](group[2:]) == [], "one vote is no election"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Confidence: 80%", 0.8),
        ("confidence: 0.75", 0.75),
        ("I'm 90% sure that it is 7.", 0.9),
        ("I am about 60 percent certain.", 0.6),
        ("Confidence: 20%. No wait. Confidence: 95\\%", 0.95),
        ("The confidence level is 95%", 0.95),
        ("Confidence: 800%", None),
        ("She is 80 and 50% of the pens are red.", None),
        ("", None),
    ],
)
def test_the_last_stated_confidence_is_read(text: str, value: float | None) -> None:
    assert stated_confidence(text) == (None if value is None else pytest.approx(value))


def test_diversity_is_counted_by_group() -> None:
    rows = [row("1 + 1 = 2", "passed", "2"), row("so 2", "passed", "2"), row("3", "failed", "3")]
    rows += [row("9", "failed", "9", "b")] * 3
    found = _diversity(4, rows)
    assert (found.step, found.groups, found.size) == (4, 2, 3.0)
    assert found.pass_at == {1: pytest.approx(1 / 3), 2: 0.5, 3: 0.5}
    assert (found.answers, found.solutions) == (1.5, 2.0)
    assert found.texts == pytest.approx((1 + 1 / 3) / 2)


def test_a_run_is_calibrated_in_windows_and_drawn(run: Path) -> None:
    assert calibration_charts(run) == []
    result = calibration(run)
    assert result.read == 128
    assert {(one.name, one.when) for one in result.confidences} == {
        (name, when) for name in ("log_probability", "vote") for when in ("all", "1", "40")
    }
    for one in result.confidences:
        assert 0.0 < one.mean < 1.0 and 0.0 < one.calibration.ece < 1.0
    assert [one.step for one in result.diversity] == [1, 40]
    assert "pass@8" in str(result) and "stated" in str(result)
    titles = [chart.title for chart in calibration_charts(run)]
    assert titles == ["Reliability of the answers", "pass@k", "Diversity"]
    assert "pass@k" in write_report(run).read_text(encoding="utf-8")
    (run / "behaviors" / "calibration.json").write_text('{"confidences": 3}')
    assert calibration_charts(run) == []


def test_the_command_prints_json_and_refuses_a_run_without_rollouts(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["assay", "run", "calibration", str(run), "--json"])
    assert run_command() == 0
    assert json.loads(capsys.readouterr().out)["diversity"][0]["pass_at"]["1"] > 0
    shutil.rmtree(run / "rollouts")
    with pytest.raises(RunError, match="no judged rollouts"):
        calibration(run)
