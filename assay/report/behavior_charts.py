"""Charts of the behaviors that ``assay run behaviors`` found, from ``RUN/behaviors/rates.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.report.charts import Chart

FOLDER, RATES, COMPLETIONS = "behaviors", "rates.json", "completions.jsonl"
"""Files of ``assay run behaviors`` in a run's directory."""
TRAINING = "training"
"""Source of the completions that a run trained on. Other sources are kinds of evaluations."""

_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_SIDES = ("passed", "failed")
_MONITOR = ("exploit", "policy_violation", "disagreement")


def behavior_charts(run: Path) -> list[Chart]:
    """Return charts of the passed and the failed rollouts, and of the trace monitor, if any.

    A damaged file gives no chart, because the report must not depend on it.
    """
    steps: Sequence[Mapping[str, Any]] = ()
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
                note = f"Share of the {side} completions that show each, with 95 % intervals."
                chart = _chart(rows, names, f"Behaviors, {side}", note)
            charts += [chart] if chart.traces else []
    return charts


def _chart(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str, note: str) -> Chart:
    steps = [int(row["first_step"]) for row in rows]
    traces: list[dict[str, Any]] = []
    for name, color in zip(names, _COLORS, strict=False):
        shares = [float(row["shares"][name]) for row in rows]
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
