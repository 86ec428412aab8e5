"""The figure of ``assay plan --devices``: step time and utilization by number of devices, as SVG
without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence

# Mid-tones with enough contrast on white and on a dark page alike.
INK, LEARNER, SAMPLER = "#7a8290", "#d9742b", "#2f8fd8"
_LEFT, _WIDTH, _HEIGHT, _TOP, _GAP = 64, 460, 150, 34, 56


def draw_devices(
    counts: Sequence[int],
    seconds: Sequence[float],
    learner: Sequence[float],
    sampler: Sequence[float],
    mark: int,
    title: str,
) -> str:
    """Draw the seconds of a step, and the utilization of learner and samplers as shares.

    counts: numbers of devices, in increasing order. mark: number of devices that gets a vertical
    line. Equal numbers give equal bytes.
    """
    low, high = math.log2(min(*counts, mark)), math.log2(max(*counts, mark))

    def across(count: float) -> float:
        return round(_LEFT + _WIDTH * (math.log2(count) - low) / ((high - low) or 1.0), 1)

    total, tall = _LEFT + _WIDTH + 24, _TOP + 2 * _HEIGHT + _GAP + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {tall}" width="{total}"'
        f' font-family="sans-serif" font-size="11" fill="{INK}">',
        f'<text x="{_LEFT}" y="16" font-size="12">{html.escape(title)}</text>',
    ]
    longest = max(seconds) or 1.0
    second = _TOP + _HEIGHT + _GAP
    parts += _panel("seconds of a step", _TOP, across, counts, longest, lambda one: f"{one:.3g}")
    parts += _line(counts, seconds, _TOP, across, longest, INK)
    parts += _panel("utilization", second, across, counts, 1.0, lambda one: f"{one:.0%}")
    parts += _line(counts, learner, second, across, 1.0, LEARNER)
    parts += _line(counts, sampler, second, across, 1.0, SAMPLER)
    for number, (name, color) in enumerate((("learner", LEARNER), ("samplers", SAMPLER))):
        x = _LEFT + 110 + 90 * number
        parts.append(f'<text x="{x}" y="{second - 8}" fill="{color}">{name}</text>')
    for top in (_TOP, second):
        ends = f'x1="{across(mark)}" x2="{across(mark)}" y1="{top}" y2="{top + _HEIGHT}"'
        parts.append(f'<line {ends} stroke="{INK}" stroke-dasharray="4 3"/>')
    middle = _LEFT + _WIDTH // 2
    parts.append(f'<text x="{middle}" y="{tall - 6}" text-anchor="middle">devices</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    name: str,
    top: int,
    across: Callable[[float], float],
    counts: Sequence[int],
    most: float,
    shown: Callable[[float], str],
) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{name}</text>'
    for share in (0.0, 0.5, 1.0):
        y = round(top + _HEIGHT * (1 - share), 1)
        ends = f'x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}"'
        yield f'<line {ends} stroke="{INK}" stroke-opacity="0.25"/>'
        text = shown(share * most)
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>'
    for count in counts:
        yield (
            f'<text x="{across(count)}" y="{top + _HEIGHT + 15}" text-anchor="middle">'
            f"{count:,}</text>"
        )


def _line(
    counts: Sequence[int],
    values: Sequence[float],
    top: int,
    across: Callable[[float], float],
    most: float,
    color: str,
) -> Iterator[str]:
    points = [
        (across(count), round(top + _HEIGHT * (1 - value / most), 1))
        for count, value in zip(counts, values, strict=True)
    ]
    joined = " ".join(f"{x},{y}" for x, y in points)
    yield f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    for x, y in points:
        yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>'
