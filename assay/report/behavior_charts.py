"""Charts of the results of ``assay run behaviors`` and ``assay run calibration``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.report.charts import DIAGONAL, RELIABILITY, Chart, line, reliability_line

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
        above = [round(high - share, 5) for share, (_, high) in zip(shares, ends, strict=True)]
        below = [round(share - low, 5) for share, (low, _) in zip(shares, ends, strict=True)]
        drawn = line(name.replace("_", " "), steps, shares, color)
        traces.append(drawn | {"above": above, "below": below})
    return Chart(title, note, share=True, traces=traces)


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
    traces: list[dict[str, Any]] = []
    for one, color in zip((c for c in confidences if c["when"] == "all"), _COLORS, strict=False):
        name = str(one["name"]).replace("_", " ")
        traces.append(reliability_line(name, one["reliability"], color))
    note = "Confidence and share of right completions in each bin. Larger marks: more completions."
    shown = [DIAGONAL, *traces] if traces else []
    return Chart("Reliability of the answers", note, share=True, draw=RELIABILITY, traces=shown)


def _diversity(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    steps = [int(row["step"]) for row in rows]
    ks = sorted({int(k) for row in rows for k in row["pass_at"]})
    # A step with smaller groups has no pass@k for the larger k, so these lines would have gaps.
    shown = [k for k in ks if all(str(k) in row["pass_at"] for row in rows)]
    passes = [
        line(f"pass@{k}", steps, [row["pass_at"][str(k)] for row in rows], color)
        for k, color in zip(shown, _COLORS, strict=False)
    ]
    kinds = {"answers": "distinct answers", "solutions": "distinct solutions"}
    counts = [
        line(name, steps, [row[key] for row in rows], color)
        for (key, name), color in zip(kinds.items(), _COLORS, strict=False)
    ]
    note = (
        "Probability that at least one of k completions of a problem passes. If only pass@1 rises,"
        " the policy becomes more certain, but it solves no new problems."
    )
    more = "Mean number in a group. A solution is identified by the sequence of numbers in it."
    return [
        Chart("pass@k", note, share=True, traces=passes),
        Chart("Diversity", more, unit="in a group", traces=counts),
    ]
