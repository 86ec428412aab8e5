"""docs/combinations.md says what the cells of its test say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_current() -> None:
    place = ROOT / "tools" / "combinations_reference.py"
    spec = importlib.util.spec_from_file_location("combinations_reference", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "combinations.md").read_text(encoding="utf-8")
    assert page == tool.reference(), "run: python tools/combinations_reference.py"
