"""README's figure comes from the runs of the table beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from assay.report.loaded import LoadedRun
from bench.demo_seeds import draw, heldout, per_step


def a_run(accuracy: float) -> LoadedRun:
    evaluations: list[dict[str, Any]] = [
        {"step": step, "eval/temperature": temperature, "eval/pass_at_1": accuracy * step / 2}
        for step in (0, 1, 2)
        for temperature in (0.0, 1.0)
    ]
    metrics = [
        {"step": step, "verdict/passed": accuracy, "length/mean": 20.0 + step} for step in (1, 2)
    ]
    return cast(LoadedRun, SimpleNamespace(evaluations=evaluations, metrics=metrics))


def test_the_figure_has_a_line_for_each_seed_and_their_mean(tmp_path: Path) -> None:
    runs = [a_run(0.5), a_run(0.7)]
    assert heldout(runs[0], "greedy") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert per_step(runs[1], "verdict/passed") == [(1, 0.7), (2, 0.7)]
    draw(runs, tmp_path / "demo.svg")
    drawn = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    assert drawn.count("opacity: 0.35") == 2 * 4  # two seeds in each of four series
    assert "held-out accuracy" in drawn and "temperature 1" in drawn
