"""The page of a study: verdicts on claims, figure, table, and method."""

from __future__ import annotations

import datetime
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from assay.run.seed_statistics import mean_and_error, three_digits
from studies.campaign import Panel, Study, outcomes_of, processes
from studies.claims import Finding, Outcomes, standing

Found = Mapping[str, Mapping[int, Mapping[str, Any]]]
Kind = Literal["first", "seeds", "rounding"]
ByName = dict[int, dict[str, float]]

# Heading of a run's figures, and how its paragraph on machines begins.
HEADINGS: Mapping[Kind, tuple[str, str]] = {
    "first": ("Figures", "The runs"),
    "seeds": ("Figures on other seeds", "The runs on other seeds"),
    "rounding": (
        "Figures of the second run",
        "The second run, on kernels that round differently",
    ),
}


@dataclass(frozen=True)
class Run:
    """One run of a study, as its page shows it.

    machines: description of the machines. kind: ``first``; ``seeds``, a run with other seeds, which
    must agree for a claim to be decided; ``rounding``, on pages from before 2026-11-24: a run with
    the first run's seeds and kernels that round differently. A ``rounding`` run counts only if
    there is no ``seeds`` run.
    """

    kind: Kind
    outcomes: Outcomes
    machines: str


def run_of(study: Study, kind: Kind, found: Found) -> Run:
    """Return the results of the runs, for the page."""
    return Run(kind, outcomes_of(found), _machines(study, kind, found))


# Mid-tones with enough contrast on white and on a dark page alike.
INK = "#7a8290"
COLORS = (
    *("#2f8fd8", "#d9742b", "#3d9a5f", "#b0569e", "#8c7a2e"),
    *("#c8474b", "#3fa7a0", "#7a6ad8", "#5f6873", "#a08a7c"),
)


def write_page(study: Study, runs: Sequence[Run], folder: Path, found: Found | None = None) -> Path:
    """Write ``NAME.md`` and return its path. With ``found``, also write the figure ``NAME.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    if study.panels and found is not None:
        draw(study, found, folder / f"{study.name}.svg")
    path = folder / f"{study.name}.md"
    path.write_text(page(study, runs), encoding="utf-8")
    return path


def add_run(study: Study, run: Run, folder: Path) -> Path:
    """Add a run to an existing page, in place of a run of the same kind. The figure does not
    change."""
    path = folder / f"{study.name}.md"
    known = read_runs(study, path.read_text(encoding="utf-8"))
    return write_page(study, [*(one for one in known if one.kind != run.kind), run], folder)


def read_runs(study: Study, text: str) -> list[Run]:
    """Read the runs from a page: the values of its columns, with three digits."""
    runs: list[Run] = []
    for kind, (heading, begin) in HEADINGS.items():
        if (start := text.find(f"\n## {heading}\n")) < 0:
            continue
        machines = re.search(rf"^{re.escape(begin)}: seeds ([\d, ]+);.*$", text, re.MULTILINE)
        assert machines, f"{study.name}: no paragraph that begins with {begin!r}"
        seeds = [int(one) for one in machines[1].split(",")]
        rows = [line for line in text[start:].split("\n\n")[1].splitlines() if line[0] == "|"]
        outcomes = {
            arm: _values(study, cells, seeds)
            for arm, *cells in ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:])
        }
        runs.append(Run(kind, outcomes, machines[0]))
    return runs


def _values(
    study: Study, cells: Sequence[str], seeds: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Read an arm's values by seed from its row of a table. Empty cells are skipped."""
    values: dict[int, dict[str, float]] = {seed: {} for seed in seeds}
    for name, cell in zip(study.columns, cells, strict=True):
        if each := re.search(r"\((.*)\)", cell):
            for seed, value in zip(seeds, each[1].split(", "), strict=True):
                values[seed][name] = float(value)
    return values


def page(study: Study, runs: Sequence[Run]) -> str:
    """Return the text of the page: the first run's figure, and the numbers of all runs."""
    parts = [f"# {study.title}", f"Source: {study.source}"]
    if study.reading:
        parts += ["## Summary", study.reading]
    parts += ["## Claims", verdicts(study, runs)]
    if study.panels:
        parts.append(f"![{study.title}]({study.name}.svg)")
        parts.append(_legend(study, len(next(iter(runs[0].outcomes.values())))))
    for run in runs:
        parts += [f"## {HEADINGS[run.kind][0]}", table(study, run.outcomes)]
    parts.append(
        "Each cell of the tables shows the mean ± standard error over seeds, and in parentheses the"
        " value of each seed."
    )
    parts += ["## Setup", study.setup, _arms(study), "## Criteria", _criteria(study)]
    parts += ["## Limits", study.limits, "## Runs", *(run.machines for run in runs)]
    parts.append(f"Date: {datetime.date.today().isoformat()}.")
    parts.append(f"To repeat the study: `python -m studies.{study.name}`.")
    return "\n\n".join(parts) + "\n"


