"""Sampling plan of a training step: number of prompts, group sizes, temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from assay.config import MixturePart, SamplingConfig
from assay.config.mixture import part_of
from assay.generate.base import Generator
from assay.generate.oversampling import OversamplingCutoff
from assay.scale.ahead import AheadCall
from assay.session.evaluate import Judge, compares_siblings, judge_groups, sample_and_judge
from assay.types import Group, Problem, Verdict

Judged = tuple[Group, Sequence[Verdict]]


@dataclass(frozen=True)
class BatchPlan:
    """Sampling settings of every step.

    max_refills: how often dynamic sampling may replace groups without contrast by fresh groups; 0
    without dynamic sampling. max_group_size: size up to which groups without a correct completion
    are extended; None: groups keep their size. temperatures: [step, temperature] points with linear
    interpolation; empty: the temperature of ``sampling``. parts: parts of a mixture; the problems
    of each part have their own sampling settings.
    """

    num_prompts: int
    group_size: int
    sampling: SamplingConfig
    max_refills: int = 0
    max_group_size: int | None = None
    temperatures: Sequence[tuple[int, float]] = ()
    parts: Mapping[str, MixturePart] = field(default_factory=dict[str, MixturePart])

    def sampling_at(self, step: int) -> SamplingConfig:
        """Return the sampling settings after ``step`` finished steps."""
        if not self.temperatures:
            return self.sampling
        temperature = at_step(self.temperatures, step)
        return self.sampling.model_copy(update={"temperature": temperature})

    def alike(
        self, problems: Sequence[Problem], sampling: SamplingConfig
    ) -> list[tuple[list[int], SamplingConfig, BatchPlan]]:
        """Split problems by the settings of their mixture parts.

        Return (indices, sampling, plan) for each set of problems with equal settings. sampling:
        sampling settings of this step, which a part of the mixture may change.
        """
        if not self.parts:
            return [([*range(len(problems))], sampling, self)]
        shares: dict[str, list[int]] = {}
        for index, problem in enumerate(problems):
            name = part_of(self.parts, problem.tags)
            assert name is not None, problem.id
            shares.setdefault(name, []).append(index)
        found: list[tuple[list[int], SamplingConfig, BatchPlan]] = []
        # A mixture's parts are sampled in the order of their names,
        # which does not depend on the random draws.
        for name, indices in sorted(shares.items()):
            part = self.parts[name]
            own = sampling.model_copy(update=part.sampling_changes)
            size = part.group_size or self.group_size
            plan = replace(self, group_size=size, sampling=own, parts={})
            # Parts of a mixture with equal settings share one generator call,
            # which decodes more completions at once.
            same = next((one for one in found if one[1:] == (own, plan)), None)
            if same is None:
                found.append((indices, own, plan))
            else:
                same[0].extend(indices)
        return found


def at_step(points: Sequence[tuple[int, float]], step: int) -> float:
    """Interpolate (step, value) points linearly at ``step``; before the first point and after the
    last one, the value is constant."""
    steps, values = zip(*points, strict=True)
    return float(np.interp(step, steps, values))


def sample_groups(
    generator: Generator,
    verifiers: Judge,
    problems: Sequence[Problem],
    sizes: Sequence[int],
    sampling: SamplingConfig,
    plan: BatchPlan,
    wanted: int,
) -> tuple[Sequence[Group], Sequence[Sequence[Verdict]]]:
    """Sample and judge one group per problem, in the order of the problems.

    The problems of a mixture's parts are sampled with their own settings (`_sample_alike`).
    """
    shares = plan.alike(problems, sampling)
    if len(shares) == 1:
        ((_, own, own_plan),) = shares
        return _sample_alike(generator, verifiers, problems, sizes, own, own_plan, wanted)
    judged_of: dict[int, Judged] = {}
    for indices, own, own_plan in shares:
        some, own_sizes = [problems[n] for n in indices], [sizes[n] for n in indices]
        rest = (some, own_sizes, own, own_plan, len(some))
        pairs = zip(*_sample_alike(generator, verifiers, *rest), strict=True)
        judged_of |= dict(zip(indices, pairs, strict=True))
    return unzip([judged_of[n] for n in range(len(problems))])


def _sample_alike(
    generator: Generator,
    verifiers: Judge,
    problems: Sequence[Problem],
    sizes: Sequence[int],
    sampling: SamplingConfig,
    plan: BatchPlan,
    wanted: int,
) -> tuple[Sequence[Group], Sequence[Sequence[Verdict]]]:
    """Sample and judge problems with one sampling setting; equal group sizes share one call.

    If the plan samples more problems than it wants groups, all groups have the same size. The
    `OversamplingCutoff` then keeps the groups that finish first: the groups with the shortest
    longest completion.

    If the plan sets a maximum group size, groups without a correct completion are extended by one
    group size at a time, until a completion passes or the maximum is reached. Hard problems thus
    get the samples that easy problems do not need (multi-round adaptive sampling, Xiong et al.,
    2025, arXiv 2510.04996).
    """
    parts = (generator, verifiers)
    if len(problems) > wanted:
        (size,) = set(sizes)
        groups, verdicts = sample_and_judge(
            *parts, problems, sampling, size, cutoff=OversamplingCutoff(wanted)
        )
        return _sampled_on(parts, groups, verdicts, sampling, plan)
    judged_of: dict[int, Judged] = {}
    # A generator call has one group size,
    # so the groups of each size are sampled in a separate call.
    for size in sorted(set(sizes)):
        places = [n for n, one in enumerate(sizes) if one == size]
        some = [problems[n] for n in places]
        pairs = zip(*sample_and_judge(*parts, some, sampling, size), strict=True)
        judged_of |= dict(zip(places, pairs, strict=True))
    groups, verdicts = unzip([judged_of[n] for n in range(len(problems))])
    return _sampled_on(parts, groups, verdicts, sampling, plan)


def _sampled_on(
    parts: tuple[Generator, Judge],
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    sampling: SamplingConfig,
    plan: BatchPlan,
) -> tuple[Sequence[Group], Sequence[Sequence[Verdict]]]:
    """Extend the groups without a correct completion, if the plan allows it.

    If verifiers compare completions of one prompt, extended groups are judged again as a whole.
    """
    if plan.max_group_size is None:
        return groups, verdicts
    whole, judged = [*groups], [*verdicts]
    for first in range(plan.group_size, plan.max_group_size, plan.group_size):
        count = min(plan.group_size, plan.max_group_size - first)
        hard = [n for n in range(len(whole)) if _is_to_grow(whole[n], judged[n], first)]
        if not hard:
            break
        alone = [n for n in hard if not compares_siblings(parts[1], whole[n].problem)]
        compared = [n for n in hard if n not in alone]
        if alone:
            problems = [whole[n].problem for n in alone]
            groups, more = sample_and_judge(*parts, problems, sampling, count, first)
            for n, group, group_verdicts in zip(alone, groups, more, strict=True):
                whole[n] = _joined(whole[n], group)
                judged[n] = (*judged[n], *group_verdicts)
        if compared:
            # A verifier that compares completions of one prompt must judge the whole extended
            # group.
            # The verdicts of the extended group replace the verdicts of the smaller group.
            problems = [whole[n].problem for n in compared]
            groups = parts[0].generate(problems, sampling, count, first)
            grown = [_joined(whole[n], group) for n, group in zip(compared, groups, strict=True)]
            for n, group, again in zip(compared, grown, judge_groups(parts[1], grown), strict=True):
                whole[n], judged[n] = group, again
    return whole, judged


def _joined(group: Group, more: Group) -> Group:
    return replace(group, completions=(*group.completions, *more.completions))


def _is_to_grow(group: Group, verdicts: Sequence[Verdict], size: int) -> bool:
    """Whether a group has this size and only wrong completions. A group from the log of an
    interrupted run may already be larger."""
    failed = [verdict for verdict in verdicts if verdict.judged and not verdict.correct]
    # If no completion was judged, the problem may be easy, so no further completions are sampled.
    return len(group.completions) == size and len(failed) > 0 and not _passed(verdicts)


def _passed(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.correct for verdict in verdicts)


def ahead_calls(
    plan: BatchPlan, problems: Sequence[Problem], sizes: Sequence[int], step: int
) -> list[AheadCall]:
    """Return the generator calls for the problems of a later step. step: number of steps before the
    later step."""
    calls: list[AheadCall] = []
    for indices, own, _ in plan.alike(problems, plan.sampling_at(step)):
        pairs = [(problems[n], sizes[n]) for n in indices]
        calls += [
            AheadCall([one for one, its in pairs if its == size], own, size)
            for size in sorted({sizes[n] for n in indices})
        ]
    return calls


def is_mixed(verdicts: Sequence[Verdict]) -> bool:
    """Whether a group has both correct and wrong judged completions."""
    return len({verdict.correct for verdict in verdicts if verdict.judged}) == 2


def unzip(judged: Sequence[Judged]) -> tuple[list[Group], list[Sequence[Verdict]]]:
    """Split pairs of (group, verdicts) into two lists."""
    return [group for group, _ in judged], [verdicts for _, verdicts in judged]
