"""Which answers of a group are one candidate: those that the verifier holds equal (majority@k)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.host.fields import listed
from assay.types import Group, Problem, Verdict

Compared = tuple[str, str] | None
"""A verifier, and the key of the spec in which it takes an answer as the accepted one."""


@dataclass
class _Ballot:
    """The answers of a group. names: answer to its candidate. open: pools of answers without one,
    the right ones and the wrong ones: answers of different pools are never equal. asked: the pool
    in question."""

    group: Group
    verifier: str
    key: str
    votes: Mapping[str, float]
    texts: Mapping[str, int]
    open: list[list[str]]
    names: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[str] = field(default_factory=list[str])

    def question(self) -> Group | None:
        """Return open answers, to be judged by the first; None where nothing can change."""
        for pool in self.open:
            pool[:] = [answer for answer in pool if answer not in self.names]
            self.names |= {answer: answer for answer in pool if len(pool) == 1}
        sizes = defaultdict[str, float](float)
        for answer, name in self.names.items():
            sizes[name] += self.votes[answer]
        most = max(sizes.values(), default=0)
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
        """Give the answers that were judged right the name of the one that was the gold."""
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
    """Return, for each group, {extracted answer: the answer that stands for its candidate}.

    Right answers are one candidate where one answer is accepted: they are equal to it. Of several
    accepted ones, and of wrong answers, the verifier is asked which is right where another is the
    gold: each distinct text once against each candidate, the most frequent first, and no more once
    they cannot win together. A group whose verifier compares nothing (`compares`
    gives None) has an empty mapping: its answers are compared as text. weights: what the vote of
    each completion counts, 0 or more; 1 where there are none.
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
    if len(listed(group.problem.spec.get(compared[1]))) > 1:
        return _Ballot(group, *compared, votes, texts, [right, wrong])
    names = dict.fromkeys(right, right[0]) if right else {}
    return _Ballot(group, *compared, votes, texts, [wrong], names)
