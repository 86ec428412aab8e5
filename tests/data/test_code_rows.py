"""Programming problems in the forms of public sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.data.problems import load_problems
from assay.data.rows import read_problem
from assay.errors import DataError


def test_mbpp() -> None:
    row = {
        "task_id": 7,
        "text": "Write f.",
        "code": "def f(): pass",
        "test_list": ["assert f(1) == 2\r\n", "assert f(2) == 3"],
        "test_setup_code": "import math",
        "challenge_test_list": ["assert f(9) == 10"],
    }
    problem = read_problem(row, "mbpp.jsonl:1", "default")
    assert problem.id == "7"
    assert problem.prompt == (
        "Write f.\nYour program must pass these tests:\nassert f(1) == 2\n\nassert f(2) == 3"
    )
    assert problem.spec["tests"][1] == {"assert": "assert f(2) == 3"}
    assert problem.spec["hidden_tests"] == [{"assert": "assert f(9) == 10"}]
    assert problem.spec["setup"] == "import math"
    assert "f(9)" not in str(problem.prompt)


def test_humaneval() -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": "def f():",
        "entry_point": "f",
        "test": "def check(c): pass",
    }
    problem = read_problem(row, "he.jsonl:1", "default")
    assert (problem.id, problem.prompt) == ("HumanEval/0", "def f():")
    assert problem.spec["tests"] == [{"check": "def check(c): pass"}]
    assert problem.spec["prompt_code"] == "def f():" and problem.spec["entry_point"] == "f"


def test_stdin_and_stdout() -> None:
    row = {"problem": "Add.", "inputs": ["1 2\n"], "outputs": ["3\n"]}
    problem = read_problem(row, "cc.jsonl:1", "cc:1")
    assert problem.spec["tests"] == [{"stdin": "1 2\n", "stdout": "3\n"}]
    with pytest.raises(
        DataError, match=r"cc.jsonl:1: found 1 inputs and 2 outputs; accepted: as many"
    ):
        read_problem({**row, "outputs": ["3", "4"]}, "cc.jsonl:1", "cc:1")


@pytest.mark.parametrize(
    "row", [{"prompt": "q", "test": "x"}, {"prompt": "q", "tests": ["a"], "test_list": []}]
)
def test_other_rows_are_left_alone(row: dict[str, Any]) -> None:
    problem = read_problem(row, "x.jsonl:1", "x:1")
    assert problem.prompt == "q" and {**problem.spec} == {
        k: v for k, v in row.items() if k != "prompt"
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [("mbpp/prompt_val_train", 471), ("humaneval/first_40", 40), ("code_contests/test_60", 60)],
)
def test_real_rows(shared_data: Path, name: str, count: int) -> None:
    problems = load_problems([str(shared_data / f"{name}.jsonl")])
    assert len(problems) == count
    assert all(problem.spec["tests"] for problem in problems)
    assert json.dumps(problems[0].spec["tests"])


def test_apps() -> None:
    told = {"inputs": ["1 2\n", ["3 4", "5"]], "outputs": ["3\n", ["7", "5"]]}
    row = {"problem_id": 3, "question": "Add.", "input_output": json.dumps(told)}
    problem = read_problem(row, "apps.jsonl:1", "default")
    assert problem.id == "3" and problem.prompt == "Add."
    assert problem.spec["tests"] == [
        {"stdin": "1 2\n", "stdout": "3\n"},
        {"stdin": "3 4\n5", "stdout": "7\n5"},
    ]
    called = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
    problem = read_problem({**row, "input_output": called}, "apps.jsonl:1", "default")
    assert problem.spec["tests"][1] == {"args": [3, 4], "expected": 7}
    assert problem.spec["entry_point"] == "add"
    lists = {**called, "outputs": [[1], [1, 2]]}  # not each in a list of its own
    given = {**row, "input_output": lists, "starter_code": "class Solution:\n    def add("}
    problem = read_problem(given, "apps.jsonl:1", "default")
    assert problem.spec["tests"][0] == {"args": [1, 2], "expected": [1]}
    assert problem.spec["entry_point"] == "Solution().add"
    for broken in ("{", json.dumps({"inputs": ["1"], "outputs": []}), json.dumps([1])):
        with pytest.raises(DataError, match=r"apps.jsonl:1 input_output: .*of one length, as JSON"):
            read_problem({**row, "input_output": broken}, "apps.jsonl:1", "default")