SAYS: Mapping[Kind, str] = {
    "first": (
        "In parentheses, each difference or ratio has the 95 % interval of its mean over seeds"
        " (Student's t)."
    ),
    "seeds": (
        "*Other seeds* is a second run of the study with other seeds. A claim is decided if the"
        " first run and the run with other seeds agree."
    ),
    "rounding": (
        "The *second run* uses the seeds of the first run with kernels that round differently, so"
        " both runs share much of their random noise."
    ),
}
BEFORE: Mapping[Kind, str] = {
    "first": "first run: ",
    "seeds": "; other seeds: ",
    "rounding": "; second run: ",
}


def judged(study: Study, runs: Sequence[Run]) -> list[tuple[dict[Kind, Finding], str]]:
    """Return the findings of each claim by run, and its verdict.

    A ``rounding`` run counts only if there is no run with other seeds.
    """
    kinds = {run.kind for run in runs}
    left_out = "rounding" if "seeds" in kinds else None
    found: list[tuple[dict[Kind, Finding], str]] = []
    for claim in study.claims:
        findings = {run.kind: claim.test(run.outcomes) for run in runs}
        decisive = [one for kind, one in findings.items() if kind != left_out]
        found.append((findings, standing(decisive)))
    return found


def verdicts(study: Study, runs: Sequence[Run]) -> str:
    """Return a list of the claims, each with its verdict and the numbers of each run."""
    lines: list[str] = []
    for claim, (findings, together) in zip(study.claims, judged(study, runs), strict=True):
        numbers = "".join(BEFORE[kind] + finding.numbers for kind, finding in findings.items())
        lines.append(f"- {claim.says.removesuffix('.')}: **{together}**; {numbers}.")
    return "\n".join([*lines, "", " ".join(SAYS[run.kind] for run in runs)])


def table(study: Study, outcomes: Outcomes) -> str:
    """Return a table with a row per arm and a column per value: mean ± standard error (all
    seeds)."""
    lines = ["| arm | " + " | ".join(study.columns.values()) + " |"]
    lines.append("|---" * (1 + len(study.columns)) + "|")
    for arm, by_seed in outcomes.items():
        cells = [_cell([by_seed[seed].get(name) for seed in by_seed]) for name in study.columns]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean, error = mean_and_error(known)
    each = ", ".join(three_digits(value) for value in known)
    return f"{three_digits(mean)} ± {three_digits(error)} ({each})"


def _arms(study: Study) -> str:
    lines = [f"- *{arm.name}*: {arm.says}" for arm in study.arms]
    if not study.common:
        return "\n".join(["The arms:", "", *lines])
    shared = tomli_w.dumps(dict(study.common)).strip()
    settings = ["Settings of all arms:", "", "```toml", shared, "```"]
    return "\n".join(["The arms:", "", *lines, "", *settings])


RULE = (
    "These criteria were written in the code before the first run, unless *Limits* says otherwise."
    " Two arms (variants) are compared by the difference of their results with the same seed. All"
    " intervals are 95 % intervals of the mean over seeds. A claim is inconclusive if it is neither"
    " reproduced nor not reproduced by its criterion."
)


def _criteria(study: Study) -> str:
    lines: list[str] = []
    for claim in study.claims:
        criterion = claim.criterion
        for name, heading in study.columns.items():
            criterion = criterion.replace(f"`{name}`", heading)
        lines.append(f"- {claim.says.removesuffix('.')}: the study {criterion}.")
    return "\n".join([RULE, "", *lines])


def _legend(study: Study, num_seeds: int) -> str:
    windows = {panel.window for panel in study.panels if panel.window > 1 and not panel.is_value}
    smoothed = f", smoothed over {max(windows)} points" if windows else ""
    parts: list[str] = []
    if not all(panel.is_value for panel in study.panels):
        parts.append(
            f"Lines show means over {num_seeds} seeds{smoothed}; bands show ± one standard error."
        )
    if any(panel.is_value for panel in study.panels):
        parts.append(
            f"Bars show means over {num_seeds} seeds ± one standard error; dots show single seeds."
        )
    return " ".join(parts)


