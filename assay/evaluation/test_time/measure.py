"""Run each search method at each budget over problems, and summarize the results."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from assay.evaluation.test_time.choice import choose
from assay.evaluation.test_time.drawing import Drawer, judged
from assay.evaluation.test_time.methods import METHODS, SAMPLED, Search, Shape
from assay.evaluation.test_time.result import BASE, SearchRow
from assay.evaluation.test_time.tree import Draw, Node
from assay.evaluation.test_time.tree_rows import tree_rows
from assay.session.evaluate import MAX_PROBLEMS_AT_ONCE, Judge
from assay.types import Problem, Prompt

GREEDY, ORACLE, PLAIN = "greedy", "oracle", "best_of_n"
"""Rows of every search, and the method whose completions are plain samples."""
Key = tuple[str, int | None]


@dataclass
class _Tally:
    """Row of the printed table: the results of one search method at one budget.

    rights: by problem id, 1.0 (right), 0.0 (wrong) or a share; None if not judged. costs: number of
    sampled tokens and of whole completions for each problem. scores: value that the scorer gives
    each problem's answer.
    """

    rights: dict[str, float | None] = field(default_factory=dict[str, float | None])
    costs: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    scores: list[float | None] = field(default_factory=list[float | None])

    def add(
        self, node: Node, right: float | None, cost: tuple[float, float], score: float | None
    ) -> None:
        self.rights[node.problem.id] = right
        self.costs.append(cost)
        self.scores.append(score)


@dataclass
class Searching:
    """Run every search method with every budget on the same problems.

    file: JSONL output with a row for each whole completion; None means no output.
    """

    drawer: Drawer
    verifiers: Judge
    methods: Sequence[str]
    budgets: Sequence[int]
    shape: Shape
    file: Any = None
    _tallies: dict[Key, _Tally] = field(default_factory=lambda: defaultdict[Key, _Tally](_Tally))

    def run(self, problems: Sequence[Problem], render: Callable[[Problem], Prompt]) -> None:
        """Search for the answers of the problems, in batches that fit in memory."""
        for first in range(0, len(problems), MAX_PROBLEMS_AT_ONCE):
            last = min(first + MAX_PROBLEMS_AT_ONCE, len(problems))
            part = [problems[n] for n in range(first, last)]
            self._measure([Node(problem, render(problem)) for problem in part])
        self.drawer.generator.sleep()

    def rows(self) -> list[SearchRow]:
        """Return the rows ``greedy`` and ``one_sample``, then a row for each search method and
        budget.
        """
        base = self._row((BASE, None), None)
        named = [*self.methods, ORACLE]
        keys: list[Key] = [(name, budget) for budget in self.budgets for name in named]
        others = [self._row(key, base.by_problem) for key in [(GREEDY, None), *keys]]
        return [others[0], base, *others[1:]]

    def _row(self, key: Key, base: Mapping[str, float] | None) -> SearchRow:
        tally = self._tallies[key]
        return SearchRow.of(*key, tally.rights, tally.costs, tally.scores, base)

    def _measure(self, roots: Sequence[Node]) -> None:
        searches = self._searched(roots)
        found = [node for each in searches.values() for one in each for node in one.found]
        found += [root.drawn["greedy"][0] for root in roots]
        # Searches share nodes, so each distinct node is judged only once.
        for node, verdict in judged(self.verifiers, list(dict.fromkeys(found))):
            node.verdict = verdict
        for budget in self.budgets:
            for method in self.methods:
                own = searches[_drawn_as(method), budget]
                answers = choose(method, own, self.verifiers)
                for one, answer in zip(own, answers, strict=True):
                    self._add(method, one, answer)
            for one in searches[PLAIN, budget]:
                self._add_oracle(one)
        for one in searches[PLAIN, max(self.budgets)]:
            self._add_base(one)

    def _searched(self, roots: Sequence[Node]) -> dict[tuple[str, int], list[Search]]:
        """Run the searches of all methods, and plain sampling, in shared generator calls."""
        longest = self.drawer.limits.longest
        # Plain sampling always runs, because the baseline and the oracle need plain samples.
        found = {
            (method, budget): [Search(root, budget, longest, self.shape) for root in roots]
            for method in dict.fromkeys([PLAIN, *map(_drawn_as, self.methods)])
            for budget in self.budgets
        }
        self.drawer.run([METHODS[name](one) for (name, _), each in found.items() for one in each])
        self.drawer.draw([Draw(root, "greedy", 0, 1) for root in roots])
        return found

    def _add(self, method: str, search: Search, answer: Node) -> None:
        cost = (search.spent, len(search.found))
        tally = self._tallies[method, search.budget]
        tally.add(answer, _right(answer), cost, answer.reward)
        if self.file is not None:
            for row in tree_rows(method, search, answer, self.drawer.step):
                self.file.write(json.dumps(row, default=str) + "\n")

    def _add_oracle(self, search: Search) -> None:
        known = [right for one in search.found if (right := _right(one)) is not None]
        cost = (search.spent, len(search.found))
        tally = self._tallies[ORACLE, search.budget]
        tally.add(search.root, max(known, default=None), cost, None)

    def _add_base(self, search: Search) -> None:
        """Add the results of two baselines: greedy decoding and one sample.

        The baseline ``one_sample`` is the mean over the plain samples that the budget allows even
        if every sample has maximum length.
        """
        # Further samples exist only if earlier samples were short, so they would bias the mean.
        first = search.found[: search.budget // search.longest]
        known = [right for one in first if (right := _right(one)) is not None]
        scores = [one.reward for one in first if one.reward is not None]
        tokens = fmean(one.cost for one in first)
        self._tallies[BASE, None].add(
            search.root,
            fmean(known) if known else None,
            (tokens, 1),
            fmean(scores) if scores else None,
        )
        greedy = search.root.drawn["greedy"][0]
        cost = (greedy.cost, 1)
        self._tallies[GREEDY, None].add(greedy, _right(greedy), cost, greedy.reward)


def _drawn_as(method: str) -> str:
    return PLAIN if method in SAMPLED else method


def _right(node: Node) -> float | None:
    verdict = node.verdict
    return float(verdict.correct) if verdict is not None and verdict.judged else None
