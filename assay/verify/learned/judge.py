"""Verifier ``judge``: a language model behind an OpenAI-compatible endpoint, with a rubric."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from assay.endpoint.costs import judge_costs
from assay.endpoint.settings import JUDGE_FIELDS, MAX_PATIENCE, SHARED_FIELDS, check_judge
from assay.types import Completion, NotJudgedReason, Problem
from assay.verify.base import Limits, Part, Verifier
from assay.verify.learned.panel import Vote, close_judges, panel_for
from assay.verify.learned.quoting import cut_middle
from assay.verify.learned.rubrics import RUBRIC_FIELDS, Rubric, context, read_rubric


def judge_by_rubric(problem: Problem, completion: Completion) -> Part:
    """Judge one completion by the problem's rubric and the majority of the judges' votes.

    The spec's keys are ``rubric``, ``answer`` or ``reference``, ``criteria``, ``scale``,
    ``pass_at``, ``reads`` and the options. A completion is *not judged* unless more than half of
    all votes agree.

    Raises VerifierError for an invalid spec or option.
    """
    rubric = read_rubric(problem)
    quotes = context(problem, rubric)
    text = completion.text if rubric.reads == "trace" else completion.answer_text
    if rubric.reads == "answer" and not text.strip():
        # An empty answer fails at once, which saves the cost of a request.
        return Part(0.0, passed=False, detail="no answer")
    panel = panel_for(problem.spec)
    note = "cut off by its length limit" if completion.truncated else ""
    max_chars = panel.settings.max_chars
    quotes = [cut_middle(quote.name, quote.text, max_chars) for quote in quotes]
    votes = panel.votes(rubric, [*quotes, cut_middle(rubric.reads, text, max_chars, note)])
    return _of_scores(rubric, votes) if rubric.kind == "score" else _of_verdicts(votes)


def _of_verdicts(votes: Sequence[Vote]) -> Part:
    given = _given(votes)
    right = [vote for vote in given if vote.finding == "correct"]
    wrong = [vote for vote in given if vote.finding != "correct"]
    winners = max(right, wrong, key=len)
    # The majority counts missing votes too, because missing votes could reverse it.
    if 2 * len(winners) <= len(votes):
        tie = f"{len(right)} of {len(given)} votes say correct: no majority"
        return _inconclusive(votes, f"{tie}; an odd number of judges cannot tie")
    agreement = len(winners) / len(given)
    return _decided(votes, float(winners is right), winners is right, winners[0], agreement)


def _of_scores(rubric: Rubric, votes: Sequence[Vote]) -> Part:
    given = _given(votes)
    if 2 * len(given) <= len(votes):
        return _inconclusive(votes, "too many votes are missing for a majority")
    # The panel's score is the median of the judges' scores,
    # because a single extreme score cannot move the median.
    middle = median(vote.finding for vote in given)
    low, high = rubric.scale
    passed = middle >= rubric.pass_at
    agreement = sum((vote.finding >= rubric.pass_at) == passed for vote in given) / len(given)
    nearest = min(given, key=lambda vote: abs(vote.finding - middle))
    value = (middle - low) / (high - low)
    return _decided(votes, value, passed, nearest, agreement, score=middle)


def _given(votes: Sequence[Vote]) -> list[Vote]:
    return [vote for vote in votes if vote.finding is not None]


def _inconclusive(votes: Sequence[Vote], tie: str) -> Part:
    missing = [vote for vote in votes if vote.finding is None]
    if not missing:
        return Part.not_judged("error", tie)
    # The reason ``unavailable`` comes first, because it does not count as a failure of the reward.
    rank: dict[NotJudgedReason, int] = {"unavailable": 0, "timeout": 1, "error": 2}
    worst = min(missing, key=lambda vote: rank[vote.reason])
    return Part.not_judged(worst.reason, worst.detail)


def _decided(
    votes: Sequence[Vote],
    value: float,
    passed: bool,
    quoted_vote: Vote,
    agreement: float,
    **more: float,
) -> Part:
    """Return the judge's result, with the reasoning of the vote ``quoted_vote``.

    If votes are missing, the result's detail names the missing votes first.

    The result's components are the share of votes on the winning side, the number of votes, and the
    tokens of the replies. Tokens of stored replies count too, so that a repeated judgment gives the
    same component. `judge_costs` reports the tokens of actual requests, without stored replies.
    """
    missing = [vote.detail for vote in votes if vote.finding is None]
    note = f"{len(missing)} of {len(votes)} votes missing: {missing[0]}; " if missing else ""
    given = _given(votes)
    usages = [vote.usage for vote in given if vote.usage is not None]
    tokens = sum((each.input_tokens or 0) + (each.output_tokens or 0) for each in usages)
    facts = {"agreement": agreement, "votes": float(len(given)), "tokens": float(tokens)}
    components, detail = {**more, **facts}, note + quoted_vote.detail
    return Part(value, score=value, passed=passed, detail=detail, components=components)


JUDGE = Verifier(
    name="judge",
    version=2,
    judge=judge_by_rubric,
    executor="thread",
    domain="answers and texts that no rule can check: equivalence in meaning, helpfulness, "
    "harmlessness, any rubric in words; as good as the model behind the endpoint",
    fields=(*RUBRIC_FIELDS, *JUDGE_FIELDS, *SHARED_FIELDS),
    accepts="any text; equivalence and helpfulness read the text outside the think block, "
    "harmlessness reads the whole text. A text above max_chars is shown without its middle",
    partial_credit="scores map linearly from the scale to [0, 1]; the median of several votes "
    "counts",
    # The limit is longer than every judge's `patience`, so that the judge's own error message
    # arrives first.
    limits=Limits(seconds=MAX_PATIENCE + 100),
    extra="judge",
    check_options=check_judge,
)

__all__ = ["JUDGE", "check_judge", "close_judges", "judge_by_rubric", "judge_costs"]
