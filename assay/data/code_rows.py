"""Convert programming problems of public data sets to rows with ``prompt`` and ``tests``.

The verifier ``code`` judges programs: set ``data.verifier = "code"`` or ``--verifier code``. The
prompts of MBPP show the listed tests, as in the MBPP paper, and MBPP's challenge tests are hidden.
Prompts of HumanEval, CodeContests, APPS and TACO show no tests. `assay.data.forms` has the keys of
each format.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from assay.errors import DataError, cause, message

_ACCEPTED_TESTS = '{"inputs": [...], "outputs": [...]} of one length, as JSON'


def read_humaneval(row: dict[str, Any], where: str) -> None:
    """Convert a HumanEval row."""
    # A HumanEval prompt is the start of the program: imports, signature and docstring.
    # A completion may be only the function's body, so the verifier also gets the program's start.
    row["tests"] = [{"check": row.pop("test")}]
    if isinstance(row.get("prompt"), str):
        row["prompt_code"] = row["prompt"]


def read_code_contests(row: dict[str, Any], where: str) -> None:
    """Convert a programming problem whose tests are lists of inputs and outputs."""
    inputs, outputs = row.pop("inputs"), row.pop("outputs")
    if len(inputs) != len(outputs):
        found = f"{len(inputs)} inputs and {len(outputs)} outputs"
        raise DataError(message(where, found, "as many inputs as outputs"))
    row["tests"] = [
        {"stdin": stdin, "stdout": stdout} for stdin, stdout in zip(inputs, outputs, strict=True)
    ]


def read_mbpp(row: dict[str, Any], where: str) -> None:
    """Convert an MBPP row."""
    # Some tests of MBPP have Windows line ends.
    shown = [str(test).replace("\r\n", "\n") for test in row.pop("test_list")]
    text = row.pop("text").strip()
    row["prompt"] = f"{text}\nYour program must pass these tests:\n" + "\n".join(shown)
    row["tests"] = [{"assert": test} for test in shown]
    if hidden := row.pop("challenge_test_list", None):
        row["hidden_tests"] = [{"assert": test} for test in hidden]
    if setup := row.pop("test_setup_code", None):
        row["setup"] = setup


def read_mbpp_plus(row: dict[str, Any], where: str) -> None:
    """Convert a row of sanitized MBPP or of MBPP+; the longer tests of MBPP+ are hidden."""
    listed = [str(test) for test in row.pop("test_list")]
    imports = "\n".join(map(str, row.pop("test_imports")))
    row |= {"text": row.pop("prompt"), "test_list": listed}
    read_mbpp(row, where)
    if imports:
        row["setup"] = imports
    if (script := row.pop("test", None)) is not None:
        entry = _tested_name(listed, str(row.get("code")), where)
        row["hidden_tests"] = [{"check": _as_check(str(script), entry, where)}]
        row["entry_point"] = entry


def _tested_name(asserts: Sequence[str], code: str, where: str) -> str:
    """Return the function of the reference program that the tests call."""
    try:
        defined = {one.name for one in _parsed(code) if isinstance(one, ast.FunctionDef)}
        names = (one.id for one in _parsed("\n".join(asserts)) if isinstance(one, ast.Name))
        called = [name for name in names if name in defined]
    except SyntaxError:
        called = []
    if not called:
        accepted = "a test that calls a function of `code`"
        raise DataError(message(f"{where} test_list", "no such test", accepted))
    return called[0]


def _as_check(script: str, entry: str, where: str) -> str:
    """Return a test script as a function ``check(candidate)``, the form of HumanEval."""
    try:
        body = ast.parse(script).body
    except SyntaxError as error:
        found = f"no Python ({cause(error)})"
        raise DataError(message(f"{where} test", found, "a script of tests")) from error
    check = ast.parse(f"def check(candidate):\n    {entry} = candidate")
    function = cast("ast.FunctionDef", check.body[0])
    # `from module import *` is not allowed inside a function, so imports stay outside of `check`.
    imports = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
    function.body += [one for one in body if one not in imports]
    check.body[:0] = imports
    return ast.unparse(check)


def _parsed(text: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(text))


def read_apps(row: dict[str, Any], where: str) -> None:
    """Convert an APPS or TACO row."""
    if "problem_id" in row:
        row.setdefault("id", row["problem_id"])
    put_tests(row, row.pop("input_output"), f"{where} input_output")
    # TACO writes limits as text ("2.0 seconds") under the keys of the verifier's own limits.
    # TACO's limits hold for a contest's machine and for all languages, so they are removed.
    for key in ("time_limit", "memory_limit"):
        if isinstance(row.get(key), str):
            del row[key]
    # TACO writes lists as the text of a Python literal: "['Data structures', 'Hashing']".
    if isinstance(tags := row.get("tags"), str):
        row["tags"] = listed_text(tags)


def put_tests(row: dict[str, Any], tests: Any, place: str) -> None:
    """Set a row's ``tests`` from ``{"inputs", "outputs", "fn_name"}``, given as a dict or as JSON
    text.

    Tests with ``fn_name`` call the function of this name; other tests are programs that read
    standard input. In most APPS rows that test a function, each expected output is a list with only
    the return value; this list is removed. place: location of the tests in the data, for error
    messages.
    """
    try:
        tests = json.loads(tests) if isinstance(tests, str) else tests
        name, inputs, outputs = tests.get("fn_name"), [*tests["inputs"]], [*tests["outputs"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        name, inputs, outputs = None, [], []
    if not inputs or len(inputs) != len(outputs):
        raise DataError(message(place, f"{tests!r:.80}", _ACCEPTED_TESTS))
    if name is None:
        row["tests"] = [
            {"stdin": lines(given), "stdout": lines(answer)}
            for given, answer in zip(inputs, outputs, strict=True)
        ]
        return
    # The list is removed only if all outputs have one: a function may return a one-element list.
    if all(isinstance(answer, list) and len(answer) == 1 for answer in outputs):
        outputs = [answer[0] for answer in outputs]
    pairs = zip(inputs, outputs, strict=True)
    row["tests"] = [{"args": args, "expected": answer} for args, answer in pairs]
    row["entry_point"] = entry_point(name, row.get("starter_code"))


def entry_point(name: str, starter_code: Any) -> str:
    """Return the function under test: a method if the starter code has the class ``Solution``."""
    return f"Solution().{name}" if "class Solution" in str(starter_code or "") else name


def listed_text(text: str) -> list[str]:
    """Return the texts in a Python list literal; any other text is returned as the only element."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return [text]
    many = isinstance(value, Sequence) and not isinstance(value, str)
    return [one for one in value if isinstance(one, str)] if many else [text]


def lines(text: Any) -> str:
    """Return the text of a test; a test that is a list of lines is joined."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)
