"""Convert rows of LiveCodeBench, Open-R1 Codeforces, KodCode and SWE-bench.

LiveCodeBench's private tests are JSON text that is pickled, compressed with zlib and encoded in
base64. The pickle is never executed. Instead of loading the pickle, the reader parses its opcodes
and refuses a pickle that has more than one text.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from assay.data.benchmark_rows import add_tags
from assay.data.code_rows import entry_point
from assay.errors import DataError, message

# Maximum number of bytes of decompressed private tests.
# The largest published private tests take about 100 MB.
MAX_DECODED = 256 * 2**20
# Opcodes of a pickle that contains one text, in all pickle protocols of Python 3.
_TEXT_OPCODES = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_OTHER_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
_PRIVATE = "a JSON list of tests, or base64 of zlib of a pickled text with such a list"


def read_live_code_bench(row: dict[str, Any], where: str) -> None:
    """Convert a LiveCodeBench row. The private tests of LiveCodeBench become hidden tests."""
    text = str(row.pop("question_content")).strip()
    starter = row.get("starter_code") or ""
    if starter:
        text += f"\n\nComplete this code:\n```python\n{starter.rstrip()}\n```"
    else:
        text += "\n\nWrite a Python program that reads standard input and prints the answer."
    metadata = row.pop("metadata", None)
    name = _parsed(metadata, "{}", f"{where} metadata").get("func_name") if metadata else None
    if name:
        row["entry_point"] = entry_point(name, starter)
    place = f"{where} public_test_cases"
    shown = _parsed(row.pop("public_test_cases"), "[]", place)
    row["tests"] = [_test(one, name, place) for one in shown]
    place = f"{where} private_test_cases"
    if hidden := row.pop("private_test_cases", None):
        row["hidden_tests"] = [_test(one, name, place) for one in _private(hidden, place)]
    row["prompt"] = text
    if "question_id" in row:
        row.setdefault("id", row.pop("question_id"))
    add_tags(row, row.pop("platform", None), row.pop("difficulty", None))


def _parsed(value: Any, empty: str, place: str) -> Any:
    """Parse JSON text whose value has the type of ``empty``; a value of this type is returned
    unchanged.
    """
    kind = type(json.loads(empty))
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise DataError(message(place, f"{value!r:.80}", f"JSON like {empty}"))
    return found


def _private(value: Any, place: str) -> Any:
    """Return the private tests of a row, decoded without executing a pickle."""
    if not isinstance(value, str) or value.lstrip()[:1] == "[":
        return _parsed(value, "[]", place)
    try:
        packed = base64.b64decode(value, validate=True)
        decoder = zlib.decompressobj()
        data = decoder.decompress(packed, MAX_DECODED)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise DataError(message(place, f"{value!r:.60} ({error})", _PRIVATE)) from error
    if not decoder.eof:
        found = f"more than {MAX_DECODED:,} bytes of tests, or tests that are cut off"
        raise DataError(message(place, found, _PRIVATE))
    return _parsed(pickled_text(data, place), "[]", place)


def pickled_text(data: bytes, place: str) -> str:
    """Return the text in a pickle that contains one text; raises DataError for any other pickle.

    `pickletools.genops` parses the opcodes of a pickle without executing them.
    """
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT_OPCODES and not texts:
                texts.append(str(argument))
            elif opcode.name not in _OTHER_OPCODES:
                found = f"a pickle with the opcode {opcode.name}, which is not executed"
                raise DataError(message(place, found, _PRIVATE))
    except DataError:
        raise
    except Exception as error:  # The function genops raises various exceptions for damaged bytes.
        raise DataError(message(place, f"bytes that are no pickle ({error})", _PRIVATE)) from error
    if not texts:
        raise DataError(message(place, "a pickle without text", _PRIVATE))
    return texts[0]


def _test(test: Any, name: str | None, place: str) -> dict[str, Any]:
    """Return one test of LiveCodeBench, for the function ``name`` or for a program without a
    function name.
    """
    try:
        given, expected = test["input"], test["output"]
        if not name:
            return {"stdin": given, "stdout": expected}
        # Each line of LiveCodeBench's input is one argument of the function.
        args = [json.loads(line) for line in given.split("\n") if line.strip()]
        return {"args": args, "expected": json.loads(expected)}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        accepted = 'tests {"input", "output"}; those of a function are JSON, one argument a line'
        raise DataError(message(place, f"{test!r:.80}", accepted)) from error


def read_codeforces(row: dict[str, Any], where: str) -> None:
    """Convert a row of Open-R1's Codeforces set. The official tests of a Codeforces problem become
    hidden tests.
    """
    for key, found in (
        ("interaction_format", "an interactive problem"),
        ("generated_checker", "a problem whose answers need the row's own checker program"),
    ):
        if row.get(key):
            raise DataError(message(f"{where} {key}", found, "problems with one right output"))
    if row.get("input_mode") not in (None, "stdio"):
        raise DataError(message(f"{where} input_mode", repr(row["input_mode"]), "stdio"))
    examples = row.pop("examples", None) or []
    if "prompt" not in row:
        row["prompt"] = _codeforces_prompt(row, examples)
    for key in ("title", "description", "input_format", "output_format", "note", "editorial"):
        row.pop(key, None)
    place = f"{where} official_tests"
    tests = [_test(one, None, place) for one in row.pop("official_tests") or ()]
    if not tests:
        raise DataError(message(place, "no test", 'tests {"input", "output"}'))
    row["tests"] = [_test(one, None, f"{where} examples") for one in examples]
    row["hidden_tests"] = [one for one in tests if one not in row["tests"]]
    # Codeforces states limits for its own machine, in seconds of a compiled program.
    for key in ("time_limit", "memory_limit"):
        row.pop(key, None)
    if row.get("language") in (None, "python"):
        row.pop("language", None)
    else:
        row.setdefault("verifier", "program")
    if isinstance(row.get("tags"), list):
        row["tags"] = [tag for tag in row["tags"] if isinstance(tag, str)]


def read_code_contests(row: dict[str, Any], where: str) -> None:
    """Convert a row with CodeContests' published keys. Private and generated tests of CodeContests
    become hidden tests.
    """
    for key in ("input_file", "output_file"):
        if row.pop(key, None):
            raise DataError(message(f"{where} {key}", "a file", "standard input and output"))
    text = str(row.pop("description")).strip()
    row["prompt"] = (
        f"{text}\n\nWrite a Python program that reads standard input and prints the answer."
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for key in ("public_tests", "private_tests", "generated_tests"):
        given = row.pop(key, None) or {"input": [], "output": []}
        pairs = zip(given["input"], given["output"], strict=True)
        found[key] = [{"stdin": stdin, "stdout": stdout} for stdin, stdout in pairs]
    row["tests"] = found["public_tests"]
    row["hidden_tests"] = [*found["private_tests"], *found["generated_tests"]]
    if not row["tests"] and not row["hidden_tests"]:
        raise DataError(message(f"{where} public_tests", "no test", '{"input", "output"}'))
    # CodeContests states limits for the contest's machine, in seconds of a compiled program.
    for key in ("time_limit", "memory_limit_bytes", "solutions", "incorrect_solutions"):
        row.pop(key, None)
    if "name" in row:
        row.setdefault("id", row.pop("name"))


def _codeforces_prompt(row: Mapping[str, Any], examples: Sequence[Any]) -> str:
    parts = [str(row.get("title") or "").strip(), str(row["description"]).strip()]
    for key, name in (("input_format", "Input"), ("output_format", "Output"), ("note", "Note")):
        if row.get(key):
            parts.append(f"{name}\n{str(row[key]).strip()}")
    for one in examples:
        parts.append(
            f"Example input\n{one['input'].strip()}\nExample output\n{one['output'].strip()}"
        )
    language = {None: "Python", "python": "Python", "cpp": "C++"}.get(row.get("language"))
    program = f"a {language or row['language']} program"
    parts.append(f"Write {program} that reads standard input and prints the answer.")
    return "\n\n".join(filter(None, parts))


def is_kodcode(row: Mapping[str, Any]) -> bool:
    """Whether a row has pytest tests that import the module ``solution``."""
    tests = row.get("test", row.get("test_code"))
    return isinstance(tests, str) and "def test" in tests and "entry_point" not in row


def read_kodcode(row: dict[str, Any], where: str) -> None:
    """Convert a KodCode row: each pytest function becomes one hidden test."""
    key = "test" if "test" in row else "test_code"
    row["hidden_tests"] = pytest_tests(row.pop(key), f"{where} {key}")
    row["tests"] = []
    for info in row.pop("test_info", None) or ():
        if isinstance(info, Mapping) and info.get("function_name"):
            row.setdefault("entry_point", info["function_name"])
    if "question_id" in row:
        row.setdefault("id", row.pop("question_id"))
    add_tags(row, row.pop("subset", None), row.pop("style", None))


# This code replaces the common functions of pytest, which the sandbox does not have installed.
_PYTEST = """
class pytest:
    class raises:
        def __init__(self, kind, match=None):
            self.kind, self.match = kind, match
        def __enter__(self):
            return self
        def __exit__(self, kind, value, trace):
            import re
            assert kind is not None, "nothing was raised"
            self.value = value
            found = self.match is None or re.search(self.match, str(value)) is not None
            return issubclass(kind, self.kind) and found
    class approx:
        def __init__(self, expected, rel=None, abs=None, nan_ok=False):
            self.expected, self.rest = expected, (rel, abs, nan_ok)
        def __eq__(self, found):
            expected, (rel, least, nan_ok) = self.expected, self.rest
            if isinstance(expected, dict):
                return found.keys() == expected.keys() and all(
                    found[key] == pytest.approx(expected[key], *self.rest) for key in expected)
            if isinstance(expected, (list, tuple)):
                near = [pytest.approx(each, *self.rest) for each in expected]
                return len(found) == len(near) and all(a == b for a, b in zip(found, near))
            if found == expected:
                return True
            if expected != expected:
                return nan_ok and found != found
            if abs(expected) == float("inf"):
                return False
            # An absolute tolerance alone switches the relative one off.
            rel = rel if rel is not None else 1e-6 if least is None else 0.0
            gap = max(rel * abs(expected), 1e-12 if least is None else least)
            return abs(found - expected) <= gap
