"""What a red team's module gives: problems, and completions to try on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from assay.types import Problem, ThinkMode


@dataclass(frozen=True, slots=True)
class Case:
    """One completion to judge. attack: its family's name; honest: a control, which must pass."""

    attack: str
    problem: Problem
    completion: str
    think: ThinkMode = "free"
    honest: bool = False


@dataclass(frozen=True, slots=True)
class Suite:
    """Problems of one kind, and what to try on each.

    fits: whether the suite can work with a problem of the user's.
    """

    name: str
    problems: tuple[Problem, ...]
    cases: Callable[[Problem], Iterable[Case]]
    fits: Callable[[Problem], bool]
