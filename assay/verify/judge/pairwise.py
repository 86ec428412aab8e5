"""Which of two completions is better: a judge asked in both orders, and the win rate of many.

A judge that prefers a place to a text contradicts itself when the texts change places; such a pair is
a tie. Win rates count ties as half, with standard errors clustered by problem. The length-controlled
win rate is what the win rate would be if both texts were equally long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.types import Completion, NotJudgedReason, Problem
from assay.verify.judge.panel import Panel, Vote, panel_for
from assay.verify.judge.quoting import cut_middle
from assay.verify.judge.rubrics import PAIRWISE, context

Outcome = Literal["first", "second", "tie"]

POINTS: Mapping[str, float] = {"first": 1.0, "second": 0.0, "tie": 0.5}
RIDGE = 1e-3  # on both coefficients: keeps a fit finite where one side wins every comparison
MAX_ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the judges say of two completions of one problem.

    outcome: None where it was not judged, for ``reason``. consistent: whether both orders gave the same
    outcome; where they did not, the outcome is a tie. lengths: of the texts that were compared, in
    characters.
    """

    problem_id: str
    outcome: Outcome | None
    consistent: bool = True
    lengths: tuple[int, int] = (0, 0)
    reason: NotJudgedReason | None = None
    detail: str = ""

    @property
    def points(self) -> float | None:
        """1 for the first, 0 for the second, a half for a tie."""
        return None if self.outcome is None else POINTS[self.outcome]


def compare(
    problem: Problem,
    first: Completion,
    second: Completion,
    options: Mapping[str, Any] | None = None,
    *,
    reads: Literal["answer", "trace"] = "answer",
) -> Comparison:
    """Ask which completion is better, in both orders.

    options: as in ``[verification.options.judge]``; a problem cannot set them. ``criteria`` and
    ``reference`` of its spec are shown. Safe from any thread. Raises VerifierError for a spec or an
    option that cannot be used.
    """
    panel = panel_for(options or {})
    both = (first, second)
    texts = [each.text if reads == "trace" else each.answer_text for each in both]
    lengths = len(texts[0]), len(texts[1])
    if texts[0] == texts[1]:
        return Comparison(problem.id, "tie", lengths=lengths)
    found: list[Outcome] = []
    for order in ((0, 1), (1, 0)):
        outcome = _ask(panel, problem, [texts[index] for index in order])
        if isinstance(outcome, Vote):
            return Comparison(
                problem.id, None, False, lengths, reason=outcome.reason, detail=outcome.detail
            )
        found.append(_swapped(outcome) if order == (1, 0) else outcome)
    same = found[0] == found[1]
    return Comparison(problem.id, found[0] if same else "tie", same, lengths)


def _ask(panel: Panel, problem: Problem, texts: Sequence[str]) -> Outcome | Vote[str]:
    """Return the outcome for the texts as A and B: more votes for one of them win, equally many tie."""
    most = panel.settings.max_chars
    quotes = [cut_middle(each.name, each.text, most) for each in context(problem, PAIRWISE)] + [
        cut_middle(name, text, most) for name, text in zip("AB", texts, strict=True)
    ]
    votes = panel.verdicts(PAIRWISE, quotes)
    given = [vote.finding for vote in votes if vote.finding is not None]
    if 2 * len(given) <= len(votes):
        return next(vote for vote in votes if vote.finding is None)
    lead = given.count("A") - given.count("B")
    return "first" if lead > 0 else "second" if lead < 0 else "tie"


def _swapped(outcome: Outcome) -> Outcome:
    return "second" if outcome == "first" else "first" if outcome == "second" else "tie"


@dataclass(frozen=True, slots=True)
class WinRate:
    """How often the first side is preferred, ties counted half.

    standard_error: None of fewer than two problems. length_effect: what one standard deviation of the
    length difference adds to the log-odds of the first side; None where length is not controlled.
    inconsistent: pairs in which the judges followed the place and not the text.
    """

    rate: float
    standard_error: float | None
    num_comparisons: int
    num_problems: int
    wins: int
    losses: int
    ties: int
    inconsistent: int
    not_judged: int
    length_effect: float | None = None


def win_rate(comparisons: Sequence[Comparison]) -> WinRate:
    """Return the mean of the points, with its standard error clustered by problem.

    Of G problems: SE^2 = G/(G-1) * sum over problems of (sum of (points - rate))^2 / N^2. Raises
    ValueError where nothing was judged.
    """
    judged, points = _judged(comparisons)
    rate = float(points.mean())
    scores = _by_problem(judged, (points - rate)[:, None])
    error = None
    if len(scores) > 1:
        error = math.sqrt(_correction(len(scores)) * float((scores**2).sum())) / len(points)
    return _result(comparisons, judged, rate, error)


