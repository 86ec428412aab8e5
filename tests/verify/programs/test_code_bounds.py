"""What a completion may cost the worker, and tests of a row that judge nothing."""

from __future__ import annotations

from typing import Any

import pytest
from growth import LINEAR, growth

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.programs import running
from assay.verify.programs.code_tests import judge_code
from assay.verify.programs.compare import same_output
from assay.verify.programs.program import find_block, parse
from assay.verify.sandbox import Sandbox, SandboxUnavailable


@pytest.fixture
def sandboxed() -> None:
    try:
        Sandbox().close()
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")


def judge(spec: dict[str, Any], program: str) -> Part:
    return judge_code(Problem("p", "q", spec), Completion.from_text(f"```python\n{program}\n```"))


@pytest.mark.parametrize(
    ("head", "unit", "tail"),
    [("", "a", ""), ("```", "a", "`"), ("x", " ", "`"), ("a```", "py", "`")],
)
def test_long_lines_take_linear_time(head: str, unit: str, tail: str) -> None:
    assert growth(lambda size: find_block(head + unit * size + tail), 200_000) < LINEAR


def test_long_numbers_take_linear_time() -> None:
    def compare(size: int) -> None:
        assert not same_output("1", "9" * size + "x", "numbers")
        assert not same_output("1", "9" * size, "numbers")

    assert growth(compare, 200_000) < LINEAR


def test_whole_numbers_compare_exactly() -> None:
    assert not same_output("1000000007", "1000000006", "numbers")
    assert not same_output("1000000007", "1000000006.0", "numbers")
    assert same_output("-0 +7 0.1", "0 7 0.10000000000000001", "numbers")


def test_nested_blocks_are_not_compiled_here() -> None:
    """To compile them doubles the code with each depth."""

    def read(most: int) -> None:
        lines = [
            each
            for depth in range(most)
            for each in (" " * depth + "try: a", " " * depth + "finally:")
        ]
        assert parse("\n".join([*lines, " " * most + "b"]))[0] is not None

    assert growth(read, 20) < LINEAR


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(
    "text",
    [
        "return 1",
        "break",
        "x = 1\nfrom __future__ import annotations",
        "for x in y:\n    def f(): continue",
    ],
)
def test_what_stands_outside_its_place_does_not_compile(text: str) -> None:
    part = judge({"entry_point": "f", "tests": [{"args": [1], "expected": 1}]}, text)
    assert part.passed is False and part.components["compile_error"] == 1.0


@pytest.mark.usefixtures("sandboxed")
def test_sleep_is_bounded_over_all_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_IDLE", 1.0)
    spec = {"tests": [{"stdin": "", "stdout": "1"}] * 5, "credit": "fraction"}
    part = judge(spec, "import time\ntime.sleep(0.6)\nprint(1)")
    assert part.value == 0.4
    assert part.components["timeout"] == 1.0


@pytest.mark.usefixtures("sandboxed")
def test_a_test_that_judges_nothing_is_the_rows_fault() -> None:
    with pytest.raises(VerifierError, match="neither calls"):
        judge(
            {"tests": ["def helper():\n    assert f(1) == 2"], "entry_point": "f"},
            "def f(x): return 2",
        )
    with pytest.raises(VerifierError, match="asserts"):
        judge({"tests": ["x = 1"], "entry_point": "f"}, "def f(x): return 2")
