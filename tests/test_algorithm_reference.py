"""docs/algorithms.md says what the tables say, and its links lead where they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from assay.learn.algorithms import ALGORITHMS
from assay.learn.preference_table import PREFERENCES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
LINK = re.compile(r"\[`?([^\]`]+)`?\]\(([^)]+)\)")


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    place = ROOT / "tools" / "algorithm_reference.py"
    spec = importlib.util.spec_from_file_location("algorithm_reference", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert page() == tool.reference(), "run: python tools/algorithm_reference.py"


def test_every_row_is_told_with_its_paper_and_equation() -> None:
    text = page()
    for row in (*ALGORITHMS.values(), *PREFERENCES.values()):
        assert f"`{row.name}`" in text and row.paper in text, row.name
        assert row.equation.replace("|", "\\|") in text or row.equation in text, row.name


def test_links_to_lines_lead_to_the_definition() -> None:
    lines = [(name, target) for name, target in LINK.findall(page()) if "#L" in target]
    assert len(lines) > 20
    for name, target in lines:
        file, _, number = target.partition("#L")
        line = (PAGE.parent / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        assert re.match(rf"(def|class) {name}\b", line), target


def test_links_to_pages_lead_somewhere() -> None:
    targets = [target for _, target in LINK.findall(page()) if not target.startswith(("http", "#"))]
    missing = [one for one in targets if not (PAGE.parent / one.partition("#")[0]).exists()]
    assert not missing