def length_controlled_win_rate(comparisons: Sequence[Comparison]) -> WinRate:
    """Return the win rate at equal lengths, by a logistic regression on the length difference.

    log-odds of the first side = theta + phi * tanh(difference / its standard deviation), fitted to the
    points; the rate is that of theta alone. Its standard error is by the delta method, from a
    covariance that is robust and clustered by problem. The generalized linear model of Dubois et al.,
    arXiv:2404.04475, without its term for the difficulty of an instruction, which is estimated over
    many models. Raises ValueError where nothing was judged.
    """
    judged, points = _judged(comparisons)
    differences = np.array([one.lengths[0] - one.lengths[1] for one in judged], np.float64)
    spread = float(differences.std())
    effect = np.tanh(differences / spread) if spread > 0 else np.zeros_like(differences)
    features = np.stack([np.ones_like(effect), effect], axis=1)
    coefficients = fit_logistic(features, points)
    rates = _sigmoid(features @ coefficients)
    rate = float(_sigmoid(coefficients[:1])[0])
    scores = _by_problem(judged, features * (points - rates)[:, None])
    error = None
    if len(scores) > 1:
        bread = np.linalg.inv(_information(features, rates))
        covariance = _correction(len(scores)) * bread @ (scores.T @ scores) @ bread
        error = rate * (1 - rate) * math.sqrt(float(covariance[0, 0]))
    return _result(comparisons, judged, rate, error, float(coefficients[1]))


def fit_logistic(
    features: NDArray[np.float64], points: NDArray[np.float64], ridge: float = RIDGE
) -> NDArray[np.float64]:
    """Return the coefficients of the most likely logistic model, by damped Newton steps.

    features: (rows, coefficients). points: (rows,), each in [0, 1]; a half is half a win. Maximizes
    sum of points * log(p) + (1 - points) * log(1 - p) - ridge/2 * |coefficients|^2.
    """
    coefficients = np.zeros(features.shape[1])
    value = _likelihood(features, points, coefficients, ridge)
    for _ in range(MAX_ITERATIONS):
        rates = _sigmoid(features @ coefficients)
        slope = features.T @ (points - rates) - ridge * coefficients
        step = np.linalg.solve(_information(features, rates, ridge), slope)
        size = 1.0
        while True:  # halved until it climbs
            moved = coefficients + size * step
            reached = _likelihood(features, points, moved, ridge)
            if reached >= value or size < 1e-6:
                break
            size /= 2
        coefficients, value = moved, reached
        if float(np.abs(size * step).max()) < 1e-10:
            break
    return coefficients


def _likelihood(
    features: NDArray[np.float64],
    points: NDArray[np.float64],
    coefficients: NDArray[np.float64],
    ridge: float,
) -> float:
    logits = features @ coefficients
    fit = points * logits - np.logaddexp(0.0, logits)
    return float(fit.sum() - ridge / 2 * (coefficients**2).sum())


def _information(
    features: NDArray[np.float64], rates: NDArray[np.float64], ridge: float = RIDGE
) -> NDArray[np.float64]:
    weights = rates * (1 - rates)
    return (features * weights[:, None]).T @ features + ridge * np.eye(features.shape[1])


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def _correction(num_problems: int) -> float:
    return num_problems / (num_problems - 1)


def _by_problem(judged: Sequence[Comparison], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of rows of one problem, problems in order of appearance."""
    index: dict[str, int] = {}
    for one in judged:
        index.setdefault(one.problem_id, len(index))
    sums = np.zeros((len(index), rows.shape[1]))
    np.add.at(sums, [index[one.problem_id] for one in judged], rows)
    return sums


def _judged(
    comparisons: Sequence[Comparison],
) -> tuple[list[Comparison], NDArray[np.float64]]:
    judged = [one for one in comparisons if one.outcome is not None]
    if not judged:
        raise ValueError(f"none of {len(comparisons)} comparisons was judged")
    return judged, np.array([one.points for one in judged], np.float64)


def _result(
    comparisons: Sequence[Comparison],
    judged: Sequence[Comparison],
    rate: float,
    error: float | None,
    length_effect: float | None = None,
) -> WinRate:
    outcomes = [one.outcome for one in judged]
    return WinRate(
        rate=rate,
        standard_error=error,
        num_comparisons=len(judged),
        num_problems=len({one.problem_id for one in judged}),
        wins=outcomes.count("first"),
        losses=outcomes.count("second"),
        ties=outcomes.count("tie"),
        inconsistent=sum(not one.consistent for one in judged),
        not_judged=len(comparisons) - len(judged),
        length_effect=length_effect,
    )
