"""A judge that prefers one of two completions of a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from assay.config import TrainConfig
from assay.session.assemble import open_verifiers
from assay.session.evaluate import judge_groups
from assay.session.pairwise import AT_ONCE
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.learned.pairwise import Comparison, Outcome, compare
from assay.verify.learned.panel import close_judges, panel_for

PAIRWISE = "pairwise"
Candidates = tuple[Problem, Completion, Completion]
"""A problem and two completions to compare."""


class Preferring:
    """A judge that compares two completions of each problem.

    check: function that raises VerifierError for a problem whose completions the judge cannot
    compare.
    """

    def __init__(
        self,
        judge: Callable[[Sequence[Candidates]], list[Comparison]],
        check: Callable[[Problem], None],
    ) -> None:
        self.judge, self.check = judge, check


def open_judge(name: str, config: TrainConfig, stack: ExitStack) -> Preferring:
    """Open the preference judge with a name: ``pairwise``, or a verifier expression; ``stack``
    closes it.
    """
    # The judge is opened before any model is loaded, so that a missing URL is reported at once.
    if name == PAIRWISE:
        options = config.verification.options.get("judge", {})
        panel_for(options)
        stack.callback(close_judges)
        return Preferring(lambda pairs: _ask(pairs, options), lambda problem: None)
    data = config.data.model_copy(update={"verifier": name})
    verifiers = open_verifiers(config.model_copy(update={"data": data}), stack)
    verifiers.check([name])

    def judge(pairs: Sequence[Candidates]) -> list[Comparison]:
        verdicts = judge_groups(verifiers, [_group(one, (a, b)) for one, a, b in pairs])
        return [_of_rewards(pair, both) for pair, both in zip(pairs, verdicts, strict=True)]

    return Preferring(judge, lambda problem: verifiers.check_problem(_bare(problem)))


def _ask(pairs: Sequence[Candidates], options: dict[str, Any]) -> list[Comparison]:
    # Threads suffice for comparisons, which mostly wait for replies of a server.
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix=PAIRWISE) as pool:
        return list(pool.map(lambda one: compare(one[0], one[1], one[2], options), pairs))


def _bare(problem: Problem) -> Problem:
    """Return the problem without the verifier that its row names, so that the preference judge
    decides."""
    return replace(problem, verifier=None)


def _group(problem: Problem, both: tuple[Completion, Completion]) -> Group:
    prompt = Prompt(problem.question, np.zeros(0, np.int32))
    return Group(_bare(problem), prompt, both)


def _of_rewards(pair: Candidates, verdicts: Sequence[Verdict]) -> Comparison:
    """Compare by rewards. The completion with the higher reward wins; equal rewards are a tie."""
    (problem, *both), (first, second) = pair, verdicts
    lengths = len(both[0].answer_text), len(both[1].answer_text)
    # A pair with an unjudged completion is excluded from the win rate, because it is not a tie.
    if first.reward is None or second.reward is None:
        lost = first if first.reward is None else second
        return Comparison(problem.id, None, lengths=lengths, reason=lost.reason, detail=lost.detail)
    lead = (first.reward > second.reward) - (first.reward < second.reward)
    outcome: Outcome = "first" if lead > 0 else "second" if lead < 0 else "tie"
    return Comparison(problem.id, outcome, lengths=lengths)
