"""Charts of the report and the viewer. ``template/charts.toml`` lists them, and
``template/charts.js`` draws them in the browser.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Protocol

import numpy as np

from assay.run.evaluations import Row, accuracy_of, by_kind, of_deciding_kind, on_canaries
from assay.run.intervals import shown_range

Drawn = dict[str, Any]

# A chart is about 500 pixels wide, so more points only make the file larger.
_MAX_POINTS = 1000
# A moving average over a fifteenth of a shorter run would cover fewer than three steps.
_SMOOTH_FROM = 40
# More than eight colors are hard to tell apart, so a chart has at most eight lines.
_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_MAX_FAMILIES = 8
_MAX_LABEL = 40
MARKED = ("guard_note", "guard_pause", "guard_stop", "resumed", "rolled_back")
"""Kinds of events that are marked on the curves."""
RELIABILITY = "reliability"
"""Chart of predicted against observed shares: its horizontal axis shows no steps."""


@dataclass(frozen=True)
class Chart:
    """One chart of the report.

    labels: trace labels by metric key. colors: names of the colors of stacked shares. share:
    whether all values are fractions in 0..1. of: file whose rows the chart shows, ``metrics`` or
    ``evaluations``. canaries: whether the chart shows the evaluations on canaries, or all others.
    draw: key of `_DRAWN`. traces: lines of the chart, as `line` returns them. log: whether the
    vertical axis is logarithmic.
    """

    title: str
    note: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    colors: Sequence[str] = ()
    unit: str = ""
    share: bool = False
    of: str = "metrics"
    canaries: bool = False
    draw: str = "lines"
    traces: Sequence[Drawn] = ()
    log: bool = False
    wide: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the values that ``charts.js`` draws."""
        return {
            "title": self.title,
            "note": self.note,
            "share": self.share,
            "unit": self.unit,
            "log": self.log,
            "plain": self.draw == RELIABILITY,
            "wide": self.wide,
            "traces": list(self.traces),
        }


class ChartSource(Protocol):
    """Object with the records that charts show, such as `LoadedRun`."""

    @property
    def metrics(self) -> Sequence[Row]: ...
    @property
    def evaluations(self) -> Sequence[Row]: ...


def make_charts(summary: ChartSource) -> list[Chart]:
    """Build all charts of ``charts.toml`` for which the run has data."""
    text = (resources.files("assay.report") / "template" / "charts.toml").read_text(
        encoding="utf-8"
    )
    rows = {"metrics": _thin(summary.metrics), "evaluations": summary.evaluations}
    charts: list[Chart] = []
    for listed in tomllib.loads(text)["chart"]:
        chart = Chart(**listed)
        charts.append(_DRAWN[chart.draw](rows[chart.of], chart))
    return [chart for chart in charts if chart.traces]


