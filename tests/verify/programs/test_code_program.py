"""Which program a completion commits to."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.types import Completion, ThinkFormat
from assay.verify.programs.program import (
    MAX_PROGRAM,
    bound_names,
    find_block,
    find_program,
    last_function,
    last_indented_block,
    parse,
)
from assay.verify.programs.setup import prompt_code_of

F = "def f(x):\n    return x + 1\n"
HEAD = 'import math\n\n\ndef f(x):\n    """Add one."""\n'


def program(text: str, mode: str = "free", head: str = "") -> str | None:
    completion = Completion.from_text(text, think=ThinkFormat(mode))  # type: ignore[arg-type]
    found = find_program(completion, "f", head)
    return None if found is None else found.text


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{F}```",
        f"Words.\n\n```py\n{F}```\nMore words.",
        f"```\n{F}```",
        f"~~~\n{F}~~~",
        f"The program: ```python\n{F}```",
        f"\ufeff```python\n\ufeff{F}```",
        f"````python\n{F}````",
        f"```Python3.11\n{F}```",
        f"```python\n{F}",
        f"```python title=x\n{F}```",
        f"```python\nraise\n```\n```python\n{F}```",
        f"```python\nno end here\n```python\n{F}```",
        f"```python\n{F}```\n```text\n2\n```",
        f"```python\n{F}```\n```bash\npython f.py\n```",
        "- item:\n  ```python\n" + textwrap.indent(F, "  ") + "  ```\n",
        f"<think>```python\nraise\n```</think>```python\n{F}```",
        f"<think>\nhm\n</think>\n\n```python\n{F}```".replace("\n", "\r\n"),
        F,
        "Here:\n\n" + textwrap.indent(F, "    ") + "\nDone.",
        textwrap.indent(F, "\t"),
    ],
)
def test_texts_that_commit_to_a_program(text: str) -> None:
    found = program(text)
    assert found is not None
    assert found.strip() == F.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n\n",
        "The answer is f.",
        "hello",
        "f",
        "42",
        "I would add one to x and return it: f(x) = x + 1 for all x!",
        f"<think>\n```python\n{F}```\n</think>\nAs above.",
        f"<think>```python\n{F}```",
    ],
)
def test_texts_that_commit_to_no_program(text: str) -> None:
    assert program(text) is None


def test_the_last_block_counts_whatever_it_holds() -> None:
    assert program(f"```python\n{F}```\n```python\nprint(1)\n```") == "print(1)\n"
    assert program(f"```python\n{F}```\n```python\n```") == "\n"


def test_a_block_of_output_does_not_replace_a_program() -> None:
    assert program(f"```python\n{F}```\nIt prints\n```\n9\n```") == F
    assert program(f"```python\nraise\n```\nor\n```\n{F}```") == F


def test_think_tags_count_in_every_mode() -> None:
    for mode in ("off", "free", "opened"):
        assert program(f"<think>```\nraise\n```</think>\n```python\n{F}```", mode) == F


def test_a_block_deeper_inside_is_text() -> None:
    quoted = 'def f(x):\n    """\n        ```\n        f(1)\n        ```\n    """\n    return x\n'
    assert program(f"```python\n{quoted}```") == quoted


@pytest.mark.parametrize(
    "body",
    [
        "    return x + 1\n",
        "```python\n    return x + 1\n```",
        "```python\nreturn x + 1\n```",
        "```python\ny = x\nreturn y + 1\n```",
        "```python\ny = x\n    return y + 1\n```",
    ],
)
def test_a_body_continues_the_prompt(body: str) -> None:
    found = program(body, head=HEAD)
    assert found is not None and found.startswith(HEAD)
    space: dict[str, object] = {}
    exec(found, space)
    assert space["f"](2) == 3  # type: ignore[operator]


def test_a_base_model_continues_after_the_body() -> None:
    found = program("    return math.floor(x)\n\n\ndef g():\n    pass\n", head=HEAD)
    assert found is not None and "def g" in found and found.startswith(HEAD)


def test_a_whole_program_gets_the_imports_of_the_prompt() -> None:
    found = program("```python\ndef f(x):\n    return math.floor(x)\n```", head=HEAD)
    assert found is not None and found.startswith("import math")
    future = "from __future__ import annotations\n\n\ndef f(x):\n    return x\n"
    assert program(f"```python\n{future}```", head=HEAD) == future


def test_prompt_code_is_found_in_prompts() -> None:
    assert prompt_code_of(HEAD, "f") == HEAD
    assert prompt_code_of(f"Complete this:\n```python\n{HEAD}```\n", "f") == HEAD
    assert prompt_code_of("def f(x):\n", "f") == "def f(x):\n"
    assert prompt_code_of(HEAD + "    return x\n", "f") == ""
    assert prompt_code_of("Write f(x).", "f") == ""
    assert prompt_code_of(HEAD, "g") == ""
    assert prompt_code_of(HEAD, "") == ""


def test_syntax_errors_are_reported() -> None:
    assert parse("def f(:") == (None, "SyntaxError: invalid syntax (line 1)")
    assert "null" in parse("x = '\0'")[1]
    assert parse("x" * (MAX_PROGRAM + 1))[0] is None


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "-" * 50_000 + "1",
        "x" + ".a" * 50_000,
        "[" * 300 + "]" * 300,
        "1" + "+1" * 40_000,
        "not " * 20_000 + "x",
        "lambda: " * 5000 + "1",
        "f" + "()" * 20_000,
        "if x:\n" + "".join(" " * i + "if x:\n" for i in range(1, 150)),
        "a if b else " * 10_000 + "c",
        "9" * 5000,
        "\ud800",
    ],
)
def test_hostile_texts_only_fail_to_compile(text: str) -> None:
    tree, fault = parse(text)
    assert tree is not None or fault


def test_names() -> None:
    tree = ast.parse(
        "import a.b, c as d\nclass E: pass\ndef _g(): pass\ndef f(): pass\nx, y = 1, 2\n"
    )
    assert list(bound_names(tree)) == ["a", "d", "E", "_g", "f", "x", "y"]
    assert last_function(tree) == "f"
    assert last_function(tree, "_g") == "_g"
    assert last_function(ast.parse("x = 1")) == ""
    assert last_function(ast.parse("def f(): pass\ndef test_f(): pass\ndef main(): pass")) == "f"
    assert last_function(ast.parse("def main(): pass")) == "main"


@given(st.text(alphabet="`~ \n\tpython{}ab"))
def test_blocks_of_any_text(text: str) -> None:
    block = find_block(text)
    assert block is None or all(line.strip() in text for line in block.split("\n"))
    last_indented_block(text)


@given(st.lists(st.sampled_from(["x = 1", "if x:", "    y = 2", "", "# note"]), min_size=1))
def test_a_fenced_block_is_found_whole(lines: list[str]) -> None:
    code = "\n".join(lines)
    assert find_block(f"Text\n```python\n{code}\n```\ntext") == textwrap.dedent(code) + "\n"
