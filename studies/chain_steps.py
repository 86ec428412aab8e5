"""A rule-based verifier of single steps for the demo's sums: it judges each step and the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from assay.types import Completion, Problem, StepScore, Verdict

NAME = "studies.chain_steps:judge_steps"
NUMBER_OR_OPERATOR = re.compile(r"\d+|[+-]")


def judge_steps(problem: Problem, completion: Completion) -> Verdict:
    """Score each step such as ``3+5=8`` of the reasoning, and the answer, which is the
    completion's score.

    A step is right if it is the next step of the sum: the true value so far, the sum's next
    operator and number, and their result. `StepScore.end` is the index of the last character of the
    step, which is its last token in a byte-level vocabulary. The score of the answer ends at the
    end of the completion.
    """
    answer = completion.answer_text.strip()
    right = float(answer == problem.spec["answer"])
    scores = [StepScore(float(ok), end) for ok, end in _steps(problem, completion)]
    scores.append(StepScore(right, len(completion.tokens) - 1))
    return Verdict.of_score(
        right, "chain_steps@1", step_scores=tuple(scores), extracted=answer or None
    )


def _steps(problem: Problem, completion: Completion) -> Iterator[tuple[bool, int]]:
    """Yield (whether a step is right, index of its last character) for each written step."""
    tags = completion.think
    before, _, rest = completion.text.partition(tags.open_tag)
    reasoning, _, _ = rest.partition(tags.close_tag)
    expected = list(_true_steps(problem.question))
    start = len(before) + len(tags.open_tag)
    for number, text in enumerate(reasoning.split(";") if reasoning else []):
        end = start + len(text)
        if end > start:
            yield number < len(expected) and text == expected[number], end - 1
        start = end + 1


def _true_steps(question: str) -> Iterator[str]:
    first, *rest = NUMBER_OR_OPERATOR.findall(question.removesuffix("="))
    value = int(first)
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        result = value + int(number) if operator == "+" else value - int(number)
        yield f"{value}{operator}{number}={result}"
        value = result
