"""The figure of a sweep: a forest plot, drawn as SVG without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from assay.sweep.comparison import ArmRow, SweepTable

# Mid-tones have enough contrast on a white page and on a dark page.
INK, COLOR = "#7a8290", "#2f8fd8"


def draw_forest(table: SweepTable, metric: str) -> str:
    """Return a forest plot as SVG: each arm's mean difference to the baseline, with its interval.

    Equal numbers give equal bytes.
    """
    rows = [(row, _pairs(table, row)) for row in table.compared]
    ends = [0.0]
    for row, pairs in rows:
        assert row.difference is not None
        ends += [*pairs, *filter(math.isfinite, (row.difference.low, row.difference.high))]
    low, high = min(ends), max(ends)
    spread = (high - low) or 1.0
    low, high = low - 0.05 * spread, high + 0.05 * spread
    label, width, line = 8 * max(len(row.arm) for row in table.arms) + 16, 420, 34
    total, bottom = label + width + 24, line * len(rows) + 30

    def at(value: float) -> float:
        return round(label + width * (value - low) / (high - low), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {bottom + 44}"'
        f' width="{total}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<line x1="{at(0)}" x2="{at(0)}" y1="20" y2="{bottom}" stroke="{INK}"/>',
    ]
    for number, (row, pairs) in enumerate(rows):
        assert row.difference is not None
        y = 30 + line * number + line // 2
        parts.append(f'<text x="8" y="{y + 4}">{html.escape(row.arm)}</text>')
        parts += [
            f'<circle cx="{at(one)}" cy="{y + 8}" r="2.5" fill="{COLOR}" fill-opacity="0.5"/>'
            for one in pairs
        ]
        found = row.difference
        if math.isfinite(found.low):
            ends_of = f'x1="{at(found.low)}" x2="{at(found.high)}" y1="{y}" y2="{y}"'
            parts.append(f'<line {ends_of} stroke="{COLOR}" stroke-width="2.5"/>')
        if pairs:
            parts.append(f'<circle cx="{at(found.mean)}" cy="{y}" r="5" fill="{COLOR}"/>')
    for value in _ticks(low, high):
        parts.append(f'<line x1="{at(value)}" x2="{at(value)}" y1="{bottom}" y2="{bottom + 4}"')
        parts[-1] += f' stroke="{INK}"/>'
        shown = f"{value:g}"
        parts.append(f'<text x="{at(value)}" y="{bottom + 17}" text-anchor="middle">{shown}</text>')
    words = html.escape(f"{metric}: difference to {table.baseline}")
    middle = label + width // 2
    parts.append(f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle">{words}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _pairs(table: SweepTable, row: ArmRow) -> list[float]:
    base = table.row(table.baseline).values
    return [row.values[seed] - base[seed] for seed in row.values if seed in base]


def _ticks(low: float, high: float) -> Sequence[float]:
    """Return three to seven round numbers within a range, as the ticks of an axis."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= rough)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]
