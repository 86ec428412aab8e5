"""The page of a ladder: tables, figure and JSON."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.host.files import write_atomic, write_json
from assay.host.terminal import aligned
from assay.run.seed_statistics import three_digits
from assay.sweep.fits import CurveFit, Estimate, Prediction
from assay.sweep.forest import INK

FIGURE = "ladder.svg"
POINTS = ("size", "weights", "step", "rollouts", "tokens", "FLOP", "accuracy")
FITS = ("size", "form", "parameters (95 % interval)", "rmse", "predicted", "measured", "error", "")
# Mid-tones with enough contrast on white and on a dark page alike.
COLORS = ("#2f8fd8", "#d9822b", "#3a9d5d", "#a367dc", "#c8507a")


@dataclass(frozen=True)
class ComputeBudget:
    """One point of a ladder: means over the seeds.

    tokens: sampled and trained tokens. flop: operations of sampling and updates. stderr: of the
    accuracy over seeds.
    """

    step: int
    rollouts: float
    tokens: float
    flop: float
    accuracy: float
    stderr: float


@dataclass(frozen=True)
class SizeCurve:
    """Budgets and fits of one model size. num_weights: weights that a token is multiplied with.

    start: accuracy before RL.
    """

    arm: str
    num_weights: int
    start: float
    budgets: Sequence[ComputeBudget]
    fits: Sequence[CurveFit]


@dataclass(frozen=True)
class LadderResult:
    """Result of a ladder. sizes: the smallest model first. across: prediction of the largest size
    at the largest budget from the smaller sizes; None for two sizes."""

    name: str
    folder: str
    seeds: Sequence[int]
    num_problems: int
    sizes: Sequence[SizeCurve]
    across: Prediction | None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return as_dict(self)

    def __str__(self) -> str:
        return as_text(self)


def as_dict(result: LadderResult) -> dict[str, Any]:
    """Return JSON values."""
    return {
        "ladder": result.name,
        "seeds": [*result.seeds],
        "num_problems": result.num_problems,
        "sizes": [
            {
                "arm": size.arm,
                "num_weights": size.num_weights,
                "start": size.start,
                "budgets": [asdict(one) for one in size.budgets],
                "fits": [
                    {
                        "form": one.form,
                        "parameters": {k: asdict(v) for k, v in one.parameters.items()},
                        "rmse": one.rmse,
                        "prediction": _prediction(one.prediction),
                    }
                    for one in size.fits
                ],
            }
            for size in result.sizes
        ],
        "across_sizes": None if result.across is None else _prediction(result.across),
    }


def _prediction(one: Prediction) -> dict[str, Any]:
    return {**asdict(one), "error": one.error, "is_inside": one.is_inside}


def write_ladder(result: LadderResult, folder: Path) -> None:
    """Write ``ladder.json``, ``ladder.md`` and the figure into the sweep's folder."""
    write_json(folder / "ladder.json", as_dict(result))
    write_atomic(folder / FIGURE, draw_ladder(result).encode())
    write_atomic(folder / "ladder.md", as_markdown(result).encode("utf-8", "replace"))


def as_text(result: LadderResult) -> str:
    """Return the tables for a terminal."""
    lines = [_title(result), *aligned([POINTS, *_points(result)], right=(1, 2, 3, 4, 5)), ""]
    lines += [*aligned([FITS, *_fits(result)], right=(3,)), "", *_notes(result)]
    return "\n".join([*lines, f"page: {result.folder}/ladder.md"])


def as_markdown(result: LadderResult) -> str:
    """Return the page."""
    lines = [f"# Ladder {result.name}", "", _title(result), ""]
    lines += [f"![Held-out accuracy against training FLOP by model size]({FIGURE})", ""]
    lines += ["Dots: means over seeds. Lines: sigmoid fits (solid) and power fits (dashed).", ""]
    for head, rows in ((POINTS, _points(result)), (FITS, _fits(result))):
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *_notes(result)]) + "\n"


def _title(result: LadderResult) -> str:
    seeds = ", ".join(map(str, result.seeds))
    return f"accuracy on {result.num_problems} held-out problems, seeds {seeds}"


def _points(result: LadderResult) -> Iterator[list[str]]:
    for size in result.sizes:
        weights = f"{size.num_weights:,}"
        yield [size.arm, weights, "0", "0", "0", "0", three_digits(size.start)]
        for one in size.budgets:
            yield [
                size.arm,
                weights,
                f"{one.step}",
                f"{one.rollouts:,.0f}",
                f"{one.tokens:,.0f}",
                f"{one.flop:.2e}",
                f"{three_digits(one.accuracy)} ± {three_digits(one.stderr)}",
            ]


def _fits(result: LadderResult) -> Iterator[list[str]]:
    for size in result.sizes:
        for one in size.fits:
            shown = ", ".join(f"{k} {_estimate(v)}" for k, v in one.parameters.items())
            yield [size.arm, one.form, shown, f"{one.rmse:.4f}", *_cells(one.prediction)]
    if result.across is not None:
        yield [result.sizes[-1].arm, "from smaller sizes", "", "", *_cells(result.across)]


