"""Replay of a killed run's unfinished steps: what the rollout log holds is neither sampled nor judged again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from assay.config import SamplingConfig
from assay.generate.base import Generator
from assay.run.directory import Run
from assay.train.evaluate import Judge
from assay.types import Group, GroupStream, Problem, Verdict

Logged = tuple[Group, tuple[Verdict, ...]]


class LoggedGroups(GroupStream):
    """Groups from the rollout log, with the verdicts that were logged beside them."""

    def __init__(self, logged: Sequence[Logged]) -> None:
        super().__init__(enumerate(group for group, _ in logged), len(logged))
        self.verdicts = [verdicts for _, verdicts in logged]


class ReplayGenerator:
    """A generator that looks into the rollout log of the step at hand first."""

    def __init__(self, generator: Generator, run: Run) -> None:
        self.generator = generator
        self._run = run
        self._step = 0
        self._logged: dict[str, Logged] = {}

    def generate(
        self, problems: Sequence[Problem], sampling: SamplingConfig, group_size: int
    ) -> GroupStream:
        """Return the logged groups of these draws; generate them where one is missing."""
        logged = self._read_step()
        if all(problem.group_id in logged for problem in problems):
            return LoggedGroups([_with_spec(logged[one.group_id], one) for one in problems])
        return self.generator.generate(problems, sampling, group_size)

    def load_policy(self, policy: Any, version: int) -> None:
        """Pass the policy on."""
        self.generator.load_policy(policy, version)

    def _read_step(self) -> dict[str, Logged]:
        if self._step != self._run.step + 1:
            self._step = self._run.step + 1
            groups, verdicts = self._run.recorded(self._step) or ([], [])
            pairs = zip(groups, verdicts, strict=True)
            self._logged = {group.id: (group, judged) for group, judged in pairs}
        return self._logged


def _with_spec(logged: Logged, problem: Problem) -> Logged:
    """Give a logged group back the problem that was drawn: the log holds no answers."""
    group, verdicts = logged
    return replace(group, problem=problem), verdicts


class ReplayVerifiers:
    """Verifiers that pass over groups which were judged before the run was killed."""

    def __init__(self, verifiers: Judge) -> None:
        self.verifiers = verifiers

    def judge(self, groups: GroupStream | Sequence[Group]) -> Sequence[tuple[Verdict, ...]]:
        """Return the logged verdicts of logged groups, and judge all others."""
        if isinstance(groups, LoggedGroups):
            return groups.verdicts
        return self.verifiers.judge(groups)
