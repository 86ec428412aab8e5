"""Verifier ``judge``: a language model behind an OpenAI-compatible endpoint, asked with a rubric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from assay.types import Completion, NotJudgedReason, Problem
from assay.verify.base import Field, KnownError, Limits, Part, Verifier
from assay.verify.judge.costs import judge_costs
from assay.verify.judge.panel import Vote, close_judges, panel_for
from assay.verify.judge.quoting import cut_middle
from assay.verify.judge.rubrics import (
    REFERENCE,
    SCALE,
    TEMPLATES,
    Rubric,
    context,
    is_rubric,
    is_scale,
    is_texts,
    read_rubric,
)
from assay.verify.judge.settings import (
    JUDGE_FIELDS,
    MAX_PATIENCE,
    SHARED_FIELDS,
    check_judge,
    is_number,
)


def judge_by_rubric(problem: Problem, completion: Completion) -> Part:
    """Judge one completion by the problem's rubric, by the majority of the judges' votes.

    Reads ``rubric``, ``answer`` or ``reference``, ``criteria``, ``scale``, ``pass_at`` and ``reads`` of
    the spec, and the options. Not judged where more than half of all votes do not agree: a tie is
    nobody's verdict. Raises VerifierError for a spec or an option that cannot be used.
    """
    rubric = read_rubric(problem)
    quotes = context(problem, rubric)
    text = completion.text if rubric.reads == "trace" else completion.answer_text
    if rubric.reads == "answer" and not text.strip():
        return Part(0.0, passed=False, detail="no answer")
    panel = panel_for(problem.spec)
    note = "cut off by its length limit" if completion.truncated else ""
    max_chars = panel.settings.max_chars
    quotes = [cut_middle(quote.name, quote.text, max_chars) for quote in quotes]
    shown = [*quotes, cut_middle(_text_name(rubric), text, max_chars, note)]
    if rubric.kind == "score":
        return _of_scores(rubric, panel.scores(rubric, shown))
    return _of_verdicts(panel.verdicts(rubric, shown))


def _text_name(rubric: Rubric) -> str:
    return "answer" if rubric.reads == "answer" else "trace"


def _of_verdicts(votes: Sequence[Vote[str]]) -> Part:
    given = [vote for vote in votes if vote.finding is not None]
    right = [vote for vote in given if vote.finding == "correct"]
    wrong = [vote for vote in given if vote.finding != "correct"]
    winners = max(right, wrong, key=len)
    if 2 * len(winners) <= len(votes):
        tie = f"{len(right)} of {len(given)} votes say correct: no majority"
        return _undecided(votes, f"{tie}; an odd number of judges cannot tie")
    return Part(
        float(winners is right),
        passed=winners is right,
        detail=_said(votes, winners[0]),
        components=_components(votes, len(winners) / len(given)),
    )


def _of_scores(rubric: Rubric, votes: Sequence[Vote[float]]) -> Part:
    scores = [vote.finding for vote in votes if vote.finding is not None]
    if 2 * len(scores) <= len(votes):
        return _undecided(votes, "no majority of the votes is there")
    middle = median(scores)
    passed = middle >= rubric.pass_at
    low, high = rubric.scale
    value = (middle - low) / (high - low)
    same = sum((score >= rubric.pass_at) == passed for score in scores) / len(scores)
    nearest = min(
        (vote for vote in votes if vote.finding is not None),
        key=lambda vote: abs((vote.finding or 0.0) - middle),
    )
    return Part(
        value,
        score=value,
        passed=passed,
        detail=_said(votes, nearest),
        components={"score": middle, **_components(votes, same)},
    )


def _undecided(votes: Sequence[Vote[Any]], tie: str) -> Part:
    missing = [vote for vote in votes if vote.finding is None]
    if not missing:
        return Part.not_judged("error", tie)
    rank: dict[NotJudgedReason, int] = {"unavailable": 0, "timeout": 1, "error": 2}
    worst = min(missing, key=lambda vote: rank[vote.reason])
    return Part.not_judged(worst.reason, worst.detail)


def _said(votes: Sequence[Vote[Any]], spokesman: Vote[Any]) -> str:
    """Return the reasoning of one vote, after what is wrong with those that are missing."""
    missing = [vote.detail for vote in votes if vote.finding is None]
    note = f"{len(missing)} of {len(votes)} votes missing: {missing[0]}; " if missing else ""
    return note + spokesman.detail


def _components(votes: Sequence[Vote[Any]], agreement: float) -> Mapping[str, float]:
    """Return how many judged, the share of them on the winning side, and the tokens of their replies.

    Tokens are those of the replies that were used, also where they come from the store, so that a
    verdict repeats; what was really spent is in `judge_costs`.
    """
    given = [vote for vote in votes if vote.finding is not None]
    usages = [vote.usage for vote in given if vote.usage is not None]
    tokens = sum((each.input_tokens or 0) + (each.output_tokens or 0) for each in usages)
    return {"agreement": agreement, "votes": float(len(given)), "tokens": float(tokens)}


JUDGE = Verifier(
    name="judge",
    version=1,
    judge=judge_by_rubric,
    lane="thread",
    domain="answers and texts that no rule can check: equivalence in meaning, helpfulness, harmlessness, "
    "any rubric in words; as good as the model behind the endpoint",
    fields=(
        Field(
            "rubric",
            f"{', '.join(TEMPLATES)}, or the text of a rubric",
            default="equivalence",
            check=is_rubric,
        ),
        Field("answer", REFERENCE, check=is_texts),
        Field("reference", f"{REFERENCE}; read in place of answer", check=is_texts),
        Field(
            "criteria", "text, or a list of texts, that count besides the rubric", check=is_texts
        ),
        Field("scale", SCALE, default=[1, 10], check=is_scale),
        Field(
            "pass_at",
            "the lowest score of the scale that passes (none: two thirds of the way up)",
            check=lambda value: is_number(value, -1e9, 1e9),
        ),
        Field(
            "reads",
            "answer (outside the think block) or trace (all); none: what the rubric says",
            check=lambda value: value in ("answer", "trace"),
        ),
        *JUDGE_FIELDS,
        *SHARED_FIELDS,
    ),
    accepts="any text; equivalence and helpfulness read what stands outside the think block, harmlessness "
    "all of it. A text beyond max_chars is shown without its middle",
    partial_credit="scores map linearly from the scale to [0, 1]; the median of several votes counts",
    limits=Limits(seconds=MAX_PATIENCE + 100),
    known_errors=(
        KnownError(
            "an empty answer fails unasked, also where nothing is what was expected",
            {"answer": "an empty output"},
            "<think>The program prints nothing.</think>",
            says="failed",
            should_say="passed",
        ),
        KnownError(
            "a wrong reference is believed: the judge is told not to dispute it",
            {"answer": "Lyon"},
            "The capital of France is Paris. The answer is Paris",
            says="failed",
            should_say="passed",
        ),
    ),
    modules=(
        "assay.verify.judge.judge",
        "assay.verify.judge.panel",
        "assay.verify.judge.rubrics",
        "assay.verify.judge.quoting",
        "assay.verify.judge.replies",
        "assay.verify.judge.client",
        "assay.verify.judge.settings",
    ),
    extra="judge",
    check_options=check_judge,
)

__all__ = ["JUDGE", "check_judge", "close_judges", "judge_by_rubric", "judge_costs"]
