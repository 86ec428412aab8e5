"""Calibration and diversity of a run's completions: ``assay run calibration RUN``.

Three confidences are compared with correctness: the mean log-probability of a completion, the share
of a prompt's completions with the most frequent answer, and a confidence that the text states.
Diversity is measured by pass@k relative to pass@1, and by the numbers of distinct answers,
solutions and texts in a group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import RunError
from assay.evaluation.behavior_rates import drawn_groups, thinned_steps
from assay.host.files import check_folder, config_of, plain, write_json
from assay.host.terminal import aligned, lined
from assay.report.behavior_charts import CALIBRATION, FOLDER
from assay.run.intervals import Interval, clustered_stderr, share_interval
from assay.run.rollout_log import RolloutLog, read_columns
from assay.session.evaluate import pass_at_k
from assay.training.calibration import Calibration, calibrate

CONFIDENCES = ("log_probability", "vote", "stated")
# The number of reliability bins is lower than for reward models: a run has fewer predictions.
BINS = 10
# Calibration is measured on the first and the last fifth of the steps, to show its change.
_WINDOW = 0.2
_COLUMNS = ("completion_id", "group_id", "text", "status", "extracted", "model_logprobs", "sampled")
# Models state a confidence as "Confidence: 80%", "confidence 0.8" or "I'm 80% sure".
_STATED = re.compile(
    r"\b(?:confidence(?: level| score)?\W{1,4}(?:is |of |about )?|i.?a?m (?:about |roughly )?)"
    r"(?P<percent>\d{1,3}(?:\.\d+)?)\s?(?:\\?%| percent)(?: (?:sure|confident|certain))?"
    r"|\bconfidence(?: level| score)?\W{1,4}(?:is )?(?P<share>[01]?\.\d+)\b"
    r"|\b(?P<sure>\d{1,3})\s?% (?:sure|confident|certain)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Confidence:
    """Predictions of one type of confidence, and the correctness of the predicted completions.

    name: one of `CONFIDENCES`. when: the steps, as text. count: number of predictions. groups:
    number of groups (prompts) whose completions have a prediction. interval: 95 % interval of the
    accuracy of the completions with a prediction.
    """

    name: str
    when: str
    count: int
    groups: int
    mean: float
    accuracy: float
    interval: Interval
    calibration: Calibration

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        names = ("name", "when", "count", "groups", "mean", "accuracy", "interval")
        rates = {
            key.removeprefix("eval/"): value for key, value in self.calibration.as_row().items()
        }
        return {**{name: getattr(self, name) for name in names}, **rates}


@dataclass(frozen=True, slots=True)
class Diversity:
    """Diversity of the completion groups in one training step. pass_at: pass@k for each k; pass@1
    is the pass rate.

    answers: mean number of distinct answers per group; all correct answers count as one answer.
    solutions: mean number of distinct solutions per group; a solution is the sequence of numbers in
    a text. texts: mean share of distinct texts among the completions of a group. size: mean group
    size.
    """

    step: int
    groups: int
    size: float
    pass_at: Mapping[int, float]
    answers: float | None
    solutions: float
    texts: float


@dataclass(frozen=True)
class CalibrationResult:
    """Confidence predictions and diversity of the completions of a run.

    read, of: number of completions that were analyzed, and number of all recorded completions.
    """

    run: str
    of: int
    read: int
    confidences: Sequence[Confidence]
    diversity: Sequence[Diversity]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        rows = [
            {**{name: getattr(one, name) for name in Diversity.__slots__}} for one in self.diversity
        ]
        return plain(
            {
                "run": self.run,
                "of": self.of,
                "read": self.read,
                "confidences": [one.as_dict() for one in self.confidences],
                "diversity": rows,
            }
        )

    def __str__(self) -> str:
        lines = [f"{self.run}: {self.read} of {self.of} judged completions of groups read"]
        head = ["confidence", "steps", "count", "mean", "accuracy", "ECE", "Brier"]
        table = [head]
        for one in self.confidences:
            low, high = one.interval
            accuracy = f"{one.accuracy:.1%} ({100 * low:.0f} to {100 * high:.0f})"
            errors = (f"{one.calibration.ece:.3f}", f"{one.calibration.brier:.3f}")
            table.append([one.name, one.when, str(one.count), f"{one.mean:.1%}", accuracy, *errors])
        if missing := [
            name for name in CONFIDENCES if name not in {one.name for one in self.confidences}
        ]:
            table.append([*missing[:1], "none", *[""] * 5])
            table += [[name, "none", *[""] * 5] for name in missing[1:]]
        ks = sorted({k for one in self.diversity for k in one.pass_at})
        rows = [["step", *(f"pass@{k}" for k in ks), "answers", "solutions", "distinct texts"]]
        for one in self.diversity:
            rates = [f"{one.pass_at[k]:.1%}" if k in one.pass_at else "-" for k in ks]
            answers = "-" if one.answers is None else f"{one.answers:.2f}"
            rest = (answers, f"{one.solutions:.2f}", f"{one.texts:.0%}")
            rows.append([str(one.step), *rates, *rest])
        shown = [rows[0], *_ends(rows[1:])]
        return lined([*lines, *aligned(table), "", *aligned(shown)])


def _ends(rows: Sequence[list[str]], most: int = 12) -> list[list[str]]:
    """Return at most ``most`` rows at even distances, including the first row and the last row."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(n * (len(rows) - 1) / (most - 1))] for n in range(most)]


