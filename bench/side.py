"""Measurements of one side of a comparison: its steps, its memory, and the figures derived from
them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.flops import ModelShape, Work, forward_flops, generation_bytes, update_flops
from bench.processes import Finished


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        """Return the fields as plain values for JSON."""
        return {"median": self.median, "min": self.low, "max": self.high}


@dataclass(frozen=True)
class StepFacts:
    """One measured step.

    prompts: lengths of the prompts. completions: lengths of the completions, by group. All time
    that is not generation counts as the update: rewards, loss, backward pass, optimizer, and all
    other work between two generations.
    """

    step_seconds: float
    generation_seconds: float
    prompts: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> StepFacts:
        """Read a step from the JSON value of a program."""
        return cls(
            step_seconds=tree["step_seconds"],
            generation_seconds=tree["generation_seconds"],
            prompts=tuple(tree["prompts"]),
            completions=tuple(tuple(lengths) for lengths in tree["completions"]),
        )

    @property
    def update_seconds(self) -> float:
        """Seconds of the step that are not generation."""
        return self.step_seconds - self.generation_seconds

    @property
    def work(self) -> Work:
        """Tokens that the model must process in the step."""
        return Work.of(self.prompts, self.completions)

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return self.work.predicted


PHASES: dict[str, Callable[[StepFacts], float]] = {
    "generation": lambda step: step.generation_seconds,
    "update": lambda step: step.update_seconds,
    "step": lambda step: step.step_seconds,
}


@dataclass
class Side:
    """One program with one setting: all its measured steps, and the peak of each run.

    device_peaks_mib: peaks of the tensors on a GPU; empty on a CPU.
    """

    name: str
    steps: list[StepFacts] = field(default_factory=list[StepFacts])
    peaks_mib: list[float] = field(default_factory=list[float])
    device_peaks_mib: list[float] = field(default_factory=list[float])
    helpers_mib: list[float] = field(default_factory=list[float])
    dtypes: dict[str, str] = field(default_factory=dict[str, str])
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, result: Mapping[str, Any], finished: Finished) -> None:
        """Add the steps of a run, without its first step, which is a warm-up."""
        self.steps += [StepFacts.read(step) for step in result["steps"][1:]]
        self.peaks_mib.append(finished.peak_mib + finished.helpers_mib)
        self.helpers_mib.append(finished.helpers_mib)
        if result.get("device_peak_mib"):
            self.device_peaks_mib.append(result["device_peak_mib"])
        self.dtypes, self.versions = dict(result["dtypes"]), dict(result["versions"])

    def seconds(self, phase: str) -> Spread:
        """Return the seconds of a phase."""
        return Spread.of([PHASES[phase](step) for step in self.steps])

    def tokens_per_second(self, phase: str) -> Spread:
        """Return the sampled tokens divided by the seconds of a phase."""
        return Spread.of([step.tokens / PHASES[phase](step) for step in self.steps])

    @property
    def peak_mib(self) -> float:
        """Largest peak of all runs: of the tensors on a GPU, or of the process and its children."""
        return max(self.device_peaks_mib or self.peaks_mib)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens of a completion."""
        lengths = [n for step in self.steps for group in step.completions for n in group]
        return statistics.mean(lengths)

    def last_line(self) -> str:
        """Describe the newest step in one line."""
        last = self.steps[-1]
        generated = f"{last.generation_seconds:.2f} s of it generation"
        step = f"{self.name}: a step of {last.step_seconds:.2f} s"
        peaks_mib = self.device_peaks_mib or self.peaks_mib
        return f"{step}, {generated}, {peaks_mib[-1]:.0f} MiB"

    def update_share(self, shape: ModelShape, product_flops: float) -> float:
        """Return the update's useful operations, divided by those of matrix products in the same
        time."""
        return statistics.median(
            update_flops(shape, step.work) / (step.update_seconds * product_flops)
            for step in self.steps
        )

    def generation_shares(
        self, shape: ModelShape, product_flops: float, bandwidth: float, dtype: str
    ) -> dict[str, float]:
        """Return generation's useful operations and required bytes, each divided by the limit."""
        works = [(step.work, step.generation_seconds) for step in self.steps]
        return {
            "generation_of_products": statistics.median(
                forward_flops(shape, work) / (seconds * product_flops) for work, seconds in works
            ),
            "generation_of_bandwidth": statistics.median(
                generation_bytes(shape, work, dtype) / (seconds * bandwidth)
                for work, seconds in works
            ),
        }

    def as_dict(self, phases: Sequence[str] = tuple(PHASES)) -> dict[str, Any]:
        """Return the figures as plain values for JSON."""
        return {
            "name": self.name,
            "measured_steps": len(self.steps),
            "seconds": {phase: self.seconds(phase).as_dict() for phase in phases},
            "tokens_per_second": {
                phase: self.tokens_per_second(phase).as_dict() for phase in phases
            },
            "peak_mib": self.peak_mib,
            "peaks_mib": self.peaks_mib,
            "device_peaks_mib": self.device_peaks_mib,
            "of_which_helpers_mib": self.helpers_mib,
            "mean_completion_tokens": self.mean_length,
            "dtypes": self.dtypes,
            "versions": self.versions,
        }


def check_same_prompts(sides: Sequence[Side]) -> None:
    """Raise RuntimeError if two sides had prompts of different lengths."""
    shown = {side.name: sorted(side.steps[0].prompts) for side in sides}
    if len({tuple(lengths) for lengths in shown.values()}) > 1:
        raise RuntimeError(f"the sides saw different prompts: tokens of each {shown}")


def ratios(ours: Side, theirs: Side, phases: Sequence[str] = tuple(PHASES)) -> dict[str, float]:
    """Return Assay's speedup by phase (medians of tokens per second), and its share of memory."""
    found = {
        phase: ours.tokens_per_second(phase).median / theirs.tokens_per_second(phase).median
        for phase in phases
    }
    return found | {"memory": ours.peak_mib / theirs.peak_mib}


def comparison_table(
    ours: Side, others: Sequence[Side], faster: Side, phases: Sequence[str] = tuple(PHASES)
) -> str:
    """Return the figures of all sides as text. Ratios are relative to the fastest other side."""
    compared = ratios(ours, faster, phases)
    sides = [ours, *others]
    rows = [["", *(side.name for side in sides), f"vs {faster.name}"]]
    for phase in phases:
        cells = [_seconds(side.seconds(phase)) for side in sides]
        rows.append([f"{phase}, s", *cells, ""])
    for phase in phases:
        cells = [f"{side.tokens_per_second(phase).median:.0f}" for side in sides]
        rows.append([f"{phase}, tokens/s", *cells, f"{compared[phase]:.2f}x"])
    peaks = [f"{side.peak_mib:.0f}" for side in sides]
    kind = "GPU tensors" if ours.device_peaks_mib else "resident"
    rows.append([f"peak {kind}, MiB", *peaks, f"{compared['memory']:.2f}x"])
    rows.append(["tokens a completion", *(f"{side.mean_length:.1f}" for side in sides), ""])
    rows.append(["measured steps", *(str(len(side.steps)) for side in sides), ""])
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as text: the first column left-aligned, all others right-aligned."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)


def _seconds(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"
