"""Facts that a few judged completions of the base model tell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.training.assemble import Bench
    from assay.types import Group, Problem, Verdict

MEASURED_DRAW = -2
"""The number of the draw: no curriculum's."""


class Sampled:
    """Takes in judged groups, and says what they tell."""

    def __init__(self) -> None:
        self.passes: list[tuple[int, int]] = []
        self.lengths: list[int] = []
        self.seconds: list[float] = []
        self.num_truncated = 0
        self.num_not_judged = 0

    def __call__(self, group: Group, verdicts: Sequence[Verdict]) -> None:
        """Take in one group."""
        judged = [one for one in verdicts if one.judged]
        if judged:
            self.passes.append((len(judged), sum(one.correct for one in judged)))
        self.num_not_judged += len(verdicts) - len(judged)
        self.seconds += [one.seconds for one in verdicts]
        self.lengths += [len(one.tokens) for one in group.completions]
        self.num_truncated += sum(one.truncated for one in group.completions)

    def facts(self) -> dict[str, Any]:
        """Return the facts; none of nothing."""
        if not self.lengths:
            return {}
        mean = statistics.mean(self.lengths)
        found: dict[str, Any] = {
            "mean_tokens": mean,
            "length_spread": statistics.pstdev(self.lengths) / mean if mean else 0.0,
            "truncated": self.num_truncated / len(self.lengths),
            "not_judged": self.num_not_judged / len(self.lengths),
            "verifier_seconds": statistics.mean(self.seconds),
        }
        if self.passes:
            found["passes"] = tuple(self.passes)
            found["pass_at_1"] = statistics.mean(c / n for n, c in self.passes)
            found["pass_at_k"] = statistics.mean(float(c > 0) for _, c in self.passes)
            found["num_samples"] = max(n for n, _ in self.passes)
        return found


def sample_problems(
    bench: Bench, problems: Sequence[Problem], num_problems: int, num_samples: int
) -> Sampled:
    """Sample the first problems at the training temperature, and judge what comes."""
    from assay.training.evaluate import evaluate

    sampled = Sampled()
    count = min(num_problems, len(problems))
    drawn = [replace(problems[n], draw=MEASURED_DRAW) for n in range(count)]
    evaluate(bench.generator, bench.verifiers, drawn, bench.config.sampling, num_samples, sampled)
    return sampled
