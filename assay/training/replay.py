"""A run's generator and verifiers: timed, and never asked again for what the rollout log holds.

A killed run replays the logged groups and verdicts of its unfinished step; nothing in the loop knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from assay.config import SamplingConfig
from assay.generate.base import Generator
from assay.run.directory import Run, Verifiers
from assay.training.evaluate import Judge
from assay.types import Group, GroupStream, Problem, Verdict

Logged = tuple[Group, tuple[Verdict, ...]]


class LoggedGroups(GroupStream):
    """Groups from the rollout log, with the verdicts that were logged beside them."""

    def __init__(self, logged: Sequence[Logged]) -> None:
        super().__init__(enumerate(group for group, _ in logged), len(logged))
        self.verdicts = [verdicts for _, verdicts in logged]


class RunGenerator:
    """Looks into the rollout log of the step at hand, then generates; counted as ``time/generate``."""

    def __init__(self, generator: Generator, run: Run) -> None:
        self.generator = generator
        self._run = run
        self._step = 0
        self._logged: dict[str, Logged] = {}

    @property
    def policy_version(self) -> int:
        """The version of the policy that is sampled from."""
        return self.generator.policy_version

    @property
    def exact(self) -> bool:
        """Whether its log-probabilities are the learner's."""
        return self.generator.exact

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
    ) -> GroupStream:
        """Return the logged groups of these draws, whole; generate them where one is missing."""
        logged = self._read_step()
        if not first_sibling and all(problem.group_id in logged for problem in problems):
            return LoggedGroups([_with_spec(logged[one.group_id], one) for one in problems])
        with self._run.phase("generate"):
            stream = self.generator.generate(problems, sampling, group_size, first_sibling)
        return GroupStream(self._timed(stream), len(problems))

    def sleep(self) -> None:
        """Pass it on."""
        self.generator.sleep()

    def load_policy(self, policy: Any, version: int | None = None) -> None:
        """Pass the policy on."""
        with self._run.phase("load_policy"):
            self.generator.load_policy(policy, version)

    def _timed(self, stream: GroupStream) -> Iterator[tuple[int, Group]]:
        """Count every wait for the next group, also while verifiers consume the stream."""
        arrivals = stream.as_finished()
        while True:
            with self._run.phase("generate"):
                arrival = next(arrivals, None)
            if arrival is None:
                return
            yield arrival

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


class RunVerifiers:
    """Passes over groups that were judged before the run was killed; counted as ``time/verify``.

    describe: what is known of the verifiers, which grows as rows name more of them; it goes into the
    run's evidence before what they judged does.
    """

    def __init__(self, verifiers: Judge, run: Run, describe: Callable[[], Verifiers]) -> None:
        self.verifiers = verifiers
        self._run = run
        self._describe = describe

    def judge(self, groups: GroupStream | Sequence[Group]) -> Sequence[tuple[Verdict, ...]]:
        """Return the logged verdicts of logged groups, and judge all others."""
        if isinstance(groups, LoggedGroups):
            return groups.verdicts
        with self._run.phase("verify"):
            verdicts = self.verifiers.judge(groups)
        self._run.check_verifiers(self._describe())
        return verdicts
