"""Draw the figure of a search from the output of ``assay search --json``.

    assay search MODEL --problems ... --budget 96 --budget 384 --json > search.json
    python tools/search_figure.py search.json search.svg

The first panel shows the accuracy of each method over its budget, with standard errors. The oracle
and a single sample are the upper and lower bounds. The second panel shows the scorer's values for
the same answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from studies.page import COLORS, INK, drawn_as

ALONE = ("one_sample", "greedy")
Row = Mapping[str, Any]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the figure as SVG. Equal numbers give equal bytes."""
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] not in ALONE))
    with drawn_as(2) as (figure, axes):
        colors = cycle(COLORS)
        for method in methods:
            style = {"color": INK, "linestyle": "--"} if method == "oracle" else {}
            style = style or {"color": next(colors)}
            own = [row for row in rows if row["method"] == method]
            curve(axes[0], own, "accuracy", label=method, **style)
            curve(axes[1], own, "score", **style)
        for axis, key, title in zip(
            axes,
            ("accuracy", "score"),
            ("accuracy of the answers", "the scorer's score"),
            strict=True,
        ):
            (base,) = [row[key] for row in rows if row["method"] == "one_sample"]
            if base is not None:
                axis.axhline(base, color=INK, linestyle=":", label="one sample")
            axis.set_title(title, fontsize=9, color=INK)
            axis.set_xlabel("generated tokens of a problem")
            axis.set_xscale("log", base=2)
            budgets = sorted({row["budget"] for row in rows if row["budget"]})
            axis.set_xticks(budgets, [str(budget) for budget in budgets])
            axis.minorticks_off()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="center right", frameon=False)
        figure.tight_layout(rect=(0, 0, 0.78, 1))
        figure.savefig(path, transparent=True, metadata={"Date": None})


def curve(axis: Any, rows: Sequence[Row], key: str, **style: Any) -> None:
    """Draw the line of one method, over the budgets that have a value."""
    known = [row for row in rows if row[key] is not None]
    errors = [row["stderr"] or 0.0 for row in known] if key == "accuracy" else None
    if known:
        values = [row[key] for row in known]
        axis.errorbar(
            [row["budget"] for row in known], values, errors, marker="o", capsize=3, **style
        )


def main(source: str, path: str) -> None:
    """Draw the figure of a search's JSON output."""
    draw(json.loads(Path(source).read_text(encoding="utf-8"))["rows"], Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
