"""docs/verifiers.md says what the verifiers declare."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from assay.session.judging import judged_rows
from assay.types import Completion, Group, Problem, Prompt
from assay.verify.base import resolve
from assay.verify.expression import BUILT_IN
from assay.verify.service import VerifierService

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


def test_the_rows_on_the_page_pass(tmp_path: Path) -> None:
    rows = re.search(r"````json\n(.*?)\n````", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert rows is not None
    path = tmp_path / "rows.jsonl"
    path.write_text(rows[1] + "\n", encoding="utf-8")
    found = list(judged_rows(path, num_workers=1, deadline=60.0))
    assert len(found) >= 17
    assert [row["id"] for row in found if row["status"] != "passed"] == []


def test_the_functions_on_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = re.search(
        r"```python\n(def concise.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert source is not None
    (tmp_path / "page_rewards.py").write_text(source[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = Problem("p", "2 + 3?", {"answer": "5"})
    texts = [Completion.from_text(text) for text in ("5", "five")]
    group = Group(problem, Prompt("2 + 3?", texts[0].tokens), tuple(texts))
    with VerifierService("page_rewards:concise + page_rewards:shortest", num_workers=1) as service:
        ((right, wrong),) = service.judge([group])
    assert (right.score, right.components["page_rewards:concise.characters"]) == (1.0, 1.0)
    assert (wrong.score, right.reward, wrong.reward) == (0.0, 2.0, 0.0)


def test_text_of_any_kind_can_stand_as_inline_code(tool: ModuleType) -> None:
    assert tool.code("a") == "`a`"
    assert tool.code("```a\nb```") == "```` ```a⏎b``` ````"
    assert tool.cell("a|b\nc") == r"a\|b c"