"""
_KNOWN_OF_PYTEST = ("raises", "approx", "mark")
_SET_UP = ("setup_module", "setup_function", "teardown_module", "teardown_function")


def pytest_tests(source: str, place: str) -> list[dict[str, str]]:
    """Split a pytest module into one test per test function, without imports of ``solution``.

    Statements outside test functions, such as helper functions, are copied to the start of each
    test. Raises DataError for code that does not compile, has no test, or does not import from
    ``solution``. Pytest features other than raises, approx and parametrize also raise DataError.
    """
    accepted = "test functions that use of pytest only raises, approx and parametrize"
    try:
        tree = ast.parse(source.replace("\r\n", "\n"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DataError(
            message(place, f"code that does not compile ({error})", accepted)
        ) from error
    # A block `if __name__ == "__main__"` is removed: the sandbox would run it, and lacks pytest.
    tree.body = [node for node in tree.body if not _is_main_block(node)]
    imported = False
    kept: list[ast.stmt] = []
    tests: list[ast.FunctionDef] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            imported = True
            if renamed := [one.name for one in node.names if one.asname]:
                raise DataError(message(place, f"{renamed[0]} under another name", accepted))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            tests.append(node)
        elif not _imports(node, "pytest") and not _calls_test(node):
            kept.append(node)
    if found := _unknown_use(tree, tests):
        raise DataError(message(place, found, accepted))
    if not tests:
        raise DataError(message(place, "no test function", accepted))
    if not imported:
        raise DataError(message(place, "no import from solution", accepted))
    if any(isinstance(node, ast.Name) and node.id == "pytest" for node in ast.walk(tree)):
        kept = [*ast.parse(_PYTEST).body, *kept]
    return [{"assert": _one_test(kept, test, place, accepted)} for test in tests]


def _imports(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Import) and [one.name for one in node.names] == [name]


def _calls_test(node: ast.stmt) -> bool:
    """Whether a statement only calls a test function, as at the end of some test modules."""
    match node:
        case ast.Expr(ast.Call(ast.Name(name))):
            return name.startswith("test")
        case _:
            return False


def _is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )


def _unknown_use(tree: ast.Module, tests: Sequence[ast.stmt]) -> str:
    """Return a use of pytest or of the module solution that a converted test cannot contain, or
    "".
    """
    in_with = {
        item.context_expr.func
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in _SET_UP:
                return f"the fixture {node.name}"
            if node.name.startswith("test") and tests and node not in tests:
                return f"{node.name}, which is asynchronous or within another block"
        if isinstance(node, ast.Name) and node.id == "solution":
            return "code that uses the module solution"
        if isinstance(node, ast.ImportFrom) and node.module == "pytest":
            return "a part of pytest that is imported by name"
        if isinstance(node, ast.alias) and node.name == "pytest" and node.asname:
            return "pytest under another name"
        match node:
            case ast.Attribute(ast.Name("pytest"), "raises") if node not in in_with:
                return "pytest.raises outside a with statement"
            case ast.Attribute(ast.Name("pytest"), attr) if attr not in _KNOWN_OF_PYTEST:
                return f"code that uses pytest.{attr}"
            case _:
                pass
    return ""


def _parameters(names: ast.expr) -> list[str] | None:
    """Return the parameter names of pytest's parametrize, given as one text or several; None for
    other code.
    """
    try:
        value = ast.literal_eval(names)
    except ValueError:
        return None
    several = value.split(",") if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        return None
    return [one.strip() for one in several if one.strip()]


def _one_test(kept: list[ast.stmt], test: ast.FunctionDef, place: str, accepted: str) -> str:
    """Return the code of one test function and of the statements that call it."""
    call = f"{test.name}()"
    if test.decorator_list or test.args.args:
        keys: list[str] | None = None
        match test.decorator_list:
            case [
                ast.Call(
                    ast.Attribute(ast.Attribute(attr="mark"), "parametrize"), [names, rows]
                ) as mark
            ] if {each.arg for each in mark.keywords} <= {"ids"}:
                keys = _parameters(names)
            case _:
                names = rows = ast.Constant(None)
        # A parameter without parametrize is a fixture, which converted tests cannot have.
        known = [one.arg for one in test.args.args]
        needed = known[: len(known) - len(test.args.defaults)]
        if keys is None or not {*needed} <= {*keys} <= {*known}:
            found = f"{test.name} with fixtures or other marks"
            raise DataError(message(place, found, accepted))
        # For one parameter name, parametrize lists plain values; for several, it lists tuples.
        one_value = isinstance(names, ast.Constant) and len(keys) == 1
        values = "[each]" if one_value else "each"
        call = f"for each in {ast.unparse(rows)}:\n    {test.name}(**dict(zip({keys!r}, {values})))"
        test.decorator_list = []
    return ast.unparse(ast.Module([*kept, test, *ast.parse(call).body], []))


def read_swe(row: dict[str, Any], where: str) -> None:
    """Convert an SWE-bench row that contains its repository's files; raises DataError for other
    rows.

    SWE-bench tests run in a checkout of the repository with packages of the time, which a published
    row does not contain.
    """
    if "files" not in row or not (row.get("tests") or row.get("commands")):
        found = f"{row['repo']} at {str(row['base_commit'])[:12]}, which the row does not contain"
        accepted = "a row that also has files (path: text), and tests or commands"
        remedy = "its patch cannot be judged without the repository and its environment"
        raise DataError(message(f"{where} base_commit", found, accepted, remedy))
    row["prompt"] = str(row.pop("problem_statement")).strip()
    row.setdefault("id", row.pop("instance_id", None))
    row.setdefault("verifier", "repository")
    add_tags(row, row["repo"])
    for key in ("repo", "base_commit"):
        row.pop(key)
