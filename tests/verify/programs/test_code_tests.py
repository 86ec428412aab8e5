"""Verifier ``code``: verdicts on programs, with every form of test."""

from __future__ import annotations

import json
import struct
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.programs import code_tests
from assay.verify.programs.code_tests import CODE, judge_code
from assay.verify.programs.program import find_program
from assay.verify.programs.running import ProgramRun
from assay.verify.programs.spec import read_spec
from assay.verify.sandbox import Sandbox, SandboxTrouble, SandboxUnavailable
from assay.verify.sandbox.process import Process

PINNED = (Path(__file__).parents[1] / "pinned") / f"code@{CODE.version}.jsonl"


@pytest.fixture(scope="module", autouse=True)
def _needs_a_sandbox() -> None:
    try:
        Sandbox().close()
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")


def judge(spec: dict[str, Any], program: str, **more: Any) -> Part:
    text = f"```python\n{program}\n```" if program else more.pop("text", "")
    think = ThinkFormat(more.pop("think", "free"))
    problem = Problem("p", more.pop("prompt", "Write it."), spec)
    return judge_code(problem, Completion.from_text(text, think=think))


def labelled() -> list[Any]:
    text = (files("assay.verify") / "labelled" / "code.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [pytest.param(row, id=row["id"]) for row in rows]


def of_row(row: dict[str, Any]) -> Part:
    labels = ("id", "prompt", "completion", "think", "expected", "kind")
    spec = {key: value for key, value in row.items() if key not in labels}
    problem = Problem("p", row.get("prompt", "Write it."), spec)
    think = ThinkFormat(row.get("think", "free"))
    return judge_code(problem, Completion.from_text(row["completion"], think=think))


@pytest.mark.parametrize("row", labelled())
def test_labelled(row: dict[str, Any]) -> None:
    part = of_row(row)
    assert part.passed is (row["expected"] == "passed"), part.detail


@pytest.mark.parametrize("row", PINNED.read_text(encoding="utf-8").splitlines())
def test_pinned(row: str) -> None:
    """A verdict may change with the version only."""
    pinned = json.loads(row)
    part = of_row(pinned["row"])
    assert [part.value, part.passed, dict(part.components)] == pinned["verdict"]


@pytest.mark.parametrize("known", CODE.known_errors, ids=lambda known: known.what[:40])
def test_known_errors(known: Any) -> None:
    part = judge_code(Problem("p", "q", known.spec), Completion.from_text(known.completion))
    assert part.passed is (known.says == "passed"), part.detail
    assert known.says != known.should_say


F = {"entry_point": "f", "tests": [{"args": [2], "expected": 4}]}


# what is counted


def test_credit() -> None:
    tests = [{"args": [n], "expected": n * n} for n in (1, 2, 3, 4)]
    hidden = [{"args": [n], "expected": n * n} for n in (5, 6)]
    spec = {"entry_point": "f", "tests": tests, "hidden_tests": hidden}
    half = "def f(n):\n    return n * n if n < 4 else 0"
    part = judge(spec, half)
    assert (part.value, part.passed) == (0.0, False)
    assert part.components["public"] == 0.75 and part.components["hidden"] == 0.0
    part = judge({**spec, "credit": "fraction"}, half)
    assert (part.value, part.passed) == (0.5, False)
    part = judge({**spec, "credit": "fraction"}, "def f(n): return n ** 2")
    assert (part.value, part.passed) == (1.0, True)
    assert part.components["hidden"] == 1.0


def test_each_fault_has_its_component() -> None:
    said = {
        "compile_error": "def f(x) return x",
        "timeout": "def f(x):\n    while True: pass",
        "memory": "def f(x): return bytearray(10 ** 10)",
    }
    spec = {**F, "time_limit": 0.3, "memory_limit": 128}
    for fault, program in said.items():
        part = judge(spec, program)
        assert part.passed is False
        found = {name: part.components[name] for name in said}
        assert found == {name: float(name == fault) for name in said}, part.detail


def test_a_fault_fails_its_own_test_only() -> None:
    spec = {
        "entry_point": "f",
        "credit": "fraction",
        "time_limit": 0.3,
        "tests": [{"args": [n], "expected": n} for n in range(4)],
    }
    hang = "def f(n):\n    while n == 1: pass\n    return n"
    assert judge(spec, hang).value == 0.75
    die = "import os\ndef f(n):\n    if n == 1: os._exit(0)\n    return n"
    assert judge(spec, die).value == 0.75
    hog = "def f(n):\n    return bytearray(10 ** 11) if n == 1 else n"
    assert judge(spec, hog).value == 0.75


def test_hopeless_programs_end_soon() -> None:
    tests = [{"args": [n], "expected": n} for n in range(40)]
    spec = {"entry_point": "f", "time_limit": 0.2, "tests": tests}
    part = judge(spec, "def f(n):\n    while True: pass")
    assert part.components["timeout"] == 1.0
    part = judge({**spec, "total_time": 0.1}, "def f(n): return sum(range(10 ** 6)) and n")
    assert part.passed is False and "0.1 s" in part.detail


def test_penalties_do_not_change_the_score() -> None:
    program = "import os\ndef f(x):\n    os.getpid()\n    return x + x\n" + "# " + "x" * 100
    part = judge({**F, "max_program": 80}, program)
    assert part.value == 1.0
    assert part.components["oversized"] == part.components["unsafe_calls"] == 1.0
    part = judge(F, "def f(x): return float(x * x)")
    assert (part.value, part.components["type_errors"]) == (0.0, 1.0)
    part = judge(F, "def f(x): return 4")
    assert (part.value, part.components["hard_coded"]) == (1.0, 1.0)


def test_determinism_is_checked_when_asked() -> None:
    clock = "import time\ndef f(x):\n    print(time.perf_counter_ns())\n    return x * x"
    assert "nondeterministic" not in judge(F, clock).components
    part = judge({**F, "check_determinism": True}, clock)
    assert part.passed and part.components["nondeterministic"] == 1.0
    part = judge({**F, "check_determinism": True}, "def f(x): return x * x")
    assert part.components["nondeterministic"] == 0.0


# what tests may do


def check(body: str, entry_point: str = "f", **more: Any) -> dict[str, Any]:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    source = f"def check(candidate):\n{lines}"
    return {"entry_point": entry_point, "tests": [{"check": source}], **more}


def test_arguments_changed_in_place() -> None:
    spec = check(
        "rows = [[2, 1], [3]]\nfirst = rows[0]\ncandidate(rows)\nassert first == [1, 2]\nassert rows == [[1, 2], [3], []]"
    )
    assert judge(spec, "def f(rows):\n    rows[0].sort()\n    rows.append([])").passed
    assert not judge(spec, "def f(rows): pass").passed
    spec = check("seen = {}\ncandidate(seen)\nassert seen == {1: 2}")
    assert judge(spec, "def f(seen): seen[1] = 2").passed


def test_exceptions_come_back_as_what_they_are() -> None:
    raises = "try:\n    candidate(0)\nexcept {}:\n    pass\nelse:\n    assert False"
    program = "class Odd(LookupError): pass\ndef f(x):\n    raise Odd('no')"
    assert judge(check(raises.format("Odd")), program).passed
    assert judge(check(raises.format("LookupError")), program).passed
    assert not judge(check(raises.format("ValueError")), program).passed
    assert judge(check(raises.format("ZeroDivisionError")), "def f(x): return 1 / x").passed
    text = "try:\n    candidate(0)\nexcept ValueError as error:\n    assert str(error) == 'low'"
    assert judge(check(text), "def f(x): raise ValueError('low')").passed


def test_printed_text_can_be_tested() -> None:
    body = "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    candidate()\nassert out.getvalue() == 'hi\\n'"
    assert judge(check(body), "def f(): print('hi')").passed
    assert not judge(check(body), "def f(): return 'hi'").passed


def test_randomness_in_tests_is_seeded() -> None:
    body = "import random\nassert candidate(random.random()) == 0"
    seen = {judge(check(body), "def f(x):\n    raise ValueError(x)").detail for _ in range(2)}
    assert len(seen) == 1 and "ValueError: 0." in seen.pop()


def test_setup_runs_with_the_tests_and_its_classes_with_both() -> None:
    setup = "import math\nSECRET = 42\nclass Node:\n    def __init__(self, value): self.value = value\nroot = Node(SECRET)\n"
    spec = {
        "setup": setup,
        "tests": ["assert f(root) == 42", "assert f(Node(7)) == math.floor(7.5)"],
    }
    assert judge(spec, "def f(node: Node): return node.value").passed
    assert not judge(
        spec,
        "def f(node):\n    try:\n        return SECRET\n    except NameError:\n        return 0",
    ).passed
    own = "class Node:\n    def __init__(self, value): self.value = value\ndef f(node): return node.value"
    assert judge(spec, own).passed


def test_setup_after_the_program_as_in_mbpp() -> None:
    spec = {
        "setup": "root = Node(1) \r\nroot.left = Node(2)",
        "tests": ["assert (size(root)) == 2"],
    }
    program = "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\ndef size(n):\n    return 0 if n is None else 1 + size(n.left)"
    assert judge(spec, program).passed


def test_a_builtin_name_may_be_the_function_under_test() -> None:
    assert judge({"tests": ["assert sum(10, 15) == 6"]}, "def sum(a, b): return a - b + 11").passed
    spec = {"tests": ["assert len(f(3)) == 3"]}
    assert not judge(spec, "def f(n): return []\ndef len(x): return 3").passed
    spec = {"tests": ["assert max(f(3), 3) == 3"], "entry_point": "f"}
    assert not judge(spec, "def f(n): return 9\ndef max(*a): return 3").passed


def test_entry_points() -> None:
    tests = [{"args": [3], "expected": 6}]
    program = "class S:\n    def f(self, x): return 2 * x\n    @staticmethod\n    def g(x): return 2 * x\ndef h(x): return 2 * x\ndef _help(): pass"
    for entry in ("S().f", "S.g", "h", None):
        assert judge({"tests": tests, "entry_point": entry}, program).passed
    for entry in ("S.f", "S().nothing", "nothing", "T().f"):
        assert not judge({"tests": tests, "entry_point": entry}, program).passed
    assert judge(check("assert candidate(3) == 6", "S().f"), program).passed


def test_keyword_arguments_and_mixed_forms() -> None:
    spec = {
        "entry_point": "f",
        "tests": [
            {"args": [1], "kwargs": {"y": 2}, "expected": 3},
            "assert f(1, y=1) == 2",
            {"stdin": "", "stdout": ["no", "yes"]},
        ],
    }
    assert judge(spec, "def f(x, y): return x + y\nprint('yes')").passed


def test_generated_cases_are_the_same_every_time() -> None:
    test = {
        "generate": "def generate(rng):\n    return [rng.random() for _ in range(3)],\n",
        "reference": "def f(items):\n    items.sort()\n    return tuple(items)\n",
        "cases": 5,
    }
    spec = {"entry_point": "f", "tests": [test]}
    assert judge(spec, "def f(items): return tuple(sorted(items))").passed
    wrong = {judge(spec, "def f(items): return tuple(items)").detail for _ in range(2)}
    assert len(wrong) == 1
    part = judge(spec, "def f(items): return sorted(items)")
    assert not part.passed and part.components["type_errors"] == 1.0
    other = judge({"entry_point": "f", "tests": [{**test, "seed": 1}]}, "def f(items): return ()")
    assert other.detail != judge(spec, "def f(items): return ()").detail


def test_generated_cases_compare_what_a_method_does_to_its_arguments() -> None:
    test = {
        "generate": "def generate(rng):\n    return ([rng.randint(0, 9) for _ in range(9)],)",
        "reference": "def f(items):\n    items.sort()",
    }
    spec = {"entry_point": "S().f", "tests": [test]}
    assert judge(spec, "class S:\n    def f(self, items): items[:] = sorted(items)").passed
    assert not judge(spec, "class S:\n    def f(self, items): items.reverse()").passed


def test_direct_asserts_say_what_the_tests_process_says() -> None:
    lines = [
        "assert f([1, 2]) == 3",
        "assert f((1, 2)) == 3",
        "assert f([]) == False",
        "assert f([-1]) == -1.0",
        "assert f(['a']) == 'a'",
        "assert f([1], start=4) == 5",
        "assert f([[1]], []) == [1]",
    ]
    programs = [
        "f = sum",
        "def f(x, start=0): return x",
        "def f(x, start=0): return len(x)",
        "f = 3",
    ]
    with Sandbox() as sandbox:
        for program in programs:
            spec = read_spec(Problem("p", "q", {"tests": lines}))
            found = find_program(Completion.from_text(f"```\n{program}\n```"))
            assert found is not None
            runs = [
                ProgramRun(sandbox, spec, found, direct=direct).results()
                for direct in (True, False)
            ]
            assert [one.passed for one in runs[0]] == [one.passed for one in runs[1]]


# what is not the submission's fault


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "tests"),
        ({"tests": "assert f(1) == 1"}, "tests"),
        ({"tests": []}, "no test"),
        ({"tests": [{"assert": "assert f(1) =="}]}, "SyntaxError"),
        ({"tests": [{"expect": 1}]}, "tests"),
        ({"tests": [{"args": [1], "expected": 1, "note": "x"}]}, "tests"),
        ({"tests": [{"check": "def test(c): pass"}]}, "check"),
        (
            {"tests": [{"generate": "def generate(rng): return ()", "reference": "x = 1"}]},
            "reference",
        ),
        ({**F, "time_limit": 0}, "time_limit"),
        ({**F, "time_limit": True}, "time_limit"),
        ({**F, "memory_limit": 1}, "memory_limit"),
        ({**F, "credit": "some"}, "credit"),
        ({**F, "entry_point": "f(x)"}, "entry_point"),
        ({**F, "setup": "def"}, "setup"),
        ({**F, "stdout_rule": "loose"}, "stdout_rule"),
    ],
)
def test_malformed_specs_are_errors(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(VerifierError, match=told):
        judge(spec, "def f(x): return x * x")


def test_code_of_a_row_that_raises_is_an_error() -> None:
    spec = {
        "entry_point": "f",
        "tests": [{"generate": "def generate(rng): return 1 / 0", "reference": "def f(): pass"}],
    }
    with pytest.raises(VerifierError, match="ZeroDivisionError"):
        judge(spec, "def f(x): return x")


def test_trouble_of_the_sandbox_is_no_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise SandboxTrouble("its zygote ended")

    def unavailable(unsafe: bool) -> Any:
        raise SandboxUnavailable("no namespaces")

    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "load", broken)
        with pytest.raises(SandboxTrouble):
            judge(F, "def f(x): return x * x")
    assert judge(F, "def f(x): return x * x").passed  # with a fresh one
    with monkeypatch.context() as patch:
        patch.setattr(code_tests, "_sandbox", unavailable)
        part = judge(F, "def f(x): return x * x")
    assert (part.value, part.reason) == (None, "unavailable")