def calibration(run: Path | str, *, among: int = 5000, seed: int = 0) -> CalibrationResult:
    """Compare confidences with correctness, and measure diversity, over a run's rollouts.

    among: approximate number of completions to read from the run, as in `behavior_rates`. The
    result is written to ``RUN/behaviors/calibration.json``, from which the report draws its chart.
    Raises RunError for a run without judged rollouts.
    """
    folder = Path(run)
    config_of(folder)
    check_folder(folder / FOLDER, str(folder))
    log = RolloutLog(folder / "rollouts")
    sizes = {step: len(read_columns(log.path(step), ["step"]) or ()) for step in log.steps()}
    steps = thinned_steps(sizes, among)
    total = sum(sizes[step] for step in steps)
    by_step: dict[int, list[dict[str, Any]]] = {}
    for step in steps:
        most = sizes[step] if total <= among else -(-among * sizes[step] // total)
        rows = drawn_groups(read_columns(log.path(step), _COLUMNS) or [], most, f"{seed} {step}")
        if judged := [row for row in rows if row["status"] in ("passed", "failed")]:
            by_step[step] = judged
    if not by_step:
        raise RunError(
            f"{folder}: holds no judged rollouts; name a run that has sampled and judged"
        )
    result = CalibrationResult(
        run=str(run),
        of=sum(sizes.values()),
        read=sum(map(len, by_step.values())),
        confidences=_confidences(by_step),
        diversity=[_diversity(step, rows) for step, rows in by_step.items()],
    )
    (folder / FOLDER).mkdir(exist_ok=True)
    write_json(folder / FOLDER / CALIBRATION, result.as_dict())
    return result


def _confidences(by_step: Mapping[int, Sequence[dict[str, Any]]]) -> list[Confidence]:
    steps = list(by_step)
    size = max(1, int(_WINDOW * len(steps)))
    windows = {"all": steps}
    if len(steps) > 1:
        for part in (steps[:size], steps[-size:]):
            windows[str(part[0]) if size == 1 else f"{part[0]} to {part[-1]}"] = part
    found: list[Confidence] = []
    for name in CONFIDENCES:
        for when, part in windows.items():
            values: list[tuple[float, bool]] = []
            sizes: list[int] = []
            for step in part:
                for group in groups_of(by_step[step]):
                    own = _PREDICTIONS[name](group)
                    values += own
                    sizes += [len(own)] if own else []
            if values:
                found.append(_confidence(name, when, values, sizes))
    return found


def _confidence(
    name: str, when: str, values: Sequence[tuple[float, bool]], sizes: Sequence[int]
) -> Confidence:
    predicted = np.array([one for one, _ in values], np.float64)
    observed = np.array([one for _, one in values], np.float64)
    accuracy = float(observed.mean())
    # Completions of one prompt are not independent: a group is one cluster of the standard error.
    error = clustered_stderr(observed, sizes)
    return Confidence(
        name=name,
        when=when,
        count=len(values),
        groups=len(sizes),
        mean=float(predicted.mean()),
        accuracy=accuracy,
        interval=share_interval(accuracy, len(sizes), error),
        calibration=calibrate(predicted, observed, BINS),
    )


def groups_of(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group rows by their group id; return one list of rows per group."""
    ordered = sorted(rows, key=lambda row: row["group_id"])
    return [[*some] for _, some in groupby(ordered, key=lambda row: row["group_id"])]


def _by_logprob(group: Sequence[Mapping[str, Any]]) -> list[tuple[float, bool]]:
    """Return each completion's confidence exp(mean log-probability of its sampled tokens)."""
    found: list[tuple[float, bool]] = []
    for row in group:
        if row["model_logprobs"] is None:
            continue
        sampled = np.array(row["sampled"], np.bool_)
        logprobs = np.array(row["model_logprobs"], np.float64)[sampled]
        if len(logprobs):
            # Rounding can make a mean log-probability positive; a probability is at most 1.
            found.append((float(np.exp(min(0.0, logprobs.mean()))), row["status"] == "passed"))
    return found


def _by_vote(group: Sequence[Mapping[str, Any]]) -> list[tuple[float, bool]]:
    """Return the vote share of the most frequent answer in a group, and whether this answer is
    right.
    """
    votes = Counter(answers_of(group))
    # With a single vote the share is always 1 and shows no confidence, so there is no prediction.
    if votes.total() < 2:
        return []
    answer, count = votes.most_common(1)[0]
    return [(count / votes.total(), answer is True)]


def _by_statement(group: Sequence[Mapping[str, Any]]) -> list[tuple[float, bool]]:
    """Return the last confidence that each text states, and whether the text's answer is
    correct."""
    found = ((stated_confidence(row["text"] or ""), row["status"] == "passed") for row in group)
    return [(value, right) for value, right in found if value is not None]


_PREDICTIONS = {"log_probability": _by_logprob, "vote": _by_vote, "stated": _by_statement}


def stated_confidence(text: str) -> float | None:
    """Return the last stated confidence in a text, such as "Confidence: 80%" or "I'm 80 % sure"."""
    value = None
    for match in _STATED.finditer(text):
        percent = match["percent"] or match["sure"]
        share = float(percent) / 100 if percent else float(match["share"])
        # A number such as 200 % is a figure of speech and not a confidence, so it is skipped.
        value = share if share <= 1.0 else value
    return value


def answers_of(group: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return one answer per completion: True for a passed completion, else the extracted text.

    All correct answers count as the same answer (True), whatever their text. The calibration
    excludes completions without an answer.
    """
    return [
        True if row["status"] == "passed" else row["extracted"]
        for row in group
        if row["status"] == "passed" or (row["extracted"] or "").strip()
    ]


def _diversity(step: int, rows: Sequence[dict[str, Any]]) -> Diversity:
    groups = groups_of(rows)
    # pass@k needs k judged completions, so k is at most the size of the smallest judged group.
    least = min(map(len, groups))
    ks = [k for k in (1, *(2**n for n in range(1, 12))) if k < least] + [least]
    passed = [sum(row["status"] == "passed" for row in group) for group in groups]
    pairs = list(zip(groups, passed, strict=True))
    answers = [len({*answers_of(group)}) for group in groups if answers_of(group)]
    return Diversity(
        step=step,
        groups=len(groups),
        size=float(np.mean([len(group) for group in groups])),
        pass_at={
            k: float(np.mean([pass_at_k(len(group), right, k) for group, right in pairs]))
            for k in dict.fromkeys(ks)
        },
        answers=float(np.mean(answers)) if answers else None,
        # Nearly every completion has other words, so solutions are compared by their numbers.
        solutions=float(
            np.mean(
                [
                    len({tuple(_NUMBER.findall(row["text"] or "")) for row in group})
                    for group in groups
                ]
            )
        ),
        texts=float(
            np.mean([len({row["text"] for row in group}) / len(group) for group in groups])
        ),
    )