def marks(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return step, kind and text of the events that are marked on the curves."""
    return [
        {
            "step": event.get("step") or 0,
            "kind": event["kind"],
            "text": str(event.get("reason") or event["kind"].replace("_", " ")),
        }
        for event in events
        if event.get("kind") in MARKED
    ]


def _lines(rows: Sequence[Row], chart: Chart) -> Chart:
    present = [key for key in chart.labels if any(row.get(key) is not None for row in rows)]
    traces: list[Drawn] = []
    for key, color in zip(present, _COLORS, strict=False):
        pairs = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        steps, values = zip(*pairs, strict=True)
        traces += _smoothed(chart.labels[key], steps, np.array(values, float), color)
    return replace(chart, traces=traces)


def _accuracy(rows: Sequence[Row], chart: Chart) -> Chart:
    traces: list[Drawn] = []
    what = "problems answered correctly"
    kinds = by_kind([row for row in rows if on_canaries(row) == chart.canaries])
    for (kind, of_kind), color in zip(kinds.items(), _COLORS, strict=False):
        shares = [accuracy_of(row) or 0.0 for row in of_kind]
        pairs = list(zip(shares, map(shown_range, of_kind), strict=True))
        # Score intervals are not symmetric about the accuracy.
        above = _rounded(ends and ends[1] - share for share, ends in pairs)
        below = _rounded(ends and share - ends[0] for share, ends in pairs)
        steps = [row["step"] for row in of_kind]
        trace = line(kind, steps, map(accuracy_of, of_kind), color)
        traces.append(trace | {"marks": True, "above": above, "below": below})
        what = (
            f"{kind} classified correctly"
            if "eval/kind" in of_kind[0] and not chart.canaries
            else "problems answered correctly"
        )
    return replace(chart, note=chart.note.format(what), share=True, wide=True, traces=traces)


def _reliability(rows: Sequence[Row], chart: Chart) -> Chart:
    """Plot predicted probability against observed frequency, for the first and last evaluation."""
    rows = [row for row in rows if row.get("eval/reliability")]
    if not rows:
        return chart
    traces: list[Drawn] = []
    shown = [("before", rows[0], "c2"), ("after", rows[-1], "c1")]
    for name, row, color in shown[-1:] if len(rows) == 1 else shown:
        traces.append(
            reliability_line(f"{name}, step {row['step']}", row["eval/reliability"], color)
        )
    return replace(chart, traces=[DIAGONAL, *traces])


def _reward(rows: Sequence[Row], chart: Chart) -> Chart:
    apart = {"reward/mean", "reward/std", "reward/per_token"}
    parts = _labels(rows, "reward/", apart)
    # A single reward component equals the reward up to a factor, so its line would add nothing.
    labels = {"reward/mean": "reward", **(parts if len(parts) != 1 else {})}
    return _lines(rows, replace(chart, labels=labels))


def _shares(rows: Sequence[Row], chart: Chart) -> Chart:
    named = zip(chart.labels.items(), chart.colors, strict=True)
    return replace(chart, traces=_stack(rows, [(*label, color) for label, color in named]))


def _families(rows: Sequence[Row], chart: Chart) -> Chart:
    counts = Counter(key for row in rows for key in row if key.startswith("family/"))
    most = sorted(counts, key=lambda key: (-counts[key], key))[:_MAX_FAMILIES]
    if len(most) < 2:
        return chart
    labels = {key: key.removeprefix("family/") for key in sorted(most)}
    return _lines(rows, replace(chart, labels=labels))


def _parts(rows: Sequence[Row], chart: Chart) -> Chart:
    keys = sorted({key for row in rows for key in row if key.startswith("mixture/")})
    labels = {
        key: key.removeprefix("mixture/").removesuffix(".passed")
        for key in keys
        if key.endswith(".passed")
    }
    return _lines(rows, replace(chart, labels=labels))


def _held_out_parts(rows: Sequence[Row], chart: Chart) -> Chart:
    """Plot the held-out accuracy for each tag."""
    # Lines for each tag and each kind of evaluation would need too many colors.
    of_kind = of_deciding_kind(rows)
    if chart.canaries:
        of_kind = [row for row in rows if on_canaries(row)]
    flat = [{"step": row["step"], **(row.get("eval/by_tag") or {})} for row in of_kind]
    counts = Counter(tag for row in flat for tag in row if tag != "step")
    most = sorted(counts, key=lambda tag: (-counts[tag], tag))[:_MAX_FAMILIES]
    if len(most) < 2:
        return chart
    return _lines(flat, replace(chart, labels={tag: tag for tag in sorted(most)}))


def _throughput(rows: Sequence[Row], chart: Chart) -> Chart:
    phases = _labels(rows, "speed/", {"speed/step"})
    return _lines(rows, replace(chart, labels={"speed/step": "whole step", **phases}, log=True))


def _phases(rows: Sequence[Row], chart: Chart) -> Chart:
    apart = {"time/step", "time/elapsed", "time/evaluate"}
    phases = _labels(rows, "time/", apart)
    if not phases:
        return chart

    def rest(row: Row) -> float:
        return max(0.0, (row.get("time/step") or 0.0) - sum(row.get(key) or 0.0 for key in phases))

    named = [(*phase, color) for phase, color in zip(phases.items(), _COLORS, strict=False)]
    with_rest = [{**row, "rest": rest(row)} for row in rows]
    return replace(chart, traces=_stack(with_rest, [*named, ("rest", "rest", "other")]))


_DRAWN = {
    "lines": _lines,
    "accuracy": _accuracy,
    RELIABILITY: _reliability,
    "reward": _reward,
    "shares": _shares,
    "families": _families,
    "parts": _parts,
    "held_out_parts": _held_out_parts,
    "throughput": _throughput,
    "phases": _phases,
}


def _labels(rows: Sequence[Row], prefix: str, apart: set[str]) -> dict[str, str]:
    """Map each metric with a prefix to its name without the prefix, except those in ``apart``."""
    keys = sorted({key for row in rows for key in row if key.startswith(prefix)} - apart)
    return {key: key.removeprefix(prefix) for key in keys}


def _smoothed(name: str, steps: Sequence[int], values: np.ndarray, color: str) -> list[Drawn]:
    """Draw one metric. For many steps, draw a faint line of values and a strong moving average."""
    single = line(name, steps, values, color)
    if len(steps) < _SMOOTH_FROM:
        return [single]
    # The text at the pointer shows the measured value, not the moving average.
    strong = line(name, steps, smooth(values), color) | {"measured": single["y"]}
    return [single | {"faint": True}, strong]


def _stack(rows: Sequence[Row], keys: Sequence[tuple[str, str, str]]) -> list[Drawn]:
    rows = [row for row in rows if any(row.get(key) is not None for key, _, _ in keys)]
    traces: list[Drawn] = []
    # In a stack, faint lines of single steps would overlap, so only the averages are drawn.
    for key, name, color in keys:
        values = np.array([row.get(key) or 0.0 for row in rows])
        if values.any():
            shown = smooth(values) if len(rows) >= _SMOOTH_FROM else values
            trace = line(name, [row["step"] for row in rows], shown, color)
            traces.append(trace | {"stacked": True})
    return traces


def line(name: str, steps: Sequence[float], values: Iterable[Any], color: str) -> Drawn:
    """Return one line of a chart.

    Other keys change how the line is drawn. ``faint``: thin, without text. ``stacked``: on top of
    the lines before it. ``marks``: a mark at every point, with the diameters in ``sizes``.
    ``above`` and ``below``: lengths of error bars. ``measured``: values to show as text in place of
    ``y``. ``counts``: number of observations of each point. ``dotted``: a dotted line.
    """
    name = name if len(name) <= _MAX_LABEL else f"{name[:_MAX_LABEL]}…"
    return {"name": name, "x": list(steps), "y": _rounded(values), "color": color}


def reliability_line(name: str, bins: Iterable[Sequence[float]], color: str) -> Drawn:
    """Return a line of observed shares against predicted shares, with a mark for each bin.

    bins: (number of predictions, mean predicted share, observed share) of each bin.
    """
    counts, predicted, observed = zip(*bins, strict=True)
    # The area of a mark, not its diameter, is proportional to the count.
    sizes = [float(f"{4 + 14 * (count / max(counts)) ** 0.5:.3g}") for count in counts]
    trace = line(name, [round(share, 5) for share in predicted], observed, color)
    return trace | {"marks": True, "sizes": sizes, "counts": list(counts)}


def smooth(values: np.ndarray) -> np.ndarray:
    """Compute a centered moving average with Gaussian weights, over about 1/15 of the run.

    values: at least `_SMOOTH_FROM` values.
    """
    width = max(1.0, len(values) / 45)
    reach = int(3 * width)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    # numpy.convolve with mode "same" returns the length of its longer argument.
    # So the weights must not be longer than the values.
    total = np.convolve(values, weights, mode="same")
    # Near the ends of the run, some weights of the average fall outside of the run.
    # The weighted sum is therefore divided by the sum of the weights that are inside the run.
    return total / np.convolve(np.ones_like(values), weights, mode="same")


def _thin(rows: Sequence[Row]) -> Sequence[Row]:
    """Reduce a long run to at most `_MAX_POINTS` rows. Each row is the mean of several steps."""
    size = -(-len(rows) // _MAX_POINTS)
    if size <= 1:
        return rows
    thinned: list[Row] = []
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        keys = {key for row in part for key in row}
        kept = {key: [row[key] for row in part if row.get(key) is not None] for key in keys}
        means = {key: float(np.mean(values)) for key, values in kept.items() if values}
        thinned.append({**means, "step": part[-1]["step"]})
    return thinned


def _rounded(values: Iterable[Any]) -> list[float | None]:
    # Five digits suffice for a screen. Numbers with all 17 digits would triple the file size.
    rounded = (None if value is None else float(f"{value:.5g}") for value in values)
    # JSON has no infinite numbers, and one such value would disable the page's script.
    return [value if value is None or np.isfinite(value) else None for value in rounded]


DIAGONAL = {**line("exact", [0, 1], [0, 1], "other"), "dotted": True, "faint": True}
"""The line of a perfect calibration."""