@pytest.mark.parametrize(
    "returned",
    [
        "range(10 ** 30)",
        "__import__('decimal').Decimal('sNaN')",
        "10 ** 5000",
        "[10 ** 5000]",
        "'\\ud800'",
        "{float('nan'): 1}",
        "(x for x in iter(int, 1))",
        "print",
        "f",
        "type('T', (), {})",
        "__import__('math')",
        "NotImplemented",
        "...",
        "bytearray(10 ** 7)",
        "[0] * 10 ** 6",
        "memoryview(b'x')",
    ],
)
@pytest.mark.parametrize("form", ["args", "assert", "check"])
def test_strange_values_are_judged_failed(returned: str, form: str) -> None:
    tests = {
        "args": {"args": [2], "expected": [2.5, {"a": 1}]},
        "assert": {"assert": "assert f(2) == [2.5]"},
        "check": {
            "check": "def check(candidate):\n    x = candidate(2)\n    assert sorted([x, 1]) == [1, 2]"
        },
    }
    part = judge({"entry_point": "f", "tests": [tests[form]]}, f"def f(x): return {returned}")
    assert part.passed is False


def test_arguments_that_cannot_travel_are_the_rows_fault() -> None:
    nested: list[Any] = []
    for _ in range(300):
        nested = [nested]
    with pytest.raises(VerifierError, match="arguments"):
        judge(
            {"entry_point": "f", "tests": [{"args": [nested], "expected": 1}]}, "def f(x): return 1"
        )


