"""The compared number of a run, from canned evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.errors import RunError
from assay.sweep.metric import num_not_judged, value_of

Evaluation = Mapping[str, Any]


def evaluation(step: int, accuracy: float | None, **more: float) -> Evaluation:
    row = {"step": step, "eval/temperature": 1.0, **{f"eval/{k}": v for k, v in more.items()}}
    return row if accuracy is None else {**row, "eval/pass_at_1": accuracy}


def a_run(folder: Path, rows: Sequence[Evaluation]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "evaluations.jsonl").write_text(text)
    return folder


def test_the_accuracy_is_that_of_the_last_evaluation(tmp_path: Path) -> None:
    rows = [evaluation(0, 0.1), evaluation(30, 0.4, num_not_judged=2)]
    run = a_run(tmp_path, [*rows, {**evaluation(30, 0.9), "eval/temperature": 0.5}])
    assert value_of(run, "accuracy") == 0.4 and num_not_judged(run, "accuracy") == 2
    assert num_not_judged(run, "length/mean") == 0


@pytest.mark.parametrize("metric", ["accuracy", "eval/majority"])
def test_an_earlier_evaluation_does_not_replace_one_that_was_not_judged(
    tmp_path: Path, metric: str
) -> None:
    rows = [evaluation(0, 0.1, majority=0.2), evaluation(30, None, num_not_judged=12)]
    with pytest.raises(RunError, match=rf'metric: found "{metric}".*eval/num_not_judged'):
        value_of(a_run(tmp_path, rows), metric)
    assert value_of(tmp_path, "eval/num_not_judged") == 12
