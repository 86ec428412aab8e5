"""Compare two completions with judges in both orders, and estimate win rates.

Both orders are judged, because a judge with a position bias contradicts itself when the order is
swapped. A pair with contradictory outcomes is a tie. Win rates count a tie as half a win. The
standard errors of win rates are clustered by problem. The length-controlled win rate estimates the
win rate for texts of equal length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.types import Completion, NotJudgedReason, Problem
from assay.verify.learned.panel import Panel, Vote, panel_for
from assay.verify.learned.quoting import cut_middle
from assay.verify.learned.rubrics import PAIRWISE, context

Array = NDArray[np.float64]
Outcome = Literal["first", "second", "tie"]

# Outcomes of a comparison by the sign of the votes' lead for the first completion.
# The sign of a difference of votes is 0, 1 or -1.
OUTCOMES: tuple[Outcome, ...] = ("tie", "first", "second")
POINTS: Mapping[str, float] = {"first": 1.0, "second": 0.0, "tie": 0.5}
# Ridge penalty on both coefficients, which keeps the fit finite if one side wins all pairs.
RIDGE = 1e-3
MAX_ITERATIONS = 100
# Largest change of a coefficient at which the fit ends.
EPS = 1e-10


@dataclass(frozen=True, slots=True)
class Comparison:
    """The judges' comparison of two completions of one problem.

    outcome: result of the pair; None if the pair was not judged, for ``reason``.
    consistent: whether both orders gave the same outcome. If the two orders disagree, the outcome
        is a tie.
    lengths: characters of the compared texts.
    places: points of the first completion when it is shown first, and when it is shown second.
        ``places`` is None if the judges did not compare the pair in both orders.
    """

    problem_id: str
    outcome: Outcome | None
    consistent: bool = True
    lengths: tuple[int, int] = (0, 0)
    reason: NotJudgedReason | None = None
    detail: str = ""
    places: tuple[float, float] | None = None

    @property
    def points(self) -> float | None:
        """Points of the first completion: 1 for a win, 0 for a loss, 0.5 for a tie."""
        return None if self.outcome is None else POINTS[self.outcome]


def compare(
    problem: Problem,
    first: Completion,
    second: Completion,
    options: Mapping[str, Any] | None = None,
    *,
    reads: Literal["answer", "trace"] = "answer",
) -> Comparison:
    """Let the judges compare two completions in both orders, and return the result.

    options: keys of ``[verification.options.judge]``. A problem cannot override them.
    reads: ``answer``, the text outside the think block, or ``trace``, the whole completion.

    The prompt of the judges includes ``criteria`` and ``reference`` of the problem's spec. The
    function can be called from any thread. Raises VerifierError for an invalid spec or option.
    """
    panel = panel_for(options or {})
    texts = [each.text if reads == "trace" else each.answer_text for each in (first, second)]
    lengths = len(texts[0]), len(texts[1])
    if texts[0] == texts[1]:
        # Equal texts are a tie without a request,
        # because a judge with a position bias would prefer one of them.
        return Comparison(problem.id, "tie", lengths=lengths)
    leads: list[int] = []
    for order in (texts, texts[::-1]):
        lead = _ask(panel, problem, order)
        if isinstance(lead, Vote):
            return Comparison(problem.id, None, False, lengths, lead.reason, lead.detail)
        leads.append(lead)
    same = leads[0] == -leads[1]
    outcome = OUTCOMES[leads[0] if same else 0]
    places = (1 + leads[0]) / 2, (1 - leads[1]) / 2
    return Comparison(problem.id, outcome, same, lengths, places=places)


def _ask(panel: Panel, problem: Problem, texts: Sequence[str]) -> int | Vote:
    """Return 1 if more votes prefer the first text (A), -1 if more votes prefer the second text, 0
    for a tie.

    If half of the votes or more are missing, return one of the missing votes.
    """
    most = panel.settings.max_chars
    shown = [(each.name, each.text) for each in context(problem, PAIRWISE)]
    quotes = [cut_middle(*each, most) for each in [*shown, *zip("AB", texts, strict=True)]]
    votes = panel.votes(PAIRWISE, quotes)
    given = [vote.finding for vote in votes if vote.finding is not None]
    if 2 * len(given) <= len(votes):
        return next(vote for vote in votes if vote.finding is None)
    lead = given.count("A") - given.count("B")
    return (lead > 0) - (lead < 0)


@dataclass(frozen=True, slots=True)
class WinRate:
    """Share of pairwise comparisons that the first side wins. A tie counts as half a win.

    standard_error: standard error of `rate`. The result is None for fewer than two problems.
    length_effect: increase of the first side's log-odds per standard deviation of the length
        difference. ``length_effect`` is None if the win rate does not control the length.
    inconsistent: number of pairs with contradictory outcomes in the two orders.
    by_place: win rate when the first side is shown first, and when it is shown second. The
        difference between the two win rates is the judges' position bias. Return None if no pair
        was compared in both orders.
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
    by_place: tuple[float, float] | None = None


