"""Charts of the results of ``assay run behaviors`` and ``assay run calibration``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.report.charts import Chart

FOLDER, RATES, COMPLETIONS = "behaviors", "rates.json", "completions.jsonl"
"""Folder and files of ``assay run behaviors`` in a run directory."""
CALIBRATION = "calibration.json"
"""File of ``assay run calibration`` in `FOLDER`."""
TRAINING = "training"
"""Source name of the training rollouts. All other sources are kinds of evaluations."""

_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_SIDES = ("passed", "failed")
_MONITOR = ("exploit", "policy_violation", "disagreement")


def behavior_charts(run: Path) -> list[Chart]:
    """Return charts of behaviors in passed and failed rollouts, and of the trace monitor.

    A missing or damaged file yields no charts.
    """
    steps: Sequence[Mapping[str, Any]] = ()
    # A report must not fail because of a damaged optional file.
    with suppress(OSError, ValueError, KeyError, TypeError):
        steps = json.loads((run / FOLDER / RATES).read_text(encoding="utf-8"))["steps"]
    charts: list[Chart] = []
    for side in (*_SIDES, "all"):
        with suppress(KeyError, TypeError, ValueError):
            rows = [
                row
                for row in steps
                if row["side"] == side and row["source"] == TRAINING and row["completions"]
            ]
            if not rows:
                continue
            findings = [name for name in rows[0]["shares"] if name in _MONITOR]
            if side == "all":
                note = (
                    "Share of the completions with each finding in the trace, with 95 % intervals."
                )
                chart = _chart(rows, findings, "Trace monitor", note)
            else:
                names = [name for name in rows[0]["shares"] if name not in _MONITOR]
                note = f"Share of the {side} completions with each behavior, with 95 % intervals."
                chart = _chart(rows, names, f"Behaviors, {side}", note)
            charts += [chart] if chart.traces else []
    return charts


def _chart(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str, note: str) -> Chart:
    steps = [int(row["first_step"]) for row in rows]
    traces: list[dict[str, Any]] = []
    for name, color in zip(names, _COLORS, strict=False):
        shares = [float(row["shares"][name]) for row in rows]
        # A behavior that never occurs would use up one of the eight colors for a line at 0.
        if not any(shares):
            continue
        ends = [row["intervals"][name] for row in rows]
        errors = {"type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": color}
        errors["array"] = [
            round(high - share, 5) for share, (_, high) in zip(shares, ends, strict=True)
        ]
        errors["arrayminus"] = [
            round(share - low, 5) for share, (low, _) in zip(shares, ends, strict=True)
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(steps) < 3 else "lines",
                "name": name.replace("_", " "),
                "x": steps,
                "y": [round(share, 5) for share in shares],
                "error_y": errors,
                "line": {"width": 2, "color": color},
                "hovertemplate": "%{y:.1%}",
            }
        )
    return Chart(title, note, share=True).with_traces(traces)


def calibration_charts(run: Path) -> list[Chart]:
    """Return the charts of ``assay run calibration``: reliability, pass@k and diversity.

    A missing or damaged file yields no charts.
    """
    charts: list[Chart] = []
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((run / FOLDER / CALIBRATION).read_text(encoding="utf-8"))
        charts = [_reliability(found["confidences"]), *_diversity(found["diversity"])]
    return [chart for chart in charts if chart.traces]


def _reliability(confidences: Sequence[Mapping[str, Any]]) -> Chart:
    exact = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "hoverinfo": "skip"}
    traces: list[dict[str, Any]] = []
    for one, color in zip((c for c in confidences if c["when"] == "all"), _COLORS, strict=False):
        counts, predicted, observed = zip(*one["reliability"], strict=True)
        # The area of a mark, not its diameter, is proportional to the count.
        sizes = [round(4 + 14 * (count / max(counts)) ** 0.5, 2) for count in counts]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": str(one["name"]).replace("_", " "),
                "x": [round(value, 5) for value in predicted],
                "y": [round(value, 5) for value in observed],
                "marker": {"size": sizes, "color": color},
                "line": {"width": 2, "color": color},
                "customdata": list(counts),
                "hovertemplate": "%{y:.1%} of %{customdata:,d} were right",
            }
        )
    line = {"width": 1, "dash": "dot", "color": "other"}
    note = "Confidence and share of right completions in each bin. Larger marks: more completions."
    axis = {"range": [0, 1], "tickformat": ".0%"}
    layout = {
        "xaxis": {"title": {"text": "confidence"}, **axis},
        "yaxis": {"title": {"text": "right"}, **axis},
    }
    traces = [{**exact, "name": "exact", "line": line}, *traces] if traces else []
    return Chart("Reliability of the answers", note, traces=traces, layout=layout)


def _diversity(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    steps = [int(row["step"]) for row in rows]
    ks = sorted({int(k) for row in rows for k in row["pass_at"]})
    # A step with smaller groups has no pass@k for the larger k, so these lines would have gaps.
    shown = [k for k in ks if all(str(k) in row["pass_at"] for row in rows)]
    passes = [
        _line(f"pass@{k}", steps, [row["pass_at"][str(k)] for row in rows], color)
        for k, color in zip(shown, _COLORS, strict=False)
    ]
    kinds = {"answers": "distinct answers", "solutions": "distinct solutions"}
    counts = [
        _line(name, steps, [row[key] for row in rows], color)
        for (key, name), color in zip(kinds.items(), _COLORS, strict=False)
    ]
    note = (
        "Probability that at least one of k completions of a problem passes. If only pass@1 rises,"
        " the policy becomes more certain, but it solves no new problems."
    )
    more = "Mean number in a group. A solution is identified by the sequence of numbers in it."
    return [
        Chart("pass@k", note, share=True).with_traces(passes),
        Chart("Diversity", more, unit="in a group").with_traces(counts),
    ]


def _line(
    name: str, steps: Sequence[int], values: Sequence[float | None], color: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(steps) < 3 else "lines",
        "name": name,
        "x": list(steps),
        "y": [None if value is None else round(value, 5) for value in values],
        "line": {"width": 2, "color": color},
        "hovertemplate": "%{y:.4~g}",
    }
