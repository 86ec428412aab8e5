r"""Draw the figure of a recipe's page from its run: accuracy after each stage, and metrics.

    python tools/recipe_figure.py runs/rlhf docs/recipes/rlhf.svg \
        "gold accuracy: ppo/verdict/passed, ppo_2/verdict/passed" \
        "learned reward: ppo/reward/reward_model, ppo_2/reward/reward_model"

The first panel shows the accuracy after each stage, with its standard error, as a line for each
source of held-out problems and each think mode. It uses the first of `evaluation.temperatures`;
``"kind=temperature 1"`` selects another one. Each further argument adds a panel with a title and
metrics, as ``STAGE/METRIC``, averaged over ten steps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.curation.output import ROWS
from assay.recipes.manifest import RecipeManifest
from assay.report.loaded import LoadedRun, load_run
from assay.run.evaluations import accuracy_of, kind_of, parts_of
from studies.page import COLORS, INK, drawn_as

WINDOW = 10
Points = dict[str, list[tuple[str, float, float]]]


def draw(
    runs: Mapping[str, LoadedRun], panels: Mapping[str, Sequence[str]], path: Path, kind: str = ""
) -> None:
    """Write the figure as SVG. Equal numbers give equal bytes."""
    with drawn_as(1 + len(panels)) as (figure, axes):
        _stages(axes[0], accuracies(runs, kind), kind)
        for axis, (title, curves) in zip(axes[1:], panels.items(), strict=True):
            for color, curve in zip(COLORS, curves, strict=False):
                stage, _, metric = curve.partition("/")
                values = runs[stage].metrics[metric]
                alone = len({one.partition("/")[0] for one in curves}) < len(curves)
                name = metric.rpartition("/")[2] if alone else stage
                axis.plot(*smoothed(values), color=color, label=name)
            axis.set_title(title, fontsize=9, color=INK)
            axis.set_xlabel("step")
            axis.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})


def accuracies(runs: Mapping[str, LoadedRun], kind: str = "") -> Points:
    """Return (stage, accuracy, standard error) after each stage, by source of problems."""
    found: Points = {}
    for stage, run in runs.items():
        rows = [one for one in run.evaluations if "eval/kind" not in one]
        rows = [one for one in rows if kind_of(one) == (kind or kind_of(rows[0]))]
        before = [(f"before {stage}", rows[0])] if rows and not found else []
        for name, row in [*before, *((stage, one) for one in rows[-1:])]:
            for source, part in by_source(run, row).items():
                share, error = accuracy_of(part), part.get("eval/stderr")
                if share is not None:
                    found.setdefault(source, []).append((name, share, error or 0.0))
    return found


def by_source(run: LoadedRun, row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the results of an evaluation by generator of the problems and think mode."""
    parts = parts_of(row)
    modes = {mode for _, mode in parts}
    named = {
        f"{_short(source)}, think {mode}" if len(modes) > 1 else _short(source): part
        for (source, mode), part in parts.items()
    }
    return named or {_short(", ".join(run.config.data.heldout)): row}


def smoothed(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """Return the steps, and for each step the mean over the last ten steps."""
    known = [(step, one) for step, one in enumerate(values, 1) if one is not None]
    means = [
        sum(one for _, one in known[max(0, n - WINDOW + 1) : n + 1]) / min(n + 1, WINDOW)
        for n in range(len(known))
    ]
    return [step for step, _ in known], means


def _stages(axis: Any, found: Points, kind: str) -> None:
    names = list(dict.fromkeys(name for points in found.values() for name, _, _ in points))
    for color, (source, points) in zip(COLORS, found.items(), strict=False):
        places = [names.index(name) for name, _, _ in points]
        shares, errors = [share for _, share, _ in points], [error for _, _, error in points]
        axis.errorbar(places, shares, errors, color=color, marker="o", capsize=3, label=source)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_ylim(0, 1)
    axis.set_title(", ".join(filter(None, ["held-out accuracy", kind])), fontsize=9, color=INK)
    if len(found) > 1:
        axis.legend(frameon=False)


def _short(source: str) -> str:
    """Return the tag of a source's problems, or the name of their generator."""
    if tag := re.search(r"[?&]tag=(\w+)", source):
        return tag[1]
    if Path(source).name == ROWS:  # of a data transform
        source = Path(source).parent.name
    return source.partition("?")[0].rpartition(":")[2].replace("_", " ")


def main(folder: str, path: str, *panels: str) -> None:
    """Draw the figure of a recipe's run directory."""
    manifest = RecipeManifest.read(Path(folder))
    places = {row.stage: manifest.place(row) for row in manifest.rows.values() if row.output}
    runs = {name: load_run(one) for name, one in places.items() if (one / "config.toml").is_file()}
    kind = next((one.removeprefix("kind=") for one in panels if one.startswith("kind=")), "")
    titles = (panel.partition(": ") for panel in panels if not panel.startswith("kind="))
    draw(runs, {title: curves.split(", ") for title, _, curves in titles}, Path(path), kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
