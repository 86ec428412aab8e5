"""Tests written for code: what references agree on is kept, and finds what the row's tests miss."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random
from typing import Any

import pytest
from stage_runs import rows_file, run_on, took, written

from assay.curation.base import run_stage
from assay.curation.examples import suggested
from assay.curation.inputs import Fuzzer
from assay.curation.mutants import mutants
from assay.errors import DataError
from assay.types import Completion, Problem
from assay.verify.programs.code_tests import judge_code

LARGEST = """
def largest(xs):
    best = xs[0]
    for x in xs:
        if x > best:
            best = x
    return best
"""
LAST = "def largest(xs):\n    return xs[-1]\n"
FEW = {"num_tests": 12, "num_mutants": 2}
MBPP = {
    "id": "m",
    "text": "Write a function to find the largest number.",
    "code": LARGEST.replace("\n", "\r\n"),
    "test_list": ["assert largest([1, 5]) == 5", "assert largest([2, 4, 9, 8, 11]) == 11"],
}
DOUBLE = "def f(x):\n    return 2 * x\n"


def row_of(**keys: Any) -> dict[str, Any]:
    tests = ["assert f(2) == 4", "assert f(5) == 10"]
    return {"prompt": "Double it.", "tests": tests, "solution": DOUBLE, **keys}


def passes(row: dict[str, Any], program: str, *keys: str) -> bool:
    spec = {"tests": []} | {key: row[key] for key in (*keys, "entry_point") if key in row}
    part = judge_code(Problem("p", row["prompt"], spec), Completion.from_text(program))
    return bool(part.passed)


def arguments(row: dict[str, Any]) -> list[Any]:
    """Return the first argument of each hidden assert."""
    calls = (ast.parse(test["assert"]).body[0].test.left for test in row["hidden_tests"])  # pyright: ignore
    return [ast.literal_eval(call.args[0]) for call in calls]


def test_a_wrong_program_that_the_rows_tests_pass_fails_the_written_ones(tmp_path: Path) -> None:
    wrong = [LAST, LAST.replace("[-1]", "[0]")]
    (row,), manifest = run_on(tmp_path, "write_tests", [MBPP | {"wrong_solutions": wrong}])
    assert row["verifier"] == "code" and row["tests"][0] == {"assert": MBPP["test_list"][0]}
    tests = [test["assert"] for test in row["hidden_tests"]]
    assert 10 <= len(tests) <= 50 and len({*tests}) == len(tests)
    assert not {*tests} & {*MBPP["test_list"]}
    assert passes(row, LARGEST, "tests", "hidden_tests")
    assert passes(row, wrong[0], "tests") and not passes(row, wrong[0], "hidden_tests")
    found = row["written_tests"]
    assert (found["programs"], found["passed_own"], found["passed_own_only"]) == (2, 1, 1)
    assert found["found_by_own"] < found["found_by_any"] <= found["mutants"]
    assert manifest.measured["wrong among programs that pass the rows' own tests"] == 1.0


def test_a_problems_tests_do_not_depend_on_its_neighbors(tmp_path: Path) -> None:
    (row,), _ = run_on(tmp_path / "a", "write_tests", [MBPP], **FEW)
    (_, other), _ = run_on(tmp_path / "b", "write_tests", [row_of(), MBPP], **FEW)
    (third,), _ = run_on(tmp_path / "c", "write_tests", [MBPP], **FEW, seed=1)
    assert other["hidden_tests"] == row["hidden_tests"] != third["hidden_tests"]


@pytest.mark.parametrize(
    ("test", "near"),
    [
        ("assert f(2) == 1.0", ""),
        ("assert math.isclose(f(2), 1.0, rel_tol=0.01)", ", rel=0.01"),
        ("assert f(2) == approx(1.0, abs=0.5)", ", abs=0.5"),
        ("assert abs(f(2) - 1.0) < 1e-3", ", abs=0.001"),
    ],
)
def test_numbers_may_be_as_far_off_as_in_the_rows_own_tests(
    tmp_path: Path, test: str, near: str
) -> None:
    rows = [row_of(tests=[test, "assert f(9) == 4.5"], solution="def f(x):\n    return x / 2\n")]
    (row,), _ = run_on(tmp_path, "write_tests", rows, **FEW)
    assert all(each["assert"].endswith(f"{near})") for each in row["hidden_tests"])


def test_inputs_on_which_references_disagree_are_no_tests(tmp_path: Path) -> None:
    other = "def f(x):\n    return abs(2 * x)\n"
    rows = [row_of(solutions=[DOUBLE, other], solution=DOUBLE)]
    (row,), _ = run_on(tmp_path, "write_tests", rows, reach="far", agree=1.0, **FEW)
    assert row["written_tests"]["references"] == 3
    assert min(arguments(row)) >= 0
    outvoted = {"agree": 0.6, "min_passing": 0.6, **FEW}
    (row,), _ = run_on(tmp_path / "b", "write_tests", rows, reach="far", **outvoted)
    assert min(arguments(row)) < 0 and not passes(row, other, "hidden_tests")


FALLS = {
    "no_solution": row_of(solution=[]),
    "no_reference": row_of(solution="def f(x):\n    return x\n"),
    "own_comparison": row_of(
        tests=["assert sorted(f(2)) == 4"], solution="def f(x):\n    return x"
    ),
    "no_example": {"prompt": "?", "solution": DOUBLE, "entry_point": "f"},
    "few_tests": row_of(tests=["assert f(True) == 2"]),
    "constant": row_of(
        tests=["assert f([3, 1]) == None", "assert f([2]) == None"],
        solution="def f(x):\n    x.sort()\n",
    ),
    "references_fail": row_of(
        tests=["assert f(3) == 1", "assert f(9) == 2"],
        solution="calls = []\n\ndef f(x):\n    calls.append(x)\n    return len(calls)\n",
    ),
    "weak": row_of(solution="def f(x):\n    unused = x\n    return 2 * x\n"),
    "not_run": row_of(tests=["assert f(2) == 4", "assert 1 + 1 == 2"]),
}


def test_each_filter_removes_its_rows_with_a_reason(tmp_path: Path) -> None:
    rows = [{**row, "id": name} for name, row in FALLS.items()]
    rows[2]["tests"] = ["assert sorted(f(2)) == [2, 3]"]
    rows[2]["solution"] = "def f(x):\n    return {x, x + 1}\n"
    kept, manifest = run_on(
        tmp_path, "write_tests", [row_of(), *rows], min_mutation_score=1.0, num_tests=12
    )
    assert len(kept) == 1 and kept[0]["written_tests"]["found_by_any"] > 0
    found = {each.name: [one["row"]["id"] for one in each.examples] for each in manifest.filters}
    assert found == {name: [name] for name in FALLS}
    reasons = {each.name: each.examples[0]["reason"] for each in manifest.filters}
    assert reasons["no_reference"] == "0 of 1 programs pass the row's own tests"
    assert "sorted(f(2))" in reasons["own_comparison"]
    assert "1 tests of 1 inputs" in reasons["few_tests"]
    assert "neither calls the program" in reasons["not_run"]


def test_an_unreadable_row_is_reported_before_any_row_is_written(tmp_path: Path) -> None:
    name = rows_file(tmp_path / "rows.jsonl", [row_of(), row_of(tests=["assert f(2"])])
    with pytest.raises(DataError, match=r"rows\.jsonl:2.*never closed"):
        run_stage("write_tests", {"inputs": [name]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_generator_of_the_row_gives_its_inputs(tmp_path: Path) -> None:
    total = "input()\nprint(sum(map(int, input().split())))\n"
    text = "def generate(rng):\n    n = rng.randint(1, 6)\n    xs = [rng.randint(0, 9) for _ in range(n)]\n"
    rows = [
        {
            "problem": "Add n numbers.",
            "inputs": ["2\n3 4\n"],
            "outputs": ["7\n"],
            "solutions": {"language": [1, 3], "solution": ["print 2", total]},
            "generator": text + "    return f'{n}\\n' + ' '.join(map(str, xs)) + '\\n'\n",
        },
        row_of(
            tests=[],
            entry_point="f",
            generator="def generate(rng):\n    return rng.randint(50, 99)\n",
        ),
    ]
    (one, other), _ = run_on(tmp_path, "write_tests", rows, **FEW)
    for test in one["hidden_tests"][:10]:
        numbers = [int(each) for each in test["stdin"].split()]
        assert len(numbers) == numbers[0] + 1 and int(test["stdout"]) == sum(numbers[1:])
    assert all(50 <= x <= 99 for x in arguments(other))


def test_types_of_a_signature_give_inputs_where_no_test_does(tmp_path: Path) -> None:
    code = "def mean(xs: list[float], start: int = 0) -> float:\n    return (sum(xs) + start) / 3\n"
    (row,), _ = run_on(tmp_path, "write_tests", [row_of(tests=[], solution=code)], **FEW)
    assert all(isinstance(x, list) for x in arguments(row))
    assert "approx(" in row["hidden_tests"][0]["assert"]  # rounding is no fault
    near = code.replace("(sum(xs) + start) / 3", "sum(x / 3 for x in xs) + start / 3")
    assert passes(row, near, "hidden_tests")
    assert not passes(row, near.replace("start / 3", "start"), "hidden_tests")


def test_collected_completions_are_references_tries_and_suggestions(tmp_path: Path) -> None:
    collected = [
        {"prompt": "?", "problem_id": "a", "completion": f"Here:\n```python\n{text}```"}
        for text in (DOUBLE, "def f(x):\n    return x + x\n", "def f(x):\n    return 5 * x - 6\n")
    ]
    asked = [{"prompt": "?", "problem_id": "a", "completion": "```\nf(77)\nassert f(81) == 0\n```"}]
    how = {
        "solutions": [rows_file(tmp_path / "solutions.jsonl", collected)],
        "suggestions": [rows_file(tmp_path / "asked.jsonl", asked)],
    }
    bare = row_of(id="a", tests=["assert f(2) == 4"], solution=[])
    outvoted = {"agree": 0.6, "min_passing": 0.6, **FEW}
    (row,), manifest = run_on(tmp_path / "b", "write_tests", [bare], **how, **outvoted)
    found = row["written_tests"]
    assert (found["references"], found["passed_own"], found["passed_own_only"]) == (3, 3, 1)
    assert {"assert f(77) == 154"} <= {test["assert"] for test in row["hidden_tests"]}
    assert [one["source"] for one in manifest.inputs] == [str(tmp_path / "b" / "input-0.jsonl")]


# inputs


def drawn(
    examples: list[tuple[Any, ...]], reach: Any = "near", count: int = 200
) -> list[list[Any]]:
    fuzzer = Fuzzer([dict(enumerate(each)) for each in examples], reach, Random(0))
    found = [fuzzer.draw() for _ in range(count)]
    assert sum(each is not None for each in found) > count / 4
    return [list(each.values()) for each in found if each is not None]


def test_what_holds_of_all_examples_holds_of_inputs() -> None:
    ordered = drawn([([1, 3, 5], 3), ([2, 4], 2), ([1, 7, 9, 11], 4)])
    assert all(xs == sorted(xs) and n == len(xs) and min(xs) >= 1 for xs, n in ordered)
    assert len({len(xs) for xs, _ in ordered}) > 2
    grids = drawn([([[1, 2], [3, 4]], 1), ([[0, 2], [5, 6]], 1)])
    assert all([len(xs) for xs in grid] == [2, 2] for grid, _ in grids)
    texts = drawn([("abc",), ("bd",)])
    assert all(text and set(text) <= set("abcd") for (text,) in texts)
    mixed = drawn([({"a": (1, "x")}, 2.5), ({"b": (2, "y"), "c": (3, "x")}, 0.5)])
    assert all({*map(type, pair)} == {int, str} for table, _ in mixed for pair in table.values())


def test_far_inputs_are_also_empty_and_negative_and_keep_what_arguments_have_to_do() -> None:
    found = drawn([([3, 5], 2), ([2, 9, 4], 3)], "far", 400)
    assert any(not xs for xs, _ in found) and any(min(xs, default=0) < 0 for xs, _ in found)
    assert all(n == len(xs) for xs, n in found)


def test_suggestions_are_read_from_calls_and_blocks() -> None:
    text = "1. `f(1, [2])`\n- f('a', k=2)\nassert f(3) == g(4)\nprint(f(x))\nnot python at all\n"
    expected = [{0: 1, 1: [2]}, {0: "a", "k": 2}, {0: 3}]
    assert suggested(text, {"f"}, takes_text=False) == expected
    assert suggested("So:\n```\n1\n2\n```\nor\n```text\n3\n```\n", {"f"}, True) == ["1\n2\n", "3\n"]


def test_mutants_are_programs_with_one_fault() -> None:
    found = mutants(LARGEST, 50, Random(0))
    assert "if x >= best:" in "".join(found) and "if not x > best:" in "".join(found)
    lines = ast.unparse(ast.parse(LARGEST)).splitlines()
    assert len(found) == 6
    for text in found:
        changed = text.splitlines()
        assert len(changed) == len(lines)
        assert sum(one != other for one, other in zip(lines, changed, strict=True)) == 1
    assert mutants(LARGEST, 3, Random(1)) == mutants(LARGEST, 3, Random(1))
    assert len(mutants(LARGEST, 3, Random(1))) == 3 and mutants("def (", 3, Random(0)) == []


def test_mbpps_problems_get_tests_that_find_more_mutants(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "mbpp/prompt_val_train.jsonl").read_text().splitlines()[:6]
    (tmp_path / "mbpp.jsonl").write_text("\n".join(lines) + "\n")
    how = {"inputs": [str(tmp_path / "mbpp.jsonl")], **FEW}
    manifest = run_stage("write_tests", how, tmp_path / "out")
    assert manifest.rows >= 3
    assert manifest.rows + sum(took(manifest).values()) == 6
    found = manifest.measured
    assert found["found_by_own"] <= found["found_by_any"] and found["found"] > 0
    assert all(row["code"] and row["hidden_tests"] for row in written(tmp_path / "out"))
