"""Convert programming problems of public data sets to rows with ``prompt`` and ``tests``.

The verifier ``code`` judges the rows: set ``data.verifier = "code"`` or ``--verifier code``.

Keys of a row in the published format of each data set:

    {"text", "test_list", "test_setup_code", "challenge_test_list"}      MBPP
    {"prompt", "entry_point", "test"}                                    HumanEval
    {"problem", "inputs", "outputs"}                                     CodeContests
    {"question", "input_output", "solutions", "starter_code"}            APPS, TACO
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from assay.errors import DataError, message


def read_code_form(row: dict[str, Any], where: str) -> None:
    """Convert a row of a known format in place; rows of other formats are unchanged.

    MBPP's listed tests are shown in the prompt, as in the MBPP paper, and MBPP's challenge tests
    are hidden. Prompts of HumanEval, CodeContests, APPS and TACO show no tests.
    """
    if "tests" in row:
        return
    if isinstance(row.get("input_output"), (str, Mapping)):
        _read_apps(row, where)
    elif isinstance(row.get("text"), str) and isinstance(row.get("test_list"), (list, tuple)):
        _read_mbpp(row)
    elif isinstance(row.get("test"), str) and isinstance(row.get("entry_point"), str):
        # HumanEval's prompt is the head of the program: imports, signature and docstring.
        # A completion may contain only the body, so the verifier also needs the head.
        row["tests"] = [{"check": row.pop("test")}]
        if isinstance(row.get("prompt"), str):
            row["prompt_code"] = row["prompt"]
    elif isinstance(row.get("inputs"), (list, tuple)) and isinstance(
        row.get("outputs"), (list, tuple)
    ):
        inputs, outputs = row.pop("inputs"), row.pop("outputs")
        if len(inputs) != len(outputs):
            found = f"{len(inputs)} inputs and {len(outputs)} outputs"
            raise DataError(message(where, found, "as many inputs as outputs"))
        row["tests"] = [
            {"stdin": stdin, "stdout": stdout}
            for stdin, stdout in zip(inputs, outputs, strict=True)
        ]
    if "task_id" in row and "id" not in row:
        row["id"] = row.pop("task_id")


def _read_mbpp(row: dict[str, Any]) -> None:
    # Some tests of MBPP have Windows line ends.
    shown = [str(test).replace("\r\n", "\n") for test in row.pop("test_list")]
    text = row.pop("text").strip()
    row["prompt"] = f"{text}\nYour program must pass these tests:\n" + "\n".join(shown)
    row["tests"] = [{"assert": test} for test in shown]
    if hidden := row.pop("challenge_test_list", None):
        row["hidden_tests"] = [{"assert": test} for test in hidden]
    if setup := row.pop("test_setup_code", None):
        row["setup"] = setup


def _read_apps(row: dict[str, Any], where: str) -> None:
    """Convert the key ``input_output`` to tests of a program or of the function ``fn_name``.

    Programs read standard input. In most APPS rows that test a function, each output is a list that
    contains only the return value; this list is removed.
    """
    tests = row.pop("input_output")
    if "problem_id" in row:
        row.setdefault("id", row["problem_id"])
    try:
        tests = json.loads(tests) if isinstance(tests, str) else tests
        name, inputs, outputs = tests.get("fn_name"), [*tests["inputs"]], [*tests["outputs"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        name, inputs, outputs = None, [], []
    if not inputs or len(inputs) != len(outputs):
        accepted = '{"inputs": [...], "outputs": [...]} of one length, as JSON'
        raise DataError(message(f"{where} input_output", f"{tests!r:.80}", accepted))
    if name is None:
        row["tests"] = [
            {"stdin": _text(given), "stdout": _text(answer)}
            for given, answer in zip(inputs, outputs, strict=True)
        ]
        return
    # The wrapper is removed only if every output has one, since a function may return a list of
    # one element.
    if all(isinstance(answer, list) and len(answer) == 1 for answer in outputs):
        outputs = [answer[0] for answer in outputs]
    pairs = zip(inputs, outputs, strict=True)
    row["tests"] = [{"args": args, "expected": answer} for args, answer in pairs]
    in_class = "class Solution" in str(row.get("starter_code", ""))
    row["entry_point"] = f"Solution().{name}" if in_class else name


def _text(lines: Any) -> str:
    return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
