"""Accuracy gain of the demo over several seeds, with its spread and a figure.

    python -m bench.demo_seeds --seeds 0 1 2 --figure docs/demo.svg

One call gives the table of docs/results.md, and the table row and the figure of README.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.recipes.demo import demo
from assay.report.loaded import LoadedRun, load_run
from assay.run.evaluations import accuracy_of, by_kind

FIGURES = ("before", "after", "lift", "before_sampled", "after_sampled", "lift_sampled")
FIGURES += ("seconds", "processor_seconds")

Curve = Sequence[tuple[float, float]]


def processor_seconds() -> float:
    """Return the processor seconds of this process and of its finished children.

    Other processes on the machine hardly influence processor seconds.
    """
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Run the demo once per seed. Print one line of JSON for each, then mean and standard
    deviation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--directory", type=Path, default=None, help="keep the runs here")
    parser.add_argument("--figure", type=Path, default=None, help="write this SVG")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    runs: list[LoadedRun] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in arguments.seeds:
            folder = (arguments.directory or Path(scratch)) / f"seed-{seed}"
            before = processor_seconds()
            made = demo(folder, seed=seed, quiet=True)
            result = made.as_dict()
            result["processor_seconds"] = processor_seconds() - before
            rows.append({"seed": seed, **{name: round(result[name], 4) for name in FIGURES}})
            runs.append(load_run(made.run))
            print(json.dumps(rows[-1]), flush=True)
    for name in FIGURES:
        values = [row[name] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:<16} {statistics.mean(values):8.3f} ± {spread:.3f}")
    if arguments.figure is not None:
        draw(runs, arguments.figure)


def heldout(run: LoadedRun, kind: str) -> Curve:
    """Return (step, accuracy) of a run's evaluations of one kind."""
    found = [(row["step"], accuracy_of(row)) for row in by_kind(list(run.evaluations))[kind]]
    return [(step, accuracy) for step, accuracy in found if accuracy is not None]


def per_step(run: LoadedRun, name: str) -> Curve:
    """Return (step, value) of a metric, for the steps with a value."""
    return [(row["step"], row[name]) for row in run.metrics if row.get(name) is not None]


def draw(runs: Sequence[LoadedRun], path: Path) -> None:
    """Write the figure with a line per seed: held-out accuracy, pass rate, and completion
    length."""
    from studies.page import COLORS, INK, band, drawn_as

    panels: Sequence[tuple[str, Sequence[tuple[str, list[Curve], int]]]] = [
        (
            "held-out accuracy",
            [(kind, [heldout(run, kind) for run in runs], 1) for kind in HELDOUT],
        ),
        (
            "completions that passed",
            [("while training", [per_step(run, "verdict/passed") for run in runs], 5)],
        ),
        (
            "tokens per completion",
            [("while training", [per_step(run, LENGTH) for run in runs], 5)],
        ),
    ]
    with drawn_as(len(panels)) as (figure, axes):
        for axis, (title, lines) in zip(axes, panels, strict=True):
            for color, (label, curves, window) in zip(COLORS, lines, strict=False):
                for curve in curves:
                    points = [(x, mean) for x, mean, _ in band([curve], window)]
                    axis.plot(*zip(*points, strict=True), color=color, alpha=0.35, linewidth=0.8)
                middle = [(x, mean) for x, mean, _ in band(curves, window)]
                axis.plot(*zip(*middle, strict=True), color=color, label=label, linewidth=1.8)
            axis.set_title(title, fontsize=9, color=INK)
            axis.set_xlabel("step of GRPO")
            axis.legend(frameon=False, fontsize=8)
        axes[0].set_ylim(0, 1)
        axes[1].set_ylim(0, 1)
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})


HELDOUT = ("greedy", "temperature 1")
LENGTH = "length/mean"

if __name__ == "__main__":
    main()
