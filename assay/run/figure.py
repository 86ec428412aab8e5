"""An SVG figure of metrics with one panel per metric, drawn without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 150, 70, 24


def draw_series(series: Mapping[str, tuple[Sequence[int], Sequence[float]]], mark: int) -> str:
    """Draw each metric as (steps, values), with a vertical line at the step ``mark``."""
    steps = [step for some, _ in series.values() for step in some] or [0]
    # `place` divides by the width of the range, so the range is at least one step wide.
    low, high = min(steps), max(max(steps), min(steps) + 1)
    tall = len(series) * (_HEIGHT + _TOP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {tall}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{tall}" fill="#fff"/>',
    ]
    for number, (name, (own, values)) in enumerate(series.items()):
        top = number * (_HEIGHT + _TOP) + _TOP
        parts += _panel(name, own, values, top, (low, high), mark)
    parts.append(f'<text x="{_WIDTH // 2}" y="{tall - 6}">step</text></svg>')
    return "\n".join(parts)


def _panel(
    name: str,
    steps: Sequence[int],
    values: Sequence[float],
    top: int,
    reach: tuple[int, int],
    mark: int,
) -> Iterator[str]:
    # SVG has no NaN, and a single point with NaN would invalidate the whole polyline.
    known = [(x, y) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    low = min([0.0, *(y for _, y in known)])
    high = max([y for _, y in known], default=1.0)
    high = high if high > low else low + 1.0
    inner = _HEIGHT - 20

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - reach[0]) / (reach[1] - reach[0]) * (_WIDTH - _LEFT - 20)
        return f"{across:.1f},{top + inner * (1 - (y - low) / (high - low)):.1f}"

    yield f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{html.escape(name)}</text>'
    for y in (low, high):
        across, down = place(reach[0], y).split(",")
        yield f'<text x="{float(across) - 8}" y="{down}" text-anchor="end">{y:.3g}</text>'
        yield f'<line x1="{across}" y1="{down}" x2="{_WIDTH - 20}" y2="{down}" stroke="#ddd"/>'
    if reach[0] <= mark <= reach[1]:
        across = place(mark, low).split(",")[0]
        ends = f'x1="{across}" y1="{top}" x2="{across}" y2="{top + inner}"'
        yield f'<line {ends} stroke="#c33" stroke-dasharray="4 3"/>'
    for x in reach:
        yield f'<text x="{place(x, low).split(",")[0]}" y="{top + inner + 14}">{x}</text>'
    points = " ".join(place(x, y) for x, y in known)
    yield f'<polyline points="{points}" fill="none" stroke="#26c" stroke-width="1.5"/>'