def test_long_outputs_can_be_expected() -> None:
    spec = {"tests": [{"stdin": "", "stdout": "x" * 6_000_000}]}
    assert judge(spec, "print('x' * 6_000_000)").passed
    assert not judge(spec, "print('x' * 5_999_999)").passed


def test_without_isolation_the_user_must_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sandbox.__init__

    def impossible(self: Sandbox, *, unsafe: bool = False, **more: Any) -> None:
        if not unsafe:
            raise SandboxUnavailable("no namespaces")
        whole(self, unsafe=True, **more)

    code_tests._close()
    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "__init__", impossible)
        part = judge(F, "def f(x): return x * x")
        assert (part.value, part.reason) == (None, "unavailable")
        assert judge({**F, "unsafe_no_sandbox": True}, "def f(x): return x * x").passed
    code_tests._close()
    isolated = judge({**F, "unsafe_no_sandbox": True}, "import os\ndef f(x): return os.getuid()")
    assert "returned 0" not in isolated.detail  # walls stand wherever they can


def test_a_test_that_needs_another_package_is_the_rows_fault() -> None:
    with pytest.raises(VerifierError, match="no_such_package"):
        judge(check("import no_such_package\nassert candidate(1) == 1"), "def f(x): return x")
    setup = {"setup": "import no_such_package"}
    with pytest.raises(VerifierError, match="no_such_package"):
        judge(check("assert candidate(1) == 1", **setup), "def f(x): return x")
    spec = check("assert candidate(1) == 1")
    assert judge(spec, "def f(x):\n    import no_such_package").passed is False


