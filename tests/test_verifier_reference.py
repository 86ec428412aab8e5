"""docs/verifiers.md says what the verifiers declare."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from assay.verify.base import resolve
from assay.verify.expression import BUILT_IN

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "verifiers.md"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "verifier_reference", ROOT / "tools" / "verifier_reference.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(tool: ModuleType) -> None:
    current = PAGE.read_text(encoding="utf-8") == tool.reference()
    assert current, "run: python tools/verifier_reference.py"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_verifier_has_its_section_fields_and_known_errors(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    verifier = resolve(name)
    _, found, rest = page.partition(f"\n### {name}\n")
    section = rest.partition("\n### ")[0]
    assert found and verifier.label in section and verifier.domain in section
    for field in verifier.fields:
        assert f"| `{field.name}` |" in section
    for error in verifier.known_errors:
        assert error.what in section


def test_text_of_any_kind_can_stand_as_inline_code(tool: ModuleType) -> None:
    assert tool.code("a") == "`a`"
    assert tool.code("```a\nb```") == "```` ```a⏎b``` ````"
    assert tool.cell("a|b\nc") == r"a\|b c"
