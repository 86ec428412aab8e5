"""Evaluate a policy on problems: pass@1 with its standard error, pass@k and majority@k."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from assay.config import SamplingConfig
from assay.generate.base import Generator
from assay.generate.oversampling import OversamplingCutoff
from assay.run.evaluations import by_think_mode, without_problems
from assay.run.intervals import share_interval, share_words, stderr_of
from assay.session.voting import candidates
from assay.types import Group, Problem, Verdict

MAX_PROBLEMS_AT_ONCE = 512


class Judging(Protocol):
    """An open judging session, which judges groups as soon as they are added."""

    def add(self, group: Group) -> None:
        """Start to judge a group, without waiting for its verdicts."""
        ...

    def verdicts(self, groups: Sequence[Group]) -> Sequence[tuple[Verdict, ...]]:
        """Wait for the verdicts of all added groups, and return them."""
        ...


class Judge(Protocol):
    """A source of verdicts: the verifier service, or a pairwise judge."""

    def judging(self) -> AbstractContextManager[Judging]:
        """Open a judging session; judgements that are not finished are canceled when the context
        ends.
        """
        ...


def judge_groups(verifiers: Judge, groups: Sequence[Group]) -> Sequence[tuple[Verdict, ...]]:
    """Judge whole groups, and return their verdicts in the order of the groups."""
    with verifiers.judging() as own:
        judging = _JudgingReturned(own)
        for group in groups:
            judging.add(group)
        return judging.verdicts(groups)


def sample_and_judge(
    generator: Generator,
    verifiers: Judge,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    group_size: int,
    first_sibling: int = 0,
    cutoff: OversamplingCutoff | None = None,
) -> tuple[list[Group], Sequence[tuple[Verdict, ...]]]:
    """Sample one group per problem and judge the groups; judging overlaps with sampling.

    cutoff: oversampling cutoff, with which only the groups that finish first are returned.
    """
    rest = (sampling, group_size, first_sibling)
    with verifiers.judging() as own:
        judging = _JudgingReturned(own)
        if cutoff is None:
            groups = generator.generate(problems, *rest, judging.add)
        else:
            groups = cutoff.first(generator.generate(problems, *rest, judging.add, cutoff=cutoff))
        return groups, judging.verdicts(groups)


class _JudgingReturned:
    """Judging session for groups from a server; completions that the server failed to return are
    *not judged*.
    """

    def __init__(self, judging: Judging) -> None:
        self._judging = judging
        self._returned: dict[Group, Group] = {}

    def add(self, group: Group) -> None:
        """Start to judge those completions of a group that the server returned."""
        # A verifier would judge the empty text of a failed completion as wrong.
        given = tuple(one for one in group.completions if one.failure is None)
        if len(given) < len(group.completions):
            self._returned[group] = replace(group, completions=given)
        if given:
            self._judging.add(self._returned.get(group, group))

    def verdicts(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Wait for the verdicts of all added groups, and return them."""
        given = [self._returned.get(group, group) for group in groups]
        judged = iter(self._judging.verdicts([group for group in given if group.completions]))
        found: list[tuple[Verdict, ...]] = []
        for group, own in zip(groups, given, strict=True):
            verdicts = iter(next(judged) if own.completions else ())
            found.append(
                tuple(
                    next(verdicts)
                    if one.failure is None
                    else Verdict.not_judged(one.failure[0], "none", detail=one.failure[1])
                    for one in group.completions
                )
            )
        return found


def compares_siblings(verifiers: Judge, problem: Problem) -> bool:
    """Whether the verdict of a completion may depend on the other completions of its group."""
    ask = getattr(verifiers, "compares_siblings", None)
    return bool(ask is not None and ask(problem))


