"""Result of a search: accuracy by method and budget, as values and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from assay.host.terminal import aligned, lined
from assay.run.intervals import share_interval, spread_words, stderr_of
from assay.run.paired import Paired

BASE = "one_sample"
"""The baseline row: one completion without search."""


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One method with one budget.

    budget: number of tokens per problem; None for a baseline without a budget. accuracy: share of
    the judged problems whose answer passed. stderr: standard error over problems. gain,
    gain_stderr: difference in accuracy from the baseline ``one_sample``, paired by problem, and its
    standard error.
    tokens, completions: mean number of sampled tokens and of whole completions per problem. score:
    mean value that the scorer gives the answers; None without a scorer. by_problem: by problem id,
    1.0 (right), 0.0 (wrong), or a share over several completions. num_not_judged: number of
    problems that are excluded because their answer was not judged.
    """

    method: str
    budget: int | None
    accuracy: float | None
    stderr: float | None
    tokens: float
    completions: float
    score: float | None = None
    gain: float | None = None
    gain_stderr: float | None = None
    num_not_judged: int = 0
    by_problem: Mapping[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(
        cls,
        method: str,
        budget: int | None,
        rights: Mapping[str, float | None],
        costs: Sequence[tuple[float, float]],
        scores: Sequence[float | None],
        base: Mapping[str, float] | None = None,
    ) -> SearchRow:
        """Compute a result row from one answer per problem.

        rights: by problem id, 1.0 (right), 0.0 (wrong) or a share; None if not judged.
        costs: number of sampled tokens and of whole completions for each problem. scores: value
        that the scorer gives each answer.
        base: `by_problem` of one sample.
        """
        known = {id: right for id, right in rights.items() if right is not None}
        # Pairing by problem removes differences in difficulty from the gain's standard error.
        gains = Paired.of(base or {}, known, known).differences
        scored = [score for score in scores if score is not None]
        return cls(
            method=method,
            budget=budget,
            accuracy=fmean(known.values()) if known else None,
            stderr=stderr_of([*known.values()]),
            tokens=fmean(tokens for tokens, _ in costs),
            completions=fmean(count for _, count in costs),
            score=fmean(scored) if scored else None,
            gain=fmean(gains) if gains else None,
            gain_stderr=stderr_of(gains),
            num_not_judged=len(rights) - len(known),
            by_problem=known,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON, without the results of single problems."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "by_problem"}

    @property
    def cells(self) -> list[str]:
        """The formatted values of the result row, in the order of the table's columns."""
        count = len(self.by_problem)
        accuracy = gain = "not judged"
        if self.accuracy is not None:
            interval = share_interval(self.accuracy, count, self.stderr)
            accuracy = f"{self.accuracy:.3f}{spread_words(self.stderr, interval, count, '.3f')}"
        gain = "" if self.gain is None else f"{self.gain:+.3f} ± {self.gain_stderr or 0:.3f}"
        score = "" if self.score is None else f"{self.score:.3f}"
        budget = "" if self.budget is None else f"{self.budget:,}"
        numbers = [f"{self.tokens:.1f}", f"{self.completions:.1f}"]
        return [self.method, budget, accuracy, gain, *numbers, score]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Results of every search method and budget on the same problems, and of the baselines.

    rows: first ``greedy`` and ``one_sample``; then, for each budget, the search methods and
    ``oracle`` (pass@n, the share of problems for which any plain sample passes). longest: maximum
    length of a completion in tokens. step: text that ends a reasoning step. out: file with the
    sampled trees; None if no file was requested.
    """

    model: str
    scorer: str | None
    rows: Sequence[SearchRow]
    num_problems: int
    temperature: float
    longest: int
    step: str
    seconds: float
    out: str | None = None

    def row(self, method: str, budget: int | None = None) -> SearchRow:
        """Return the result row of a search method at a budget. Raises KeyError without this
        row."""
        return {(one.method, one.budget): one for one in self.rows}[method, budget]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        row = {name: getattr(self, name) for name in self.__slots__}
        return {**row, "rows": [one.as_dict() for one in self.rows]}

    def __str__(self) -> str:
        noun = "problem" if self.num_problems == 1 else "problems"
        lines = [
            f"{self.model}: {self.num_problems} {noun}, temperature {self.temperature:g}",
            f"scorer: {self.scorer or 'none'}",
            "",
        ]
        heads = ["method", "budget", "accuracy", "over one sample", "tokens", "completions"]
        table = [[*heads, "score"], *(row.cells for row in self.rows)]
        lines += aligned(table, right=range(1, len(table[0])))
        lines += ["", "budget, tokens: per problem. ± is one standard error over problems."]
        lines.append("oracle: share of problems with any right sample (pass@n), an upper bound.")
        if any(row.num_not_judged for row in self.rows):
            most = max(row.num_not_judged for row in self.rows)
            lines.append(f"up to {most} answers of a row were not judged and are excluded")
        if self.out:
            lines.append(f"trees: {self.out}")
        return lined(lines)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__
