"""The report's charts: which metrics stand together, and how. Drawn in the browser by plotly."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.run.metrics import accuracy_of, kind_of
from assay.run.summary import Summary

Row = Mapping[str, Any]
Trace = dict[str, Any]

_MAX_POINTS = 1000
_SMOOTH_FROM = 40
_PASS, _FAIL, _OTHER = "pass", "fail", "other"
_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_MAX_FAMILIES = 8
_MAX_LABEL = 40


@dataclass(frozen=True)
class Chart:
    """One figure. Colors are names that the page resolves for its light and its dark scheme."""

    title: str
    note: str
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict[str, Any])
    wide: bool = False


@dataclass(frozen=True)
class _Lines:
    """A figure of plain lines: metric keys to their labels; absent metrics are left out."""

    title: str
    note: str
    labels: Mapping[str, str]
    unit: str = ""
    share: bool = False


_AFTER_REWARD = (
    _Lines(
        "Implicit reward",
        "What the policy itself says of chosen and rejected completions, and how far they are apart.",
        {
            "preference/reward_chosen": "chosen",
            "preference/reward_rejected": "rejected",
            "preference/margin": "margin",
        },
    ),
    _Lines(
        "Preference accuracy",
        "Pairs that the policy ranks right, and pairs of which both completions became less likely.",
        {"preference/accuracy": "ranked right", "preference/both_fall": "both fell"},
        share=True,
    ),
    _Lines(
        "Log-probability since the start",
        "Nats a token. Where both fall, the margin is won by making something else likely.",
        {
            "preference/change_chosen_token": "chosen",
            "preference/change_rejected_token": "rejected",
        },
        "nats/token",
    ),
    _Lines(
        "KL to the reference",
        "Nats a token: how far the policy has moved from where it started.",
        {"kl/mean": "all tokens", "kl/think": "reasoning", "kl/answer": "answer"},
        "nats/token",
    ),
    _Lines(
        "Entropy",
        "Nats a token. Falling is learning; at zero there is nothing left to explore.",
        {"entropy/mean": "entropy"},
        "nats/token",
    ),
    _Lines(
        "Completion length",
        "Tokens a completion.",
        {"length/mean": "mean", "length/p95": "95th percentile", "length/think": "reasoning, mean"},
        "tokens",
    ),
    _Lines(
        "Truncated and not judged",
        "Completions that ran into their limit, and those that no verifier could judge.",
        {"length/truncated": "truncated", "verdict/not_judged_share": "not judged"},
        share=True,
    ),
    _Lines(
        "Loss",
        "Of one step's batch. Under policy gradients it says little about progress.",
        {"loss/nll": "negative log-likelihood", "loss/total": "total", "loss/kl": "KL term"},
    ),
    _Lines(
        "Scores of pairs",
        "Mean score of the chosen and of the rejected completions that a step learned from.",
        {"scores/chosen": "chosen", "scores/rejected": "rejected"},
    ),
    _Lines(
        "Predicted probability",
        "Mean over what is right and over what is wrong, of the rows that a step learned from.",
        {"scores/right": "right", "scores/wrong": "wrong"},
        share=True,
    ),
    _Lines(
        "Critic",
        "Share of the returns' variance that its values explain: 1 foresees all, 0 no more than a constant, below 0 less.",
        {"critic/explained_variance": "explained variance"},
    ),
    _Lines(
        "KL of an update",
        "Nats a token, of the policy before the update to the one after it, or as last met in it.",
        {"kl/old": "estimated", "trust_region/kl": "of a natural step, exact"},
        "nats/token",
    ),
    _Lines("Gradient norm", "Before clipping.", {"optimizer/grad_norm": "norm"}),
    _Lines(
        "Clipping",
        "Share of tokens whose ratio left the clip range.",
        {"loss/clip_fraction": "clipped"},
        share=True,
    ),
    _Lines(
        "Generator against learner",
        "Difference of the two log-probabilities of a sampled token, in nats.",
        {"mismatch/mean": "mean", "mismatch/p99": "99th percentile"},
        "nats",
    ),
)


def make_charts(summary: Summary) -> list[Chart]:
    """Return the charts for which this run has data."""
    rows = _thin(summary.metrics)
    charts = [
        _accuracy(summary.evaluations),
        _reliability(summary.evaluations),
        _lines(summary.evaluations, _CALIBRATION),
        _reward(rows),
        _groups(rows),
        *(_lines(rows, one) for one in _AFTER_REWARD),
        _families(rows),
        _throughput(rows),
        _phases(rows),
    ]
    return [chart for chart in charts if chart is not None]


def _accuracy(evaluations: Sequence[Row]) -> Chart | None:
    kinds: dict[str, list[Row]] = {}
    for row in evaluations:
        if accuracy_of(row) is not None:
            kinds.setdefault(kind_of(row), []).append(row)
    traces: list[Trace] = []
    for (kind, rows), color in zip(kinds.items(), _COLORS, strict=False):
        errors = {"type": "data", "array": [row.get("eval/stderr") for row in rows]}
        trace = _line(
            kind, [row["step"] for row in rows], [accuracy_of(row) for row in rows], color
        )
        trace |= {"mode": "lines+markers", "marker": {"size": 7, "color": color}}
        traces.append(trace | {"error_y": {**errors, "thickness": 1.3, "width": 4, "color": color}})
    if not traces:
        return None
    what = "problems answered correctly" if "eval/kind" not in rows[0] else f"{kind} told right"
    note = f"Share of held-out {what}, ± one standard error."
    return Chart("Held-out accuracy", note, traces, _share_axis(), wide=True)


_CALIBRATION = _Lines(
    "Calibration",
    "Of the held-out probabilities, 0 is best: how far they are from the share that came true, and their squared error.",
    {
        "eval/ece": "calibration error, equal widths",
        "eval/adaptive_ece": "calibration error, equal counts",
        "eval/brier": "Brier score",
    },
)


def _reliability(evaluations: Sequence[Row]) -> Chart | None:
    """Return predicted probability against the share that came true, at the first and last look."""
    rows = [row for row in evaluations if row.get("eval/reliability")]
    if not rows:
        return None
    exact = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "hoverinfo": "skip"}
    line = {"width": 1, "dash": "dot", "color": _OTHER}
    traces: list[Trace] = [{**exact, "name": "exact", "line": line}]
    shown = [("before", rows[0], "c2"), ("after", rows[-1], "c1")]
    for name, row, color in shown[-1:] if len(rows) == 1 else shown:
        counts, predicted, observed = zip(*row["eval/reliability"], strict=True)
        sizes = [float(f"{4 + 14 * (count / max(counts)) ** 0.5:.3g}") for count in counts]
        trace = _line(f"{name}, step {row['step']}", [], observed, color)
        trace |= {"x": _rounded(predicted), "mode": "lines+markers", "customdata": list(counts)}
        trace["marker"] = {"size": sizes, "color": color}
        trace["hovertemplate"] = "%{y:.1%} of %{customdata:,d} came true"
        traces.append(trace)
    note = "Predicted probability against the share that came true, in 15 bins; larger marks hold more predictions."
    xaxis = {"title": {"text": "predicted"}, "range": [0, 1], "tickformat": ".0%"}
    xaxis["unifiedhovertitle"] = {"text": "predicted %{x:.1%}"}
    yaxis = {"title": {"text": "came true"}, "range": [0, 1], "tickformat": ".0%"}
    return Chart("Reliability", note, traces, {"xaxis": xaxis, "yaxis": yaxis})


def _reward(rows: Sequence[Row]) -> Chart | None:
    apart = ("reward/mean", "reward/std", "reward/per_token")
    parts = sorted({key for row in rows for key in row if key.startswith("reward/")} - {*apart})
    labels = {"reward/mean": "reward", **{key: key.removeprefix("reward/") for key in parts}}
    if len(parts) == 1:
        labels = {"reward/mean": "reward"}
    note = "What the optimizer sees, and the parts that it is the weighted sum of."
    return _lines(rows, _Lines("Reward", note, labels))


def _groups(rows: Sequence[Row]) -> Chart | None:
    kinds = (
        ("all_pass", "all pass", _PASS),
        ("mixed", "mixed", "c1"),
        ("all_fail", "all fail", _FAIL),
    )
    note = "Where siblings are compared, only mixed groups teach correctness: where all pass or fail there is nothing to compare."
    keys = [(f"group/{kind}", label, color) for kind, label, color in kinds]
    traces = _stack(rows, keys)
    return Chart("Groups", note, traces, _share_axis()) if traces else None


def _families(rows: Sequence[Row]) -> Chart | None:
    counts: dict[str, int] = {}
    for row in rows:
        for key in row:
            if key.startswith("family/"):
                counts[key] = counts.get(key, 0) + 1
    most = sorted(counts, key=lambda key: (-counts[key], key))[:_MAX_FAMILIES]
    if len(most) < 2:
        return None
    labels = {key: key.removeprefix("family/") for key in sorted(most)}
    return _lines(
        rows, _Lines("Reward by family", "Mean reward of the problems with each tag.", labels)
    )


def _throughput(rows: Sequence[Row]) -> Chart | None:
    keys = sorted({key for row in rows for key in row if key.startswith("speed/")} - {"speed/step"})
    labels = {"speed/step": "whole step", **{key: key.removeprefix("speed/") for key in keys}}
    note = "Completion tokens a second, by phase, on a logarithmic scale."
    chart = _lines(rows, _Lines("Throughput", note, labels, "tokens/s"))
    if chart is not None:
        shown = [value for trace in chart.traces for value in trace["y"] if value]
        ticks = _log_ticks(min(shown), max(shown))
        chart.layout["yaxis"] |= {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [_si(t) for t in ticks],
        }
    return chart


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers around a range, 1-2-5 where there is room for them."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [digit * 10.0**power for power in powers for digit in digits]


def _si(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _phases(rows: Sequence[Row]) -> Chart | None:
    apart = {"time/step", "time/elapsed", "time/evaluate", "time/checkpoint"}
    keys = sorted({key for row in rows for key in row if key.startswith("time/")} - apart)
    if not keys:
        return None
    with_rest = [{**row, "rest": _rest(row, keys)} for row in rows]
    named = [
        (key, key.removeprefix("time/"), color) for key, color in zip(keys, _COLORS, strict=False)
    ]
    traces = _stack(with_rest, [*named, ("rest", "rest", _OTHER)])
    return Chart("Where a step's time goes", "Seconds a step, by phase.", traces, _axis("s"))


def _rest(row: Row, keys: Sequence[str]) -> float:
    return max(0.0, (row.get("time/step") or 0.0) - sum(row.get(key) or 0.0 for key in keys))


def _lines(rows: Sequence[Row], chart: _Lines) -> Chart | None:
    present = [key for key in chart.labels if any(row.get(key) is not None for row in rows)]
    traces: list[Trace] = []
    for key, color in zip(present, _COLORS, strict=False):
        steps, values = _values(rows, key)
        traces += _smoothed(chart.labels[key], steps, values, color)
    if not traces:
        return None
    layout = _share_axis() if chart.share else _axis(chart.unit)
    return Chart(chart.title, chart.note, traces, layout)


def _values(rows: Sequence[Row], key: str) -> tuple[list[int], np.ndarray]:
    pairs = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    return [step for step, _ in pairs], np.array([value for _, value in pairs], float)


def _smoothed(name: str, steps: list[int], values: np.ndarray, color: str) -> list[Trace]:
    """One line, or with many steps a faint one of the values and a strong one of their average."""
    if len(steps) < _SMOOTH_FROM:
        return [_line(name, steps, values, color)]
    faint = _line(name, steps, values, color)
    faint |= {"opacity": 0.28, "showlegend": False, "hoverinfo": "skip", "legendgroup": name}
    faint["line"] = {"width": 1, "color": color}
    strong = _line(name, steps, smooth(values), color) | {"legendgroup": name}
    strong |= {"customdata": _rounded(values), "hovertemplate": "%{customdata:.4~g}"}
    return [faint, strong]


def _stack(rows: Sequence[Row], keys: Sequence[tuple[str, str, str]]) -> list[Trace]:
    traces: list[Trace] = []
    steps = [row["step"] for row in rows if any(row.get(key) is not None for key, _, _ in keys)]
    for key, name, color in keys:
        values = np.array([row.get(key) or 0.0 for row in rows if row["step"] in set(steps)])
        if not values.any():
            continue
        shown = smooth(values) if len(steps) >= _SMOOTH_FROM else values
        trace = _line(name, steps, shown, color)
        trace |= {
            "stackgroup": "one",
            "fillcolor": f"{color}-fill",
            "line": {"width": 1, "color": color},
        }
        traces.append(trace)
    return traces


def _line(name: str, steps: Sequence[int], values: Any, color: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(steps) == 1 else "lines",
        "name": _label(name),
        "x": list(steps),
        "y": _rounded(values),
        "line": {"width": 2, "color": color},
        "hovertemplate": "%{y:.4~g}",
    }


def _label(name: str) -> str:
    """A name as plotly shows it literally: it would read tags and TeX in names of parts and tags."""
    name = name if len(name) <= _MAX_LABEL else f"{name[:_MAX_LABEL]}…"
    return html.escape(name, quote=False).replace("$", "\N{FULLWIDTH DOLLAR SIGN}")


def smooth(values: np.ndarray) -> np.ndarray:
    """Return the centered moving average over about a fifteenth of the run (Gaussian weights)."""
    width = max(1.0, len(values) / 45)
    reach = int(3 * width)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    total = np.convolve(values, weights, mode="same")
    return total / np.convolve(np.ones_like(values), weights, mode="same")


def _thin(rows: Sequence[Row]) -> list[Row]:
    """Return at most so many rows: of a long run the means over equal stretches."""
    size = -(-len(rows) // _MAX_POINTS)
    if size <= 1:
        return list(rows)
    return [_mean_row(rows[first : first + size]) for first in range(0, len(rows), size)]


def _mean_row(rows: Sequence[Row]) -> Row:
    keys = {key for row in rows for key in row}
    kept = {key: [row[key] for row in rows if row.get(key) is not None] for key in keys}
    means = {key: float(np.mean(values)) for key, values in kept.items() if values}
    return {**means, "step": rows[-1]["step"]}


def _rounded(values: Any) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in values]


def _axis(unit: str) -> dict[str, Any]:
    return {"yaxis": {"title": {"text": unit}, "rangemode": "tozero", "exponentformat": "power"}}


def _share_axis() -> dict[str, Any]:
    return {"yaxis": {"tickformat": ".1~%", "rangemode": "tozero"}}