def _cells(one: Prediction) -> list[str]:
    inside = "inside" if one.is_inside else "outside"
    return [_estimate(one.predicted), f"{one.observed:.3f}", f"{one.error:+.3f}", inside]


def _estimate(one: Estimate) -> str:
    return f"{three_digits(one.value)} ({three_digits(one.low)} to {three_digits(one.high)})"


def _notes(result: LadderResult) -> Iterator[str]:
    yield (
        "Fits use rollouts. Predicted: accuracy at the largest budget, from the smaller budgets of"
        " the same size. Intervals: 95 %, over seeds and, for parameters, problems."
    )
    found = [one.prediction for size in result.sizes for one in size.fits]
    found += [] if result.across is None else [result.across]
    inside = sum(one.is_inside for one in found)
    yield f"{inside} of {len(found)} measured accuracies are inside their prediction interval."
    for size in result.sizes:
        wide = _unidentified(size)
        if wide:
            names = " and ".join(wide)
            yield f"{size.arm}: these budgets do not determine the {names} of the sigmoid."


def _unidentified(size: SizeCurve) -> list[str]:
    """Return the names of the sigmoid's parameters that the data do not determine, because a
    parameter's interval covers most of its possible values."""
    (own,) = (one.parameters for one in size.fits if one.form == "sigmoid")
    wide = ["ceiling"] if own["ceiling"].high - own["ceiling"].low > 0.3 else []
    # A midpoint whose interval spans more than a factor of 8 counts as undetermined.
    return wide + (["midpoint"] if own["midpoint"].high > 8 * own["midpoint"].low else [])


def draw_ladder(result: LadderResult) -> str:
    """Return the figure as SVG: accuracy against FLOP, with both fits. Equal numbers give equal
    bytes."""
    left, width, height, top = 52, 460, 260, 16
    flops = [one.flop for size in result.sizes for one in size.budgets]
    low, high = math.log10(min(flops)) - 0.1, math.log10(max(flops)) + 0.1
    values = [one.accuracy for size in result.sizes for one in size.budgets]
    floor = max(0.0, min(values) - 0.05)
    ceiling = min(1.0, max(values) + 0.05)

    def at(flop: float, accuracy: float) -> tuple[float, float]:
        share = (accuracy - floor) / (ceiling - floor)
        x = left + width * (math.log10(flop) - low) / (high - low)
        return round(x, 1), round(top + height * (1 - min(1.05, max(-0.05, share))), 1)

    bottom = top + height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 24} {bottom + 64}"'
        f' width="{left + width + 24}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<path d="M{left} {top}V{bottom}H{left + width}" fill="none" stroke="{INK}"/>',
    ]
    for tick in range(math.ceil(10 * floor), math.floor(10 * ceiling) + 1):
        _, y = at(10**low, tick / 10)
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tick / 10:.1f}</text>')
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        for factor in (1, 3):
            if low <= (place := exponent + math.log10(factor)) <= high:
                x, _ = at(10**place, floor)
                words = f"{factor}e{exponent}"
                parts.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{words}</text>')
    for number, size in enumerate(result.sizes):
        parts += _drawn(size, COLORS[number % len(COLORS)], at)
        step = min(150, width // len(result.sizes))
        x, color = left + 8 + number * step, COLORS[number % len(COLORS)]
        parts.append(f'<circle cx="{x}" cy="{bottom + 50}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{x + 8}" y="{bottom + 54}">{html.escape(size.arm)}</text>')
    words = "training FLOP (log); accuracy on held-out problems"
    middle = left + width // 2
    parts.append(f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">{words}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(size: SizeCurve, color: str, at: Any) -> Iterator[str]:
    for one in size.fits:
        style = ' stroke-dasharray="5 4"' if one.form == "power" else ""
        places = " ".join(f"{x},{y}" for x, y in (at(*point) for point in _line(size, one)))
        yield (
            f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.5"{style}/>'
        )
    for one in size.budgets:
        x, y = at(one.flop, one.accuracy)
        error = one.stderr if math.isfinite(one.stderr) else 0.0
        (_, y_low), (_, y_high) = (at(one.flop, one.accuracy + d) for d in (-error, error))
        yield f'<line x1="{x}" x2="{x}" y1="{y_low}" y2="{y_high}" stroke="{color}"/>'
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>'


def _line(size: SizeCurve, one: CurveFit) -> Sequence[tuple[float, float]]:
    """Return points of a fitted curve as (FLOP, accuracy)."""
    rollouts = np.log([budget.rollouts for budget in size.budgets])
    flops = np.log([budget.flop for budget in size.budgets])
    curve, grid = one.curve, np.linspace(rollouts[0], rollouts[-1], 60)
    at = np.exp(np.interp(grid, rollouts, flops))
    return [(float(f), float(curve.at(math.exp(r))[0])) for r, f in zip(grid, at, strict=True)]