def win_rate(comparisons: Sequence[Comparison]) -> WinRate:
    """Return the mean of the points, and its standard error clustered by problem.

    For G problems and N comparisons: SE^2 = G/(G-1) * sum over problems of (sum over the problem's
    comparisons of (points - rate))^2 / N^2. Raises ValueError if no comparison was judged.
    """
    judged, points = _judged(comparisons)
    rate = float(points.mean())
    spread = _clustered(judged, (points - rate)[:, None])
    error = None if spread is None else math.sqrt(float(spread[0, 0])) / len(points)
    return _result(comparisons, judged, rate, error)


def length_controlled_win_rate(comparisons: Sequence[Comparison]) -> WinRate:
    """Return the win rate at equal lengths, by a logistic regression on the length difference.

    The fitted log-odds that the first side wins are theta + phi * tanh(difference / standard
    deviation of the differences). The rate uses theta alone. The standard error of the win rate
    follows from the delta method, with a covariance that is robust and clustered by problem. The
    model is the generalized linear model of Dubois et al., arXiv:2404.04475, without the term for
    instruction difficulty, which needs many models.

    Raises ValueError if no comparison was judged.
    """
    judged, points = _judged(comparisons)
    differences = np.array([one.lengths[0] - one.lengths[1] for one in judged], np.float64)
    # tanh limits the influence of a single pair with an extreme length difference.
    effect = np.tanh(differences / (float(differences.std()) or 1.0))
    features = np.stack([np.ones_like(effect), effect], axis=1)
    coefficients = fit_logistic(features, points)
    rates = _sigmoid(features @ coefficients)
    rate = float(_sigmoid(coefficients[0]))
    spread = _clustered(judged, features * (points - rates)[:, None])
    error = None
    if spread is not None:
        bread = np.linalg.inv(_information(features, rates))
        error = rate * (1 - rate) * math.sqrt(float((bread @ spread @ bread)[0, 0]))
    return _result(comparisons, judged, rate, error, float(coefficients[1]))


def fit_logistic(features: Array, points: Array) -> Array:
    """Fit a logistic model by Newton's method and return its coefficients.

    features: [rows, coefficients].
    points: [rows], values in [0, 1]. In the array of points, the value 0.5 counts as half a win.

    Maximizes sum of points * log(p) + (1 - points) * log(1 - p) - RIDGE/2 * |coefficients|^2. A
    Newton step is halved until it does not decrease the objective.
    """

    def likelihood(coefficients: Array) -> float:
        logits = features @ coefficients
        fit = points * logits - np.logaddexp(0.0, logits)
        return float(fit.sum() - RIDGE / 2 * (coefficients**2).sum())

    coefficients = np.zeros(features.shape[1])
    for _ in range(MAX_ITERATIONS):
        rates = _sigmoid(features @ coefficients)
        slope = features.T @ (points - rates) - RIDGE * coefficients
        # A full Newton step can overshoot if the lengths nearly separate wins from losses.
        step = np.linalg.solve(_information(features, rates), slope)
        while (
            likelihood(coefficients + step) < likelihood(coefficients) and np.abs(step).max() > EPS
        ):
            step /= 2
        coefficients = coefficients + step
        if np.abs(step).max() <= EPS:
            break
    return coefficients


def _information(features: Array, rates: Array) -> Array:
    weights = rates * (1 - rates)
    return (features * weights[:, None]).T @ features + RIDGE * np.eye(features.shape[1])


def _sigmoid(logits: Array) -> Array:
    # 1 / (1 + exp(-x)) would overflow for large negative logits. tanh does not.
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def _clustered(judged: Sequence[Comparison], rows: Array) -> Array | None:
    """Return G/(G-1) times the sum over G problems of the outer product of each problem's row sum.

    rows: [comparisons, coefficients]. Returns None if all comparisons belong to a single problem.
    """
    index = {name: n for n, name in enumerate(dict.fromkeys(one.problem_id for one in judged))}
    sums = np.zeros((len(index), rows.shape[1]))
    # ``sums[indices] += rows`` would add only the last row of a repeated index.
    np.add.at(sums, [index[one.problem_id] for one in judged], rows)
    return len(sums) / (len(sums) - 1) * (sums.T @ sums) if len(sums) > 1 else None


def _judged(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], Array]:
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
    places = np.array([one.places for one in judged if one.places is not None], np.float64)
    shown_first, shown_second = places.mean(0).tolist() if len(places) else (0.0, 0.0)
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
        by_place=(shown_first, shown_second) if len(places) else None,
    )
