"""The evaluation log: completions and verdicts of held-out problems, by step and kind of
evaluation.

    runs/NAME/evaluations/greedy/step-000020.parquet

The files have the columns of the rollout log (docs/rollouts.md). The learner's columns are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from assay.config import SamplingConfig
from assay.run.environment import hashes_of
from assay.run.rollout_log import RolloutLog, read_columns
from assay.types import Group, Verdict

FOLDER = "evaluations"
_SHOWN = ("problem_id", "prompt", "text", "status", "reward", "extracted", "num_tokens")


def log_of(run: Path, kind: str) -> RolloutLog:
    """Return the log of one kind of evaluation, such as ``greedy`` or ``temperature 1``."""
    return RolloutLog(run / FOLDER / kind.replace(" ", "-"))


def record_answers(
    run: Path,
    kind: str,
    step: int,
    judged: Sequence[tuple[Group, Sequence[Verdict]]],
    sampling: SamplingConfig,
    verifiers: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the completions of an evaluation to the log. An existing file for the same step and
    kind of evaluation is replaced.
    """
    (run / FOLDER).mkdir(exist_ok=True)
    groups, verdicts = [one for one, _ in judged], [one for _, one in judged]
    plain = sampling.model_dump(mode="json")
    with closing(log_of(run, kind)) as log:
        log.record(step, groups, verdicts, plain, hashes_of(verifiers))


def read_answers(run: Path, kind: str, step: int) -> dict[str, list[dict[str, Any]]]:
    """Read the completions of an evaluation, by problem id.

    If the log has no file for the evaluation, the result is empty.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    with closing(log_of(run, kind)) as log:
        for row in read_columns(log.path(step), _SHOWN) or ():
            found.setdefault(row["problem_id"], []).append(row)
    return found


def discard_answers(run: Path, step: int) -> None:
    """Remove the completions of all evaluations after a training step."""
    for folder in (run / FOLDER).glob("*/"):
        with closing(RolloutLog(folder)) as log:
            log.discard_after(step)
