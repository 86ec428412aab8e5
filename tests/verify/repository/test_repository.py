"""Changes to a tree are judged by Python tests and commands, in the real sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.repository import repository
from assay.verify.repository.repository import REPOSITORY, judge_repository
from assay.verify.sandbox import SandboxUnavailable
from assay.verify.sandbox.own_sandbox import OwnSandbox, interpreter_folders
from assay.verify.selftest import labelled_pair, labelled_rows

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "main.py": "import sys\nfrom calc import add\nprint(add(*map(int, sys.stdin.read().split())))\n",
}
TESTS = {
    "files": FILES,
    "module": "calc",
    "tests": ["assert add(2, 3) == 5", "assert add(1, 0) == 1"],
}
COMMANDS = {
    "files": FILES,
    "commands": [{"command": ["python", "main.py"], "stdin": "2 3", "stdout": "5\n"}],
}
ROWS = list(labelled_rows("repository"))


def judge(text: str, **spec: Any) -> Part:
    return judge_repository(Problem("p", "Repair it.", spec), Completion.from_text(text))


def whole(body: str, path: str = "calc.py") -> str:
    return f"{path}\n```python\n{body}\n```\n"


RIGHT = whole("def add(a, b):\n    return a + b")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_labelled_row(row: dict[str, Any]) -> None:
    part = judge_repository(*labelled_pair("repository", row))
    assert part.value is not None and part.passed is (row["expected"] == "passed"), part


def test_labelled_set_is_large_enough() -> None:
    hacks = sum(row["kind"] == "hack" for row in ROWS)
    assert hacks >= 20 and len(ROWS) - hacks >= 40
    assert len({row["id"] for row in ROWS}) == len(ROWS)


def test_known_errors() -> None:
    assert len(REPOSITORY.known_errors) >= 2
    for known in REPOSITORY.known_errors:
        completion = Completion.from_text(known.completion, think=ThinkFormat("free"))
        part = judge_repository(Problem("p", "q", known.spec), completion)
        assert ("passed" if part.passed else "failed") == known.says != known.should_say, known.what


def test_tests_and_commands_count_together() -> None:
    both = {**TESTS, **COMMANDS, "credit": "fraction"}
    part = judge(RIGHT, **both)
    assert (part.value, part.components) == (1.0, {"applied": 1.0, "tests": 1.0, "commands": 1.0})
    part = judge(whole("def add(a, b):\n    return 1"), **both)
    assert part.value == pytest.approx(1 / 3) and not part.passed
    assert part.components == {"applied": 1.0, "tests": 0.5, "commands": 0.0}
    assert judge(whole("def add(a, b):\n    return 1"), **TESTS).value == 0.0
    part = judge("no change", **both)
    assert (part.value, part.components) == (0.0, {"applied": 0.0})


def test_the_detail_names_what_failed() -> None:
    assert (
        "calc.py: this file must not change" in judge(RIGHT, **TESTS, protected=["calc.py"]).detail
    )
    assert "must not change" in judge(RIGHT, **TESTS, editable=["src/*"]).detail
    assert judge(RIGHT, **TESTS, editable=["*.py"]).passed
    part = judge(whole("def add(a, b):\n    return a * b"), **COMMANDS)
    assert part.detail == "command 1: printed '6\\n'"
    assert part.extracted == "calc.py:\ndef add(a, b):\n    return a * b\n"


def test_modules_of_a_package_are_found_and_only_public_names_are_bound() -> None:
    files = {
        "app/core/__init__.py": "",
        "app/core/base.py": "STEP = 2\n_hidden = 3\n",
        "app/core/calc.py": "from . import base\nfrom app.core.base import STEP\n\n\ndef step(n):\n    return n\n",
    }
    spec = {"files": files, "module": "app.core.calc", "tests": ["assert step(1) == 3"]}
    body = (
        "from . import base\nfrom app.core.base import STEP\n\n\ndef step(n):\n    return n + STEP"
    )
    part = judge(whole(body, "app/core/calc.py"), **spec)
    assert part.passed, part


@pytest.mark.parametrize("text", ["```", "~~~~", "'''", '"""', "\\", "{'a': 1}", "é \u2028 \x00"])
def test_text_of_any_kind_can_be_in_a_file(text: str) -> None:
    body = f"TEXT = {text!r}\n\n\ndef add(a, b):\n    return a + b"
    files = {**FILES, "notes.py": f"# {text.replace(chr(0), '')}\n"}
    part = judge(f"calc.py\n`````python\n{body}\n`````\n", **{**TESTS, "files": files})
    assert part.passed, part


def test_each_command_has_a_fresh_tree() -> None:
    commands = [
        {"command": ["bash", "-c", "echo x > left; ls"], "stdout": "calc.py\nleft\nmain.py\n"},
        {
            "command": ["bash", "-c", "ls; cat calc.py | tail -1"],
            "stdout": "calc.py\nmain.py\n    return a + b\n",
        },
    ]
    assert judge(RIGHT, files=FILES, commands=commands).passed


def test_commands_have_no_network_and_see_no_files_of_the_host(tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    program = (
        "import os, socket\n"
        f"print(os.path.exists({str(secret)!r}))\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError as error:\n    print('refused')\n"
        "try:\n    os.fork()\nexcept OSError as error:\n    print('refused')\n"
    )
    commands = [{"command": ["python", "main.py"], "stdout": "False\nrefused\nrefused\n"}]
    part = judge(f"main.py\n```python\n{program}```\n", files=FILES, commands=commands)
    assert part.passed, part


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"module": "calc", "tests": ["assert add(1, 1) == 2"]}, "files: found missing"),
        ({"files": FILES}, "tests: found missing; accepted: tests, hidden_tests or commands"),
        ({"files": FILES, "tests": ["assert 1"]}, "module: found missing"),
        (
            {"files": FILES, "module": "calc", "commands": COMMANDS["commands"]},
            "tests: found missing",
        ),
        ({**TESTS, "files": {"../x": ""}}, "files: found"),
        ({**TESTS, "files": {}}, "files: found"),
        ({**TESTS, "module": "calc.py:add"}, "module: found"),
        ({**TESTS, "tests": ["assert ("]}, "tests"),
        ({**COMMANDS, "commands": [{"command": ["rm", "x"], "stdout": ""}]}, "commands: found"),
        ({**COMMANDS, "commands": [{"command": ["python", "x"]}]}, "commands: found"),
        ({**COMMANDS, "credit": "some"}, "credit: found"),
    ],
)
def test_a_malformed_spec_is_one_line_that_names_the_key(
    spec: Mapping[str, Any], fault: str
) -> None:
    assert REPOSITORY.check_spec is not None
    with pytest.raises(VerifierError) as caught:
        REPOSITORY.check_spec(spec)
    assert str(caught.value).startswith(fault) and "\n" not in str(caught.value)


def test_without_a_sandbox_commands_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SandboxUnavailable("no namespaces")

    monkeypatch.setattr(repository, "_own", OwnSandbox(interpreter_folders))
    monkeypatch.setattr("assay.verify.sandbox.own_sandbox.Sandbox", refuse)
    part = judge(RIGHT, **COMMANDS)
    assert part.value is None and part.reason == "unavailable" and "no namespaces" in part.detail
