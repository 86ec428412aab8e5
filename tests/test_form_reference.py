"""The table of row forms in docs/data.md is the one of `assay.data.forms`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_has_the_current_table() -> None:
    path = ROOT / "tools" / "form_reference.py"
    spec = importlib.util.spec_from_file_location("form_reference", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = tool.PAGE.read_text(encoding="utf-8")
    assert text == tool.page(text), "run python tools/form_reference.py"
