"""docs/behaviors.md has the errors that the detectors make today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_current() -> None:
    place = ROOT / "tools" / "behavior_reference.py"
    spec = importlib.util.spec_from_file_location("behavior_reference", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    current = (ROOT / "docs" / "behaviors.md").read_text(encoding="utf-8") == tool.page()
    assert current, "run: python tools/behavior_reference.py"