def _machines(study: Study, kind: Kind, found: Found) -> str:
    each = [one for by_seed in found.values() for one in by_seed.values()]
    cpu = sum(one["cpu_seconds"] for one in each)
    seeds = sorted({seed for by_seed in found.values() for seed in by_seed})
    count = len(processes(study)) * len(seeds)
    return (
        f"{HEADINGS[kind][1]}: seeds {', '.join(map(str, seeds))}; {count} processes of one thread"
        f" on {' and '.join(sorted({one['machine'] for one in each}))};"
        f" {cpu / count:.0f} CPU seconds each, {cpu / 60:.0f} CPU minutes in all."
    )


def draw(study: Study, found: Found, path: Path) -> None:
    """Write the figure as SVG, with a panel per curve and a color per arm. Equal numbers: equal
    bytes."""
    count = len(study.panels)
    with drawn_as(count) as (figure, axes):
        for axis, panel in zip(axes, study.panels, strict=True):
            _panel(axis, found, panel)
        handles, labels = _handles(axes)
        rows = 0
        if handles:
            columns = min(len(labels), 2 * count)
            figure.legend(handles, labels, loc="upper center", ncols=columns, frameon=False)
            rows = -(-len(labels) // columns)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.08 * rows))
        figure.savefig(path, transparent=True, metadata={"Date": None})


@contextmanager
def drawn_as(count: int) -> Generator[tuple[Any, Sequence[Any]]]:
    """Open a figure with a number of panels, in the style of the pages."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text: it can be read, searched and scaled
        "svg.hashsalt": "assay",
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(1, count, figsize=(3.4 * count, 3.2), squeeze=False)
        for axis in axes[0]:
            axis.grid(True, color=INK, alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
        yield figure, axes[0]
        pyplot.close(figure)


def _handles(axes: Any) -> tuple[list[Any], list[str]]:
    """Return the legend of the panel with the most arms."""
    found = [axis.get_legend_handles_labels() for axis in axes]
    return max(found, key=lambda one: len(one[1]))


def _panel(axis: Any, found: Found, panel: Panel) -> None:
    if panel.is_value:
        _bars(axis, found, panel)
    else:
        _curves(axis, found, panel)
        axis.set_xlabel(panel.x_label)
    axis.set_title(panel.label, fontsize=9, color=INK)


def _bars(axis: Any, found: Found, panel: Panel) -> None:
    """Draw a bar per arm, with its standard error and a dot per seed."""
    shown: list[tuple[str, str, list[float]]] = []
    for color, (arm, by_seed) in zip(COLORS, found.items(), strict=False):
        values = [one["values"].get(panel.curve) for one in by_seed.values()]
        known = [value for value in values if value is not None]
        if known:
            shown.append((arm, color, known))
    for place, (_, color, values) in enumerate(shown):
        mean, error = mean_and_error(values)
        axis.barh(place, mean, xerr=0.0 if error != error else error, color=color, alpha=0.6)
        axis.plot(values, [place] * len(values), "o", color=color, markersize=3)
    axis.set_yticks(range(len(shown)), [arm for arm, _, _ in shown])
    axis.invert_yaxis()


def _curves(axis: Any, found: Found, panel: Panel) -> None:
    for color, (arm, by_seed) in zip(COLORS, found.items(), strict=False):
        curves = [
            one["curves"][panel.curve] for one in by_seed.values() if panel.curve in one["curves"]
        ]
        points = band(curves, panel.window)
        if points:
            x, mean, error = zip(*points, strict=True)
            axis.plot(x, mean, color=color, label=arm, linewidth=1.5)
            low = [m - e for m, e in zip(mean, error, strict=True)]
            high = [m + e for m, e in zip(mean, error, strict=True)]
            axis.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def band(
    curves: Sequence[Sequence[Sequence[float]]], window: int
) -> list[tuple[float, float, float]]:
    """Return (x, mean, standard error) over curves, each averaged over the last ``window`` points.

    An x that any curve lacks is omitted. The error of a single curve is 0.
    """
    smooth = [_smoothed(curve, window) for curve in curves]
    shared = set.intersection(*(set(one) for one in smooth)) if smooth else set()
    found: list[tuple[float, float, float]] = []
    for x in sorted(shared):
        mean, error = mean_and_error([one[x] for one in smooth])
        found.append((x, mean, 0.0 if error != error else error))
    return found


def _smoothed(curve: Sequence[Sequence[float]], window: int) -> dict[float, float]:
    values = [y for _, y in curve]
    return {
        x: sum(values[max(0, n + 1 - window) : n + 1]) / len(values[max(0, n + 1 - window) : n + 1])
        for n, (x, _) in enumerate(curve)
    }
