"""Statistics of recorded evaluations: accuracy, best step, gain, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from assay.config import EvaluationConfig
from assay.run.paired import Gain, gain_between

Row = Mapping[str, Any]
FINISHED_EARLY = "finished early"
"""End reason of a run whose held-out accuracy stopped improving (``evaluation.patience``)."""
CANARIES = "canaries"
"""Kind of an evaluation on the canaries that an honest completion passes."""
MUST_FAIL_CANARIES = "must-fail canaries"
"""Kind of an evaluation on the canaries that no honest completion passes."""
MUST_FAIL = ("planted", "leak")
"""Kinds of canaries that no honest completion passes, as the first tag of a row."""
TEXTS = "texts"
"""Kind of an evaluation on held-out documents. Its result is a perplexity, not an accuracy."""
TRACES = "traces"
"""Kind of an evaluation on held-out traces. Its result is the perplexity of the completions."""


def accuracy_of(evaluation: Row) -> float | None:
    """Return the accuracy (pass@1) of an evaluation, or None."""
    value = evaluation.get("eval/pass_at_1")
    return float(value) if value is not None else None


def merit_of(evaluation: Row) -> float | None:
    """Return the quantity that decides on the best step: accuracy or, for documents and traces, the
    negative NLL.
    """
    nll = evaluation.get("eval/nll")
    return accuracy_of(evaluation) if nll is None else -float(nll)


def perplexity_words(evaluation: Row) -> str:
    """Format an evaluation of a loss: perplexity with its standard error, bits per byte."""
    perplexity, error = evaluation["eval/perplexity"], evaluation.get("eval/stderr")
    # In an evaluation of a loss, eval/stderr is the standard error of the NLL.
    # By the delta method, the error of the perplexity is the perplexity times the error of the NLL.
    spread = "" if error is None else f" ± {perplexity * error:.2g}"
    return (
        f"perplexity {perplexity:.4g}{spread}, {evaluation['eval/bits_per_byte']:.3f} bits a byte"
    )


def is_of_loss(evaluation: Row) -> bool:
    """Whether the result of an evaluation is a perplexity: of documents, or of traces."""
    return evaluation.get("eval/kind") in (TEXTS, TRACES)


def of_loss(evaluations: Sequence[Row]) -> list[Row]:
    """Select the evaluations whose result is a perplexity. A run has at most one kind of them."""
    return [row for row in evaluations if is_of_loss(row)]


def scored_words(evaluation: Row) -> str:
    """Return the number and the kind of the held-out rows of an evaluation of a loss."""
    noun = "traces" if kind_of(evaluation) == TRACES else "documents"
    return f"{evaluation[f'eval/num_{noun}']:,} held-out {noun}"


def kind_of(evaluation: Row) -> str:
    """Return the kind of an evaluation: ``greedy``, ``temperature 1``, or the value of
    ``eval/kind``.
    """
    if "eval/kind" in evaluation:
        return str(evaluation["eval/kind"])
    temperature = evaluation.get("eval/temperature")
    return "greedy" if not temperature else f"temperature {temperature:g}"


def on_canaries(evaluation: Row) -> bool:
    """Whether an evaluation is one on canaries."""
    return evaluation.get("eval/kind") in (CANARIES, MUST_FAIL_CANARIES)


def of_kind(evaluations: Sequence[Row], kind: str) -> list[Row]:
    """Select the evaluations of one kind."""
    return [row for row in evaluations if kind_of(row) == kind]


def series_of(evaluations: Sequence[Row], name: str) -> list[Row]:
    """Select the evaluations that have a metric: ``eval/NAME``, or ``eval/KIND/NAME``.

    Without a kind, the deciding kind is selected. In the rows, the metric's key is ``eval/NAME``.
    """
    _, *kinds, last = name.split("/")
    rows = of_kind(evaluations, kinds[0]) if kinds else of_deciding_kind(evaluations)
    return [row for row in rows if row.get(f"eval/{last}") is not None]


def is_evaluated(evaluations: Sequence[Row], names: Sequence[str]) -> bool:
    """Whether the evaluations have one of the metrics; see `series_of`."""
    return any(series_of(evaluations, name) for name in names if name.startswith("eval/"))


def by_kind(evaluations: Sequence[Row]) -> dict[str, list[Row]]:
    """Group evaluations with an accuracy by kind, in the order in which the kinds first occur."""
    kinds: dict[str, list[Row]] = {}
    for row in evaluations:
        if accuracy_of(row) is not None:
            kinds.setdefault(kind_of(row), []).append(row)
    return kinds


def by_think_mode(evaluation: Row) -> dict[str, Row]:
    """Return the results of an evaluation per think mode; empty if there is only one mode."""
    modes: Mapping[str, Row] = evaluation.get("eval/by_think") or {}
    return {mode: _as_row(own) for mode, own in modes.items()}


def parts_of(evaluation: Row) -> dict[tuple[str, str], Row]:
    """Return the results of an evaluation for each source and think mode.

    For an evaluation with one source and one mode, the result is empty.
    """
    sources: Mapping[str, Mapping[str, Row]] = evaluation.get("eval/by_source") or {}
    return {
        (source, mode): _as_row(own) | {"eval/temperature": evaluation.get("eval/temperature")}
        for source, modes in sources.items()
        for mode, own in modes.items()
    }


def without_problems(evaluation: Row) -> dict[str, Any]:
    """Return a copy of an evaluation without the results per problem."""
    return {
        key: without_problems(cast("Row", value)) if isinstance(value, dict) else value
        for key, value in evaluation.items()
        if key not in ("eval/by_problem", "by_problem")
    }


def _as_row(rates: Mapping[str, Any]) -> dict[str, Any]:
    return {f"eval/{name}": value for name, value in rates.items()}


def of_deciding_kind(evaluations: Sequence[Row]) -> list[Row]:
    """Select the evaluations that determine the best step and early stopping."""
    # Accuracies at different temperatures are not comparable, so only one kind is used.
    # Canaries must not choose a checkpoint, because a chosen result is no longer an independent
    # test of the chosen checkpoint.
    rows = [row for row in evaluations if merit_of(row) is not None and not on_canaries(row)]
    return [row for row in rows if kind_of(row) == kind_of(rows[0])]


def best_step(evaluations: Sequence[Row]) -> int | None:
    """Return the step with the best held-out result, the earliest one for equal results.

    Step 0 is excluded; without a later evaluation, the result is None.
    """
    rows = [row for row in of_deciding_kind(evaluations) if row["step"] > 0]
    return max(rows, key=lambda row: (merit_of(row), -row["step"]))["step"] if rows else None


def why_settled(evaluations: Sequence[Row], settings: EvaluationConfig) -> str | None:
    """Return the reason to stop by ``evaluation.patience``; None to continue.

    An evaluation counts as improvement if its accuracy exceeds that of the last improvement by more
    than one standard error of the latter. The first evaluation of a run always counts as an
    improvement. Only evaluations scheduled by ``evaluation.every`` count.
    """
    every, patience = settings.every, settings.patience
    if every is None or patience is None:
        return None
    best, at, bar, since = -math.inf, 0, -math.inf, 0
    rows = of_deciding_kind(evaluations)
    for row in rows:
        # A run that ends by its time limit adds an unscheduled evaluation.
        # If unscheduled evaluations counted, a resumed run could end too early.
        if row["step"] % every:
            continue
        merit, since = merit_of(row) or 0.0, since + 1
        if merit > bar:
            best, at, since = merit, row["step"], 0
            bar = best + (row.get("eval/stderr") or 0.0)
    if since < patience:
        return None
    what = "log-likelihood of a token" if of_loss(rows) else "accuracy"
    return (
        f"held-out {what} has settled: {since} evaluations in a row were not above {best:.3f} of"
        f" step {at} by more than its standard error (evaluation.patience = {patience})"
    )


@dataclass(frozen=True, slots=True)
class Lift:
    """The first and the last evaluation of one kind, such as ``greedy``."""

    first: Row
    last: Row

    @property
    def kind(self) -> str:
        """Kind of the evaluations."""
        return kind_of(self.last)

    @property
    def before(self) -> float:
        """Accuracy of the first evaluation."""
        return accuracy_of(self.first) or 0.0

    @property
    def after(self) -> float:
        """Accuracy of the last evaluation."""
        return accuracy_of(self.last) or 0.0

    @property
    def gain(self) -> Gain | None:
        """Gain in accuracy, paired by problem; None without results per problem."""
        return gain_between(self.first, self.last)


def lifts_of(evaluations: Sequence[Row]) -> list[Lift]:
    """Return the first and the last evaluation of each kind, in the order in which the kinds first
    occur.
    """
    return [Lift(rows[0], rows[-1]) for rows in by_kind(evaluations).values()]
