"""Wrap the generator and the verifiers of a run, for timing and to reuse the rollout log.

When a killed run resumes, these wrappers return the logged groups and verdicts of the unfinished
step, so that the training loop needs no code for resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Generator as Yields
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from assay.config import SamplingConfig
from assay.generate.base import CompletionLog, Generator, GeneratorWrapper
from assay.generate.engine import Engine
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.vllm_engine import VllmEngine
from assay.model.weights import Weights
from assay.run.directory import Run, Verifiers
from assay.run.rollout_log import PutBack
from assay.session.evaluate import Judge, Judging, compares_siblings
from assay.session.second_opinion import SecondOpinion
from assay.types import Group, Problem, Verdict

Logged = tuple[Group, tuple[Verdict, ...]]


class StepLog:
    """Logged groups and verdicts of the current step, which are read once per step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step = 0
        self._logged: dict[str, Logged] = {}

    def read(self) -> dict[str, Logged]:
        """Return logged groups and verdicts, by group id; the logged problems have no spec."""
        if self._step != self._run.step + 1:
            self._step = self._run.step + 1
            recorded = self._run.recorded(self._step)
            pairs = zip(*recorded, strict=True) if recorded else ()
            self._logged = {group.id: (group, judged) for group, judged in pairs}
        return self._logged

    def verdicts_of(self, group: Group) -> tuple[Verdict, ...] | None:
        """Return the logged verdicts of a group; None if the log has other completions."""
        logged = self.read().get(group.id)
        return logged[1] if logged is not None and _are_same(logged[0], group) else None


def _are_same(one: Group, other: Group) -> bool:
    return len(one.completions) == len(other.completions) and all(
        mine.id == its.id and np.array_equal(mine.tokens, its.tokens)
        for mine, its in zip(one.completions, other.completions, strict=True)
    )


class RunGenerator(GeneratorWrapper):
    """Generator that returns logged groups and samples all others; the metric is
    ``time/generate``."""

    def __init__(self, generator: Generator, run: Run) -> None:
        super().__init__(generator)
        self._run = run
        self._log = StepLog(run)

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Return the logged groups of a step if they are complete; otherwise sample.

        With an oversampling cutoff, the log has the selected groups and the ids of all others.
        """
        logged = self._log.read()
        there = [problem for problem in problems if problem.group_id in logged]
        with self._run.phase("generate"):
            if first_sibling or len(there) < (len(problems) if cutoff is None else cutoff.enough):
                rest = (sampling, group_size, first_sibling, on_group)
                if cutoff is None:
                    return self._sample(problems, *rest)
                # The metrics of the cutoff count discarded tokens, so no logged group is reused.
                groups = cutoff.first(self.generator.generate(problems, *rest, cutoff=cutoff))
                names = [problem.group_id for problem in problems]
                late = [name for name in names if name not in {group.id for group in groups}]
                self._run.put_back = PutBack(late, cutoff.tokens)
                return groups
            # Logged problems have no answers, so the drawn problems replace them.
            groups = [replace(logged[one.group_id][0], problem=one) for one in there]
            if on_group is not None:
                for group in groups:
                    on_group(group)
            if cutoff is not None:
                self._run.put_back = self._run.rollouts.put_back(self._run.step + 1)
            return groups

    def _sample(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int,
        on_group: Callable[[Group], None] | None,
    ) -> list[Group]:
        """Sample the missing groups; completions that finished before a kill are reused.

        The local engine logs each completion when it ends, whereas other generators log whole
        groups. If the bits of a completion depend on others in its batch, all groups are sampled
        again.
        """
        rest = (sampling, group_size, first_sibling)
        # Without the reused completions, a batch would change the bits of the other completions.
        if not getattr(self.generator, "independent", True):
            return self.generator.generate(problems, *rest, on_group)
        log = self._run.rollouts.sampled
        log.turn_to(self._run.step + 1, self.policy_version)
        # Only whole groups are taken from the log here: the engine itself reuses completions.
        siblings = range(first_sibling, first_sibling + group_size)
        # A group that was sampled ahead is logged, but must still leave the queue of the generator.
        is_started = getattr(self.generator, "is_started", lambda problem: False)
        found = {
            one.group_id: None if is_started(one) else log.whole(one, siblings) for one in problems
        }
        missing = [one for one in problems if found[one.group_id] is None]
        if on_group is not None:
            for group in filter(None, found.values()):
                on_group(group)

        def ended(group: Group) -> None:
            for one in group.completions:
                log.add(group.problem, group.prompt, one)
            if on_group is not None:
                on_group(group)

        with _logged_by(log, self.generator):
            sampled = self.generator.generate(missing, *rest, ended) if missing else []
        groups = {one.id: one for one in (*filter(None, found.values()), *sampled)}
        return [groups[one.group_id] for one in problems]

    def load_policy(self, weights: Weights) -> None:
        """Load new weights into the generator; the metric is ``time/load_policy``."""
        with self._run.phase("load_policy"):
            super().load_policy(weights)


@contextmanager
def _logged_by(log: CompletionLog, generator: Generator) -> Yields[None]:
    """Log the completions of a local generator only in this block: evaluations are not logged."""
    if not isinstance(generator, Engine | VllmEngine):
        yield
        return
    generator.log = log
    try:
        yield
    finally:
        generator.log = None


class RunVerifiers:
    """Verifiers that return logged verdicts and judge all other groups; the metric is
    ``time/verify``.

    describe: function that returns the version and hash of each verifier loaded so far. Rows may
    name further verifiers. The run records the versions and hashes of verifiers before the
    verdicts. second: function that adds second verdicts to a sample of completions.
    """

    def __init__(
        self,
        verifiers: Judge,
        run: Run,
        describe: Callable[[], Verifiers],
        second: SecondOpinion | None = None,
    ) -> None:
        self.verifiers = verifiers
        self._second = second
        self._run = run
        self._describe = describe
        self._log = StepLog(run)

    def compares_siblings(self, problem: Problem) -> bool:
        """Whether the verdict of a completion may depend on the other completions of its group."""
        return compares_siblings(self.verifiers, problem)

    @contextmanager
    def judging(self) -> Yields[RunJudging]:
        """Open a judging session in which logged groups keep their logged verdicts."""
        with self.verifiers.judging() as judging:
            yield RunJudging(judging, self._run, self._describe, self._log, self._second)


class RunJudging:
    """Judging session that returns logged verdicts, and judges all other groups."""

    def __init__(
        self,
        judging: Judging,
        run: Run,
        describe: Callable[[], Verifiers],
        log: StepLog,
        second: SecondOpinion | None = None,
    ) -> None:
        self._judging, self._run, self._describe, self._log = judging, run, describe, log
        self._second = second
        self._logged: dict[Group, tuple[Verdict, ...]] = {}

    def add(self, group: Group) -> None:
        """Start to judge a group, unless its verdicts are logged."""
        logged = self._log.verdicts_of(group)
        if logged is not None:
            self._logged[group] = logged
            return
        with self._run.phase("verify"):
            self._judging.add(group)

    def verdicts(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Wait for the verdicts of all added groups, and return them."""
        fresh = [group for group in groups if group not in self._logged]
        with self._run.phase("verify"):
            found = dict(zip(fresh, self._judging.verdicts(fresh), strict=True))
        if fresh or not groups:
            # A row may be the first to name a verifier, whose version the run must record.
            self._run.check_verifiers(self._describe())
        found |= self._logged
        judged = [found[group] for group in groups]
        return judged if self._second is None else self._second.judge(groups, judged)
