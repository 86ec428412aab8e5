"""docs/algorithms.md says what the tables say; its links and those of docs/architecture.md lead right."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from assay.learn.algorithms import ALGORITHMS, PREFERENCES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("algorithms", "architecture")]
LINK = re.compile(r"\[`?([^\]`]+)`?\]\(([^)]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_current(page: Path) -> None:
    place = ROOT / "tools" / "algorithm_reference.py"
    spec = importlib.util.spec_from_file_location("algorithm_reference", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert page.read_text(encoding="utf-8") == tool.reference(page), (
        "run: python tools/algorithm_reference.py"
    )


def test_every_row_is_told_with_its_paper_and_equation() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    for row in (*ALGORITHMS.values(), *PREFERENCES.values()):
        assert f"`{row.name}`" in text and row.paper in text, row.name
        assert row.equation.replace("|", "\\|") in text or row.equation in text, row.name


@pytest.mark.parametrize("page", PAGES)
def test_links_to_pages_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    targets = [target for _, target in links if not target.startswith(("http", "#"))]
    missing = [one for one in targets if not (page.parent / one.partition("#")[0]).exists()]
    assert not missing
