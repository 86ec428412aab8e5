"""Let the verifier group equal answers into candidates, for majority voting (majority@k)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.host.fields import listed
from assay.types import Group, Problem, Verdict

Compared = tuple[str, str] | None
"""A verifier, and the key of the spec that holds its accepted answer."""


@dataclass
class _Ballot:
    """Votes of one group.

    names: map from each answer to the answer that represents its candidate. open: answers without a
    candidate, in one pool of correct and one pool of wrong answers; answers in different pools are
    never equal. asked: pool of answers that the latest `question` compares. votes: weight by
    answer. texts: for each answer, the index of a completion that gives it.
    """

    group: Group
    verifier: str
    key: str
    votes: Mapping[str, float]
    texts: Mapping[str, int]
    open: list[list[str]]
    names: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[str] = field(default_factory=list[str])

    def question(self) -> Group | None:
        """Return the next comparison: completions to judge against the first answer of a pool.

        Returns None if no further comparison can change the winning answer.
        """
        for pool in self.open:
            pool[:] = [answer for answer in pool if answer not in self.names]
            self.names |= {answer: answer for answer in pool if len(pool) == 1}
        sizes = defaultdict[str, float](float)
        for answer, name in self.names.items():
            sizes[name] += self.votes[answer]
        most = max(sizes.values(), default=0)
        # A pool with fewer votes than the leading candidate cannot win, so it is not compared.
        pools = [pool for pool in self.open if sum(map(self.votes.__getitem__, pool)) >= most]
        self.asked = next((pool for pool in pools if len(pool) > 1), [])
        if not self.asked:
            return None
        gold, *others = self.asked
        self.names[gold] = gold
        problem = self.group.problem
        spec: dict[str, Any] = {**problem.spec, self.key: gold}
        problem = replace(problem, spec=spec, verifier=self.verifier)
        completions = tuple(self.group.completions[self.texts[answer]] for answer in others)
        return Group(problem, self.group.prompt, completions)

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Record which answers of a pool were judged equal to the pool's first answer; together
        they form one candidate.
        """
        gold, *others = self.asked
        for answer, verdict in zip(others, verdicts, strict=True):
            if verdict.correct:
                self.names[answer] = gold


def candidates(
    judge: Callable[[Sequence[Group]], Sequence[Sequence[Verdict]]],
    compares: Callable[[Problem], Compared],
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    weights: Sequence[Sequence[float]] | None = None,
) -> list[Mapping[str, str]]:
    """For each group, return a map from each extracted answer to the first answer of its candidate.

    If the spec has a single accepted answer, all correct answers form one candidate. Otherwise the
    verifier compares answers: it judges all other answers with one answer as the accepted answer.
    Each distinct text is judged once per candidate, the most frequent text first, until the
    remaining answers cannot win together. If the verifier of a group compares no answers
    (`compares` returns None), the group's map is empty, and its answers are compared as text.
    weights: vote of each completion, at least 0; default 1.
    """
    counts = weights or [[1.0] * len(each) for each in verdicts]
    ballots = [
        _ballot(group, each, of_group, compared) if (compared := compares(group.problem)) else None
        for group, each, of_group in zip(groups, verdicts, counts, strict=True)
    ]
    while True:
        asked = [(one, group) for one in ballots if one is not None and (group := one.question())]
        if not asked:
            return [{} if one is None else one.names for one in ballots]
        replies = judge([group for _, group in asked])
        for (ballot, _), reply in zip(asked, replies, strict=True):
            ballot.answer(reply)


def _ballot(
    group: Group,
    verdicts: Sequence[Verdict],
    weights: Sequence[float],
    compared: tuple[str, str],
) -> _Ballot:
    said = [(n, one) for n, one in enumerate(verdicts) if one.judged and one.extracted is not None]
    votes = defaultdict[str, float](float)
    for n, one in said:
        votes[one.extracted or ""] += weights[n]
    texts = {one.extracted or "": n for n, one in reversed(said)}
    most = sorted(votes, key=lambda answer: -votes[answer])
    passed = {one.extracted or "" for _, one in said if one.correct}
    right = [answer for answer in most if answer in passed]
    wrong = [answer for answer in most if answer not in passed and answer.strip()]
    # If there are several accepted answers, two correct answers may differ from each other.
    if len(listed(group.problem.spec.get(compared[1]))) > 1:
        return _Ballot(group, *compared, votes, texts, [right, wrong])
    # All correct answers equal the single accepted answer, and so equal each other.
    names = dict.fromkeys(right, right[0]) if right else {}
    return _Ballot(group, *compared, votes, texts, [wrong], names)
