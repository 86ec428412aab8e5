"""Replay of a killed run's unfinished steps: what the rollout log holds is neither sampled nor judged again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from assay.config import SamplingConfig
from assay.generate.base import Generator
from assay.train.evaluate import Judge
from assay.types import Group, GroupStream, Problem, Verdict

Log: TypeAlias = Callable[[Sequence[Problem]], list[tuple[Group, tuple[Verdict, ...]]] | None]
"""Given one draw's problems: their logged groups and verdicts, or None where one is missing."""


class LoggedGroups(GroupStream):
    """Groups from the rollout log, with the verdicts that were logged beside them."""

    def __init__(self, logged: Sequence[tuple[Group, tuple[Verdict, ...]]]) -> None:
        super().__init__(enumerate(group for group, _ in logged), len(logged))
        self.verdicts = [verdicts for _, verdicts in logged]


class ReplayGenerator:
    """A generator that looks into the rollout log first."""

    def __init__(self, generator: Generator, log: Log) -> None:
        self.generator = generator
        self.log = log

    def generate(
        self, problems: Sequence[Problem], sampling: SamplingConfig, group_size: int
    ) -> GroupStream:
        """Return the logged groups of these draws; generate them where one is missing."""
        logged = self.log(problems)
        if logged is None:
            return self.generator.generate(problems, sampling, group_size)
        return LoggedGroups(logged)

    def load_policy(self, policy: Any, version: int) -> None:
        """Pass the policy on."""
        self.generator.load_policy(policy, version)


class ReplayVerifiers:
    """Verifiers that pass over groups which were judged before the run was killed."""

    def __init__(self, verifiers: Judge) -> None:
        self.verifiers = verifiers

    def judge(self, groups: GroupStream | Sequence[Group]) -> Sequence[tuple[Verdict, ...]]:
        """Return the logged verdicts of logged groups, and judge all others."""
        if isinstance(groups, LoggedGroups):
            return groups.verdicts
        return self.verifiers.judge(groups)
