"""Write docs/algorithms.md and docs/architecture.md: ``python tools/algorithm_reference.py``.

The sources of the pages are tools/*_source.md. Text in double braces is replaced by text that is
generated from the code, such as ``{{row NAME}}``, ``{{table algorithms}}`` or ``{{code
package.module.name}}``. A test fails if a page is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from assay.learn.algorithms import ALGORITHMS, PREFERENCES
from assay.validation import toml_words

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    ROOT / "docs" / f"{name}.md": ROOT / "tools" / f"{name}_source.md"
    for name in ("algorithms", "architecture")
}
COLUMNS = ("credit", "baseline", "scale", "surrogate", "ratio_level", "aggregation", "clip", "kl")
SHOWN = {"name", "paper", "equation"}


def reference(page: Path) -> str:
    """Return the complete text of a page."""
    text = PAGES[page].read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)(?: ([\w.]+))?\}\}", _fill, text)


def _fill(found: re.Match[str]) -> str:
    kind, name = found[1], found[2]
    if kind == "code":
        return _link(name)
    if kind == "row":
        row = ALGORITHMS[name]
        facts = f"- Paper: {row.paper}.\n- Equation: {row.equation}.\n- Settings: {_settings(row)}."
        return f"The preset `{name}`:\n\n{facts}"
    if kind == "table":
        return _algorithms() if name == "algorithms" else _preferences()
    return ", ".join(f"`{one}`" for one in (ALGORITHMS if kind == "algorithms" else PREFERENCES))


def _settings(row: Any) -> str:
    """Return the settings of a preset that differ from the defaults, as configuration text."""
    changed = [f"`{key} = {_toml(value)}`" for key, value in _changed(row).items()]
    return ", ".join(changed) or "every key has its default"


def _toml(value: Any) -> str:
    # the one field of a row that is None: a share of a limit that the row does not know
    return '"a fifth of sampling.max_tokens"' if value is None else toml_words(value)


def _link(name: str) -> str:
    """Return a link to the file that defines a function, a class or a method.

    Links have no line numbers, because these change with every commit.
    """
    place, _, symbol = name.rpartition(".")
    try:
        home: Any = importlib.import_module(place)
    except ModuleNotFoundError:  # a class
        place, _, owner = place.rpartition(".")
        home, symbol = getattr(importlib.import_module(place), owner), f"{owner}.{symbol}"
    thing: Any = inspect.unwrap(getattr(home, name.rpartition(".")[2]))
    file = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT)
    return f"[`{symbol}`](../{file})"


def _algorithms() -> str:
    head = f"| method | {' | '.join(COLUMNS)} | other settings |\n|{'---|' * (len(COLUMNS) + 2)}"
    return "\n".join([head, *(_algorithm_row(row) for row in ALGORITHMS.values())])


def _algorithm_row(row: Any) -> str:
    changed = _changed(row)
    clip = f"{row.clip_low:g} / {row.clip_high:g}"
    cells = {name: str(getattr(row, name)) for name in COLUMNS if hasattr(row, name)}
    cells["clip"] = clip if row.surrogate in ("clip", "cispo") else "none"
    if row.kl_weight:
        cells["kl"] = f"{row.kl_weight:g}, {row.kl_estimator}, {row.kl_place}"
    shown = {*COLUMNS, *SHOWN, "clip_low", "clip_high", "kl_weight", "kl_estimator", "kl_place"}
    beside = ", ".join(f"`{k} = {_toml(v)}`" for k, v in changed.items() if k not in shown)
    return "| " + " | ".join([f"`{row.name}`", *(cells.get(c, "") for c in COLUMNS), beside]) + " |"


def _preferences() -> str:
    lines = ["| method | paper | equation | settings |", "|---|---|---|---|"]
    for row in PREFERENCES.values():
        settings = ", ".join(f"`{key} = {_toml(value)}`" for key, value in _changed(row).items())
        equation = row.equation.replace("|", "\\|")
        lines.append(f"| `{row.name}` | {row.paper} | {equation} | {settings} |")
    return "\n".join(lines)


def _changed(row: Any) -> dict[str, Any]:
    """Return the fields of a preset that differ from the defaults."""
    return {
        field.name: getattr(row, field.name)
        for field in fields(row)
        if field.name not in SHOWN
        and (field.default is MISSING or getattr(row, field.name) != field.default)
    }


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(reference(page), encoding="utf-8")
        print(f"wrote {page}")
