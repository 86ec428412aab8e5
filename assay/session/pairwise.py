"""Pairwise judge: verdicts from comparisons of the completions of a group, for problems without a
checker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from assay.types import Completion, Group, Problem, Verdict
from assay.verify.learned.pairwise import Comparison, compare
from assay.verify.learned.rubrics import PAIRWISE

NAME = "pairwise@1"
AT_ONCE = 8
"""Concurrent comparisons; the judge's own settings bound its requests."""


class PairwiseVerifiers:
    """Judges groups by comparing every pair of completions in both orders.

    The score of a completion is its win rate over the judged comparisons; a tie counts half. A
    completion without a judged comparison gets the verdict *not judged*. options: options of
    ``[verification.options.judge]``. Judging a group takes group_size (group_size - 1) requests.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    @contextmanager
    def judging(self) -> Generator[PairwiseJudging]:
        """Open a session, which compares the completions of each added group."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pairwise") as pool:
            yield PairwiseJudging(pool, self._compare)

    def check_problem(self, problem: Problem) -> None:
        """Accept any problem, because completions are compared with each other and not with an
        answer.
        """

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the name, the version and the hash of the pairwise judge."""
        digest = hashlib.sha256(repr((PAIRWISE, sorted(self.options.items()))).encode()).hexdigest()
        return {"pairwise": {"version": 1, "hash": digest}}

    def _compare(self, problem: Problem, first: Completion, second: Completion) -> Comparison:
        return compare(problem, first, second, self.options)


class PairwiseJudging:
    """A judging session that starts the comparisons of a group when the group is added."""

    def __init__(self, pool: Executor, compare: Callable[..., Comparison]) -> None:
        self._pool, self._compare = pool, compare
        self._asked: dict[Group, dict[tuple[int, int], Future[Comparison]]] = {}

    def add(self, group: Group) -> None:
        """Start to compare every pair of completions of a group."""
        self._asked[group] = {
            pair: self._pool.submit(self._compare, group.problem, *_both(group, pair))
            for pair in combinations(range(len(group.completions)), 2)
        }

    def verdicts(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Wait for all comparisons of the added groups, and return the verdicts."""
        return [
            verdicts_of(
                len(group.completions),
                {pair: one.result() for pair, one in self._asked[group].items()},
            )
            for group in groups
        ]


def _both(group: Group, pair: tuple[int, int]) -> tuple[Completion, Completion]:
    return group.completions[pair[0]], group.completions[pair[1]]


def verdicts_of(
    num_completions: int, comparisons: Mapping[tuple[int, int], Comparison]
) -> tuple[Verdict, ...]:
    """Return one verdict per completion, from the pairwise comparisons of a group."""
    points: list[list[float]] = [[] for _ in range(num_completions)]
    failures: list[list[Comparison]] = [[] for _ in range(num_completions)]
    for (first, second), comparison in comparisons.items():
        if comparison.points is None:
            # A failed comparison says nothing about either completion, so it is no loss.
            failures[first].append(comparison)
            failures[second].append(comparison)
        else:
            points[first].append(comparison.points)
            points[second].append(1.0 - comparison.points)
    return tuple(map(_verdict, points, failures))


def _verdict(points: Sequence[float], failures: Sequence[Comparison]) -> Verdict:
    if points:
        return Verdict.of_score(sum(points) / len(points), NAME)
    reason = failures[0].reason if failures and failures[0].reason else "error"
    detail = failures[0].detail if failures else "no sibling to compare with"
    return Verdict.not_judged(reason, NAME, detail=detail)
