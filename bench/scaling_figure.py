"""The figure of `bench.scaling`: a column of panels per sweep, legible on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.scaling import Series

# Mid-tones with enough contrast on white and on a dark page alike.
INK = "#7a8290"
COLORS = {"generation": "#2f8fd8", "update": "#d9742b"}
ROWS = (
    ("seconds", "{}_seconds"),
    ("peak, MiB", "{}_peak_mib"),
    ("beyond weights\nand state, MiB", "{}_beyond_mib"),
)
FEW_DECADES = 150.0
LEAST_MIB = 1.0  # a logarithmic axis has no zero


def draw(series: Sequence[Series], path: Path) -> None:
    """Write the figure as SVG, its background left transparent."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text: it can be read, searched and scaled
        "svg.hashsalt": "assay",
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(settings):
        size = (2.3 * len(series) + 0.6, 6.2)
        figure, axes = pyplot.subplots(
            len(ROWS), len(series), figsize=size, sharex="col", sharey="row", squeeze=False
        )
        for column, one in enumerate(series):
            for row, (_, key) in enumerate(ROWS):
                _panel(axes[row][column], one, key)
            axes[-1][column].set_xlabel(one.sweep.title)
        for row, (label, _) in enumerate(ROWS):
            axes[row][0].set_ylabel(label)
            _number_heights(axes[row][0])
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=2, frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.96))
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _panel(axis: Any, series: Series, key: str) -> None:
    from matplotlib import ticker

    for name, color in COLORS.items():
        values = series.column(key.format(name))
        if key.endswith("mib"):
            values = [max(value, LEAST_MIB) for value in values]
        axis.plot(series.x, values, "o-", color=color, label=name, markersize=3.5, linewidth=1.5)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(series.x)
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(_short))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.tick_params(axis="x", labelsize=7.5)
    axis.grid(True, which="major", color=INK, alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _number_heights(axis: Any) -> None:
    """Put plain numbers beside a row of panels, more of them where there are few decades."""
    from matplotlib import ticker

    low, high = axis.get_ylim()
    steps = (1.0,) if high / low > FEW_DECADES else (1.0, 2.0, 5.0)
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def _short(value: float, _: object = None) -> str:
    """Return 8192 as 8.2k, 131072 as 131k, 5300000 as 5.3M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            scaled = value / unit
            return f"{scaled:.0f}{suffix}" if scaled >= 10 else f"{scaled:.1f}{suffix}"
    return f"{value:.0f}"
