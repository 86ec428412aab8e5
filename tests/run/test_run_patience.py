"""When a run may end early: by its evaluations alone, so that a resumed run ends at the same step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_fakes import make_config

from assay.config import EvaluationConfig
from assay.errors import ConfigError, RunError
from assay.run.directory import Run
from assay.run.evaluations import FINISHED_EARLY, why_settled
from assay.run.resume import check_has_use

HELDOUT = {"train": ["problems.jsonl"], "heldout": ["heldout.jsonl"]}


def rows(
    accuracies: Sequence[float | None], every: int = 10, stderr: float | None = 0.02
) -> list[dict[str, Any]]:
    """Evaluations every so many steps, from step 0."""
    return [
        {"step": every * n, "eval/pass_at_1": one, "eval/stderr": stderr}
        for n, one in enumerate(accuracies)
    ]


def settled(evaluations: Sequence[dict[str, Any]], patience: int | None = 2) -> bool:
    return why_settled(evaluations, EvaluationConfig(every=10, patience=patience)) is not None


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([], False),
        ([0.1], False),
        ([0.1, 0.5, 0.9], False),
        ([0.1, 0.5, 0.5], False),
        ([0.1, 0.5, 0.5, 0.51], True),
        ([0.1, 0.5, 0.3, 0.2], True),
        ([0.1, 0.5, 0.52, 0.52], True),  # equal to the bar is not above it
        ([0.1, 0.5, 0.515, 0.53], False),  # what rises slowly rises above the last improvement
        ([0.1, 0.5, 0.5, 0.53, 0.5], False),  # in a row
        ([0.0, 0.0, 0.0], True),  # a run that never learns
        ([0.1, 0.5, None, 0.5], False),  # not judged is no evaluation
        ([None, None, None, None], False),
    ],
)
def test_patience_counts_evaluations_without_improvement(
    accuracies: Sequence[float | None], expected: bool
) -> None:
    assert settled(rows(accuracies)) is expected


def test_a_run_without_patience_never_settles() -> None:
    assert not settled(rows([0.1] * 50), patience=None)


def test_a_single_problem_has_no_error_and_any_rise_counts() -> None:
    assert not settled(rows([0.1, 0.2, 0.2, 0.21], stderr=None))
    assert settled(rows([0.1, 0.2, 0.2, 0.2], stderr=None))


def test_an_evaluation_at_another_step_does_not_count() -> None:
    """A time limit adds one where the run happens to stop; the run that goes on must not notice."""
    found = rows([0.1, 0.5, 0.5])
    found.insert(2, {"step": 17, "eval/pass_at_1": 0.5, "eval/stderr": 0.02})
    assert not settled(found)
    found.insert(2, {"step": 18, "eval/pass_at_1": 0.9, "eval/stderr": 0.02})
    assert settled([*found, *rows([0.5] * 4)[3:]]), "nor does it raise the bar"


def test_patience_follows_the_first_kind_of_evaluation() -> None:
    warm = [{**row, "eval/temperature": 1.0} for row in rows([0.1, 0.2, 0.3, 0.4])]
    greedy = rows([0.1, 0.5, 0.5, 0.5])
    pairs = list(zip(greedy, warm, strict=True))
    assert settled([row for pair in pairs for row in pair])
    assert not settled([row for pair in pairs for row in reversed(pair)])


def test_the_reason_names_the_best_evaluation() -> None:
    why = why_settled(rows([0.1, 0.5, 0.4, 0.45]), EvaluationConfig(every=10, patience=2)) or ""
    assert "2 evaluations in a row were not above 0.500 of step 10" in why


def test_a_run_stops_when_it_has_settled(tmp_path: Path) -> None:
    evaluation = {"every": 1, "patience": 2}
    config = make_config(tmp_path, data=HELDOUT, evaluation=evaluation)
    with Run.create(config, quiet=True) as run:
        for step, accuracy in enumerate([0.1, 0.5, 0.5, 0.5]):
            assert run.stop_reason is None
            row = {"eval/temperature": 0.0, "eval/pass_at_1": accuracy, "eval/stderr": 0.0}
            run.record_evaluation(row, step)
        assert run.stop_reason == FINISHED_EARLY


def test_unused_settings_of_a_finished_run_are_refused(tmp_path: Path) -> None:
    change = ["optimizer.learning_rate: 1 before, 2 now"]
    check_has_use(tmp_path, 5, 10, change)
    with pytest.raises(RunError, match=r"finished early, after step 5.*evaluation\.patience="):
        check_has_use(tmp_path, 5, 10, change, early=True)
    check_has_use(tmp_path, 5, 10, [], early=True)


@pytest.mark.parametrize(
    ("data", "evaluation", "missing"),
    [
        (HELDOUT, {"patience": 2}, "without evaluation.every"),
        ({"train": ["problems.jsonl"]}, {"patience": 2, "every": 5}, "without held-out data"),
        (HELDOUT, {"patience": 0, "every": 5}, "accepted: a whole number >= 1"),
    ],
)
def test_patience_with_nothing_to_watch_is_refused(
    tmp_path: Path, data: dict[str, Any], evaluation: dict[str, Any], missing: str
) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.patience") as found:
        make_config(tmp_path, data=data, evaluation=evaluation)
    assert missing in str(found.value)