def same_answers(
    verifiers: Judge,
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    weights: Sequence[Sequence[float]] | None = None,
) -> Sequence[Mapping[str, str]]:
    """Return the answer candidates of each group (`candidates`); {} if the judge cannot compare
    answers.
    """
    compares = getattr(verifiers, "compares", None)
    if compares is None:
        return [{}] * len(groups)
    return candidates(partial(judge_groups, verifiers), compares, groups, verdicts, weights)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of an evaluation: rates between 0 and 1, as means over problems.

    Unjudged completions are excluded from the rates, and their number is reported. If no completion
    was judged, a rate is NaN (None in a row) instead of 0.

    pass_at_1: mean over problems of the share of completions that passed. stderr: standard error of
    pass_at_1 over problems; None for a single problem. ``interval`` is more accurate than
    ``stderr`` for few problems, or if all problems are right or all are wrong.

    pass_at: unbiased estimates of pass@k, by k. All values of k use the same problems: those with
    enough judged completions for the largest k. The largest k is the largest for which at least
    half of the problems have enough judged completions. pass_at_problems: number of problems over
    which pass_at is estimated.

    majority: share of problems whose most frequent answer is right; in a tie, the share of tied
    answers that are right. Answers that the verifier considers equal, such as 1/2 and 0.5, count as
    the same answer. If the verifier cannot compare answers, votes are counted by the extracted
    text. majority is None with one sample per problem, or if no answer was extracted.

    verifier_seconds: mean time of a verdict.

    by_problem: share of correct completions, by problem id. by_think: pass_at_1, stderr,
    num_problems and mean_tokens of each think mode, if the prompts have several modes. by_source:
    pass_at_1, stderr, num_problems, mean_tokens and by_problem for each source and think mode.
    """

    num_problems: int
    num_completions: int
    num_not_judged: int
    pass_at_1: float
    stderr: float | None
    pass_at: Mapping[int, float] = field(default_factory=dict[int, float])
    pass_at_problems: int = 0
    majority: float | None = None
    by_tag: Mapping[str, float] = field(default_factory=dict[str, float])
    truncated: float = 0.0
    mean_tokens: float = 0.0
    temperature: float = 0.0
    seconds: float = 0.0
    verifier_seconds: float = math.nan
    by_problem: Mapping[str, float] = field(default_factory=dict[str, float])
    by_think: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    by_source: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])

    def as_row(self) -> dict[str, Any]:
        """Return plain values with metric names as keys."""
        row = {f"eval/{key}": value for key, value in asdict(self).items() if key != "pass_at"}
        row.update({f"eval/pass_at_{k}": rate for k, rate in self.pass_at.items() if k > 1})
        return {key: None if value != value else value for key, value in row.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON, with the keys of `as_row` without their prefix, and without
        by_problem.
        """
        row = without_problems(self.as_row())
        row = {key.removeprefix("eval/"): value for key, value in row.items()}
        return {**row, "interval": self.interval}

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of pass_at_1; None if no completion was judged."""
        known = self.num_problems > 0
        return share_interval(self.pass_at_1, self.num_problems, self.stderr) if known else None

    def __str__(self) -> str:
        if not self.num_problems:
            return f"nothing was judged: {self.num_not_judged} of {self.num_completions} not judged"
        parts = [f"pass@1 {self.pass_at_1:.3f}{share_words(self.as_row(), '.3f')}"]
        few = self.pass_at_problems < self.num_problems
        of = f" (of {self.pass_at_problems} problems)" if few else ""
        parts += [f"pass@{k} {rate:.3f}{of}" for k, rate in self.pass_at.items() if k > 1]
        if self.majority is not None:
            parts.append(f"majority {self.majority:.3f}")
        sampling = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        noun = "problem" if self.num_problems == 1 else "problems"
        parts.append(f"{self.num_problems} {noun}, {sampling}")
        for mode, own in by_think_mode(self.as_row()).items():
            rate = own["eval/pass_at_1"]
            words = "not judged" if rate is None else f"{rate:.3f}{share_words(own, '.3f')}"
            parts.append(f"think {mode} {words}")
        if self.truncated:
            parts.append(f"{self.truncated:.0%} cut at the limit")
        if self.num_not_judged:
            parts.append(f"{self.num_not_judged} not judged")
        return ", ".join(parts)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


def evaluate(
    generator: Generator,
    verifiers: Judge,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    num_samples: int = 1,
    sink: Callable[[Group, Sequence[Verdict]], None] | None = None,
    sampling_of: Callable[[Problem], SamplingConfig] | None = None,
) -> Evaluation:
    """Sample ``num_samples`` completions of every problem, and judge them.

    sink: function that is called with each group and its verdicts. sampling_of: function that
    returns the sampling settings of a problem, as for a mixture; with None, ``sampling`` applies to
    all problems.
    """
    started = time.perf_counter()
    tally = _Tally(num_samples)
    # Problems are sampled in chunks, so that memory is limited for any number of problems.
    for first in range(0, len(problems), MAX_PROBLEMS_AT_ONCE):
        last = min(first + MAX_PROBLEMS_AT_ONCE, len(problems))
        part = [problems[n] for n in range(first, last)]
        groups, verdicts = sample_each(
            (generator, verifiers), part, num_samples, sampling_of or (lambda _: sampling)
        )
        same = same_answers(verifiers, groups, verdicts) if num_samples > 1 else None
        tally.add(groups, verdicts, same)
        if sink is not None:
            for group, group_verdicts in zip(groups, verdicts, strict=True):
                sink(group, group_verdicts)
    generator.sleep()
    return tally.result(sampling.temperature, time.perf_counter() - started)


def sample_each(
    parts: tuple[Generator, Judge],
    problems: Sequence[Problem],
    num_samples: int,
    sampling_of: Callable[[Problem], SamplingConfig],
) -> tuple[list[Group], list[Sequence[Verdict]]]:
    """Sample and judge problems in their order; problems with equal settings share a generator
    call.
    """
    settings = [sampling_of(problem) for problem in problems]
    found: dict[int, tuple[Group, Sequence[Verdict]]] = {}
    distinct: list[SamplingConfig] = []
    for own in settings:
        if own not in distinct:
            distinct.append(own)
    for own in distinct:
        places = [n for n, one in enumerate(settings) if one == own]
        some = [problems[n] for n in places]
        pairs = zip(*sample_and_judge(*parts, some, own, num_samples), strict=True)
        found |= dict(zip(places, pairs, strict=True))
    groups, verdicts = zip(*(found[n] for n in range(len(problems))), strict=True)
    return list(groups), list(verdicts)


def summarize(
    groups: Iterable[Group], verdicts: Iterable[Sequence[Verdict]], temperature: float = 0.0
) -> Evaluation:
    """Return the metrics of judged groups; majority votes are counted by the extracted text."""
    groups = list(groups)
    tally = _Tally(max((len(group.completions) for group in groups), default=1))
    tally.add(groups, verdicts)
    return tally.result(temperature, 0.0)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased pass@k, 1 - C(n-c, k) / C(n, k) (Chen et al., 2021, equation 1)."""
    if k > num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, not {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_correct(verdicts: Sequence[Verdict], same: Mapping[str, str] | None = None) -> float:
    """Return the probability that the most frequent answer is right, if ties are broken at random.

    same: map from an answer to its candidate (`candidates`); other answers are compared as text.
    A completion without an extracted answer has no vote.
    """
    names = same or {}
    said = [(names.get(v.extracted, v.extracted), v) for v in verdicts if v.extracted is not None]
    votes = Counter(name for name, _ in said)
    if not votes:
        return 0.0
    most = max(votes.values())
    leaders = {name for name, count in votes.items() if count == most}
    # If ties are broken at random, each of the leading answers wins with equal probability.
    right = {name for name, one in said if one.correct and name in leaders}
    return len(right) / len(leaders)


class _Tally:
    def __init__(self, num_samples: int) -> None:
        self.ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < num_samples] + [num_samples]
        self.num_samples = num_samples
        self.by_problem: dict[str, float] = {}
        # Numbers of (judged, correct) completions of each problem.
        self.counts: list[tuple[int, int]] = []
        self.majorities: list[float] = []
        self.has_votes = False
        self.by_tag: dict[str, list[float]] = defaultdict(list)
        # Keyed by (source, think mode).
        self.parts: dict[tuple[str, str], _Part] = defaultdict(_Part)
        self.num_completions = 0
        self.lengths: list[int] = []
        self.num_truncated = 0
        self.num_not_judged = 0
        self.verifier_seconds: list[float] = []

    def add(
        self,
        groups: Iterable[Group],
        verdicts: Iterable[Sequence[Verdict]],
        same: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        for n, (group, group_verdicts) in enumerate(zip(groups, verdicts, strict=True)):
            given = [one for one in group.completions if one.failure is None]
            lengths = [len(completion.tokens) for completion in given]
            self.num_completions += len(group.completions)
            self.lengths += lengths
            self._part_of(group).lengths += lengths
            self.num_truncated += sum(completion.truncated for completion in group.completions)
            judged = [verdict for verdict in group_verdicts if verdict.judged]
            self.num_not_judged += len(group_verdicts) - len(judged)
            self.verifier_seconds += [verdict.seconds for verdict in judged]
            if judged:
                self._add_problem(group, judged, same[n] if same else {})

    def _add_problem(
        self, group: Group, judged: Sequence[Verdict], same: Mapping[str, str]
    ) -> None:
        problem = group.problem
        num_correct = sum(verdict.correct for verdict in judged)
        share = num_correct / len(judged)
        self.by_problem[problem.id] = share
        self.counts.append((len(judged), num_correct))
        self._part_of(group).shares[problem.id] = share
        for tag in problem.tags:
            self.by_tag[tag].append(share)
        if self.num_samples > 1:
            self.majorities.append(majority_correct(judged, same))
            self.has_votes |= any(verdict.extracted is not None for verdict in judged)

    def _part_of(self, group: Group) -> _Part:
        source = group.problem.source.rpartition(":")[0]
        return self.parts[source, group.prompt.think.mode]

    def _pass_at(self) -> tuple[dict[int, float], int]:
        """Return pass@k by k, and the number of problems on which the estimates are based."""
        # pass@k over different problems could fall with k, so every k uses the same problems.
        judged_of_half = sorted(judged for judged, _ in self.counts)[len(self.counts) // 2 :]
        ks = [k for k in self.ks if judged_of_half and k <= judged_of_half[0]]
        whole = [(judged, right) for judged, right in self.counts if ks and judged >= ks[-1]]
        return {k: _mean([pass_at_k(*each, k) for each in whole]) for k in ks}, len(whole)

    def result(self, temperature: float, seconds: float) -> Evaluation:
        shares = [right / judged for judged, right in self.counts]
        pass_at, pass_at_problems = self._pass_at()
        return Evaluation(
            num_problems=len(shares),
            num_completions=self.num_completions,
            num_not_judged=self.num_not_judged,
            pass_at_1=_mean(shares),
            stderr=stderr_of(shares),
            pass_at=pass_at,
            pass_at_problems=pass_at_problems,
            majority=_mean(self.majorities) if self.has_votes else None,
            by_tag={tag: _mean(shares) for tag, shares in sorted(self.by_tag.items())},
            truncated=self.num_truncated / max(1, len(self.lengths)),
            mean_tokens=_mean(self.lengths),
            temperature=temperature,
            seconds=seconds,
            verifier_seconds=_mean(self.verifier_seconds),
            by_problem=self.by_problem,
            by_think=self._by_think(),
            by_source=self._by_source() if len(self.parts) > 1 else {},
        )

    def _by_think(self) -> dict[str, dict[str, Any]]:
        modes = sorted({mode for _, mode in self.parts})
        of_mode = {
            mode: [part for (_, own), part in self.parts.items() if own == mode] for mode in modes
        }
        return {mode: _rates(of_mode[mode]) for mode in modes} if len(modes) > 1 else {}

    def _by_source(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for (source, mode), part in self.parts.items():
            found[source][mode] = {**_rates([part]), "by_problem": part.shares}
        return dict(found)


@dataclass
class _Part:
    """Results of one data source in one think mode: pass rates by problem, and completion
    lengths."""

    shares: dict[str, float] = field(default_factory=dict[str, float])
    lengths: list[int] = field(default_factory=list[int])


def _rates(parts: Sequence[_Part]) -> dict[str, Any]:
    shares = [share for part in parts for share in part.shares.values()]
    return {
        "pass_at_1": _mean(shares) if shares else None,
        "stderr": stderr_of(shares),
        "num_problems": len(shares),
        "mean_tokens": _mean([length for part in parts for length in part.lengths]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