def test_what_is_expected_never_enters_the_programs_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that is sent to the process that holds the program is looked through."""
    secret = 918_273_645
    marks = (str(secret).encode(), struct.pack("<q", secret), b"SECRET")
    check_source = (
        f"SECRET = {secret}\ndef check(candidate):\n    assert candidate(lambda x: x) == SECRET\n"
    )
    spec = {
        "entry_point": "f",
        "setup": f"import math\nSECRET = {secret}\ndef helper(): return SECRET\n",
        "prompt_code": "",
        "tests": [
            {"args": [1], "expected": secret},
            f"assert f(2) == {secret}",
            f"assert f([3]) in ({secret}, None)",
            {"check": check_source},
            {"property": f"def check(candidate, rng):\n    assert candidate(rng.random()) == {secret}"},
            {"generate": "def generate(rng): return rng.random(),", "reference": f"def f(x): return {secret}"},
        ],
        "hidden_tests": [{"stdin": "5", "stdout": f"{secret}"}],
    }  # fmt: skip
    sent: dict[int, bytearray] = {}
    whole = Process.send

    def send(self: Process, data: bytes) -> None:
        sent.setdefault(self.pid, bytearray()).extend(data)
        whole(self, data)

    monkeypatch.setattr(Process, "send", send)
    program = "def f(x):\n    return None if isinstance(x, list) else 'marker of the program'"
    part = judge({**spec, "credit": "fraction"}, program)
    assert part.value == 1 / 7, part.detail
    to_program = [data for data in sent.values() if b"def f(x)" in data and b"marker" in data]
    to_tests = [data for data in sent.values() if b"def check" in data]
    assert len(to_program) == 2 and to_tests  # one for calls, one for standard input
    assert all(mark not in data for data in to_program for mark in marks)
    assert any(mark in data for data in to_tests for mark in marks)


def test_warnings_of_rows_and_programs_are_their_authors() -> None:
    spec = {
        "entry_point": "f",
        "setup": "pattern = '\\.'",
        "tests": [
            "assert f('\\.') == pattern",
            {"check": "def check(candidate):\n    assert candidate('\\.') == '\\.'"},
        ],
    }
    assert judge(spec, "def f(x):\n    return '\\.' if x is not 5 else ''").passed
