"""docs/python.md says what the docstrings say, and the docstrings say what a user needs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import assay

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "python.md"
ADAPTERS = ROOT / "docs" / "use_in_your_trainer.md"
FUNCTIONS = sorted(name for name in assay.__all__ if inspect.isfunction(getattr(assay, name)))
OF_ANOTHER = {
    "compare": "evaluate",
    "sample": "evaluate",
    "search": "evaluate",
    "dry_run": "train",
    "redteam": "judge",
    "reward": "judge",
}


def the_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "python_reference", ROOT / "tools" / "python_reference.py"
    )
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_page_is_current() -> None:
    current = PAGE.read_text(encoding="utf-8") == the_tool().reference()
    assert current, "run: python tools/python_reference.py"


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in assay.__all__:
        assert f"### assay.{name}\n" in text or re.search(rf"^.*\b{name} ", text, re.MULTILINE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_an_example_types_and_no_unnamed_parameters(name: str) -> None:
    function = getattr(assay, name)
    signature = inspect.signature(function)
    assert function.__name__ == name or name == "load_config"
    for parameter in signature.parameters.values():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        assert parameter.annotation is not parameter.empty
    assert signature.return_annotation is not signature.empty
    doc = inspect.getdoc(function) or ""
    example = "\n".join(line for line in doc.splitlines() if line.startswith("    "))
    ast.parse(textwrap.dedent(example).replace(", ...)", ")"))
    assert example, "the docstring shows no call"


@pytest.mark.parametrize("name", [one for one in FUNCTIONS if one not in ("source", "load_config")])
def test_every_parameter_is_told(name: str) -> None:
    """By the docstring, or by that of the function which it refers to."""
    told = inspect.getdoc(getattr(assay, name)) or ""
    if other := OF_ANOTHER.get(name):
        assert f"`{other}`" in told
        told += inspect.getdoc(getattr(assay, other)) or ""
    for parameter in inspect.signature(getattr(assay, name)).parameters:
        if parameter not in ("path", "num_samples", "temperature", "seed"):  # they speak
            assert re.search(rf"\b{parameter}(, \w+)*:\s", told), parameter


@pytest.mark.parametrize("page", [PAGE, ADAPTERS], ids=["python", "use_in_your_trainer"])
def test_the_code_on_the_page_can_be_read(page: Path) -> None:
    """As Python, and each call of ours has parameters that the function has."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    calls = 0
    for block in blocks:
        if re.match(r"[\w.]+\(\n?.*\) -> ", block, re.DOTALL):
            continue  # a signature
        tree = ast.parse(block.replace(", ...)", ")"))
        for node in ast.walk(tree):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and re.fullmatch(r"assay\.\w+", name):
                target: Any = getattr(assay, name.partition(".")[2])
                given = {one.arg: None for one in node.keywords if one.arg}
                inspect.signature(target).bind(*node.args, **given)
                calls += 1
    assert calls > 5 or page == ADAPTERS


def test_signatures_and_docstrings_become_markdown() -> None:
    tool = the_tool()
    text = tool.markdown(
        "Do it.\n\n    f(1)\n\n    f(2)\n\na: one. b, c: ``two``.", ["a", "b", "c"]
    )
    wanted = "Do it.\n\n```python\nf(1)\n\nf(2)\n```\n\n- `a`: one.\n- `b`, `c`: `two`."
    assert text == wanted


def test_the_offline_example_prints_the_documented_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", ADAPTERS.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (one for one in blocks if "print(graded(" in one)
    exec(block, {})
    assert f"# {capsys.readouterr().out.strip()}\n" in block
