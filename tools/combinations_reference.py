"""Write docs/combinations.md: ``python tools/combinations_reference.py``.

The cells of the page come from tests/training/combination_cells.py, and a test checks each cell
with a run. Another test fails if the page is out of date.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "combinations.md"
HEAD = ROOT / "tools" / "combinations_head.md"
CELLS = ROOT / "tests" / "training" / "combination_cells.py"


def reference() -> str:
    """Return the complete text of the page."""
    cells = _cells()
    names = list(cells.FEATURES)
    lines = [
        f"| | {' | '.join(f'{n + 1}' for n in range(len(names)))} |",
        f"|---|{':---:|' * len(names)}",
    ]
    for number, name in enumerate(names, 1):
        marks = [_mark(cells, name, other) for other in names]
        lines.append(f"| {number}. {cells.FEATURES[name].words} | {' | '.join(marks)} |")
    refused = [
        f"- {_pair(cells, pair)}: `{words}`" for pair, words in _in_order(cells, cells.REFUSED)
    ]
    senseless = [
        f"- {_pair(cells, pair)}: {words}." for pair, words in _in_order(cells, cells.SENSELESS)
    ]
    parts = [
        HEAD.read_text(encoding="utf-8") + "\n".join(lines),
        "## Refused pairs",
        "Each refused pair is listed with a part of its error message:\n\n" + "\n".join(refused),
        "## Pairs that do not exist",
        "\n".join(senseless),
    ]
    return "\n\n".join(parts) + "\n"


def _cells() -> Any:
    spec = importlib.util.spec_from_file_location("combination_cells", CELLS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _mark(cells: Any, one: str, other: str) -> str:
    pair = frozenset((one, other))
    return "no" if pair in cells.REFUSED else "-" if pair in cells.SENSELESS else "yes"


def _in_order(cells: Any, pairs: Any) -> list[tuple[list[str], str]]:
    """Sort pairs by the order of their features."""
    place = list(cells.FEATURES).index
    found = [(sorted(pair, key=place), words) for pair, words in pairs.items()]
    return sorted(found, key=lambda each: [place(name) for name in each[0]])


def _pair(cells: Any, pair: list[str]) -> str:
    return " with ".join(cells.FEATURES[name].words for name in pair)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE}")
