"""Programs that import third-party packages, judged in the real sandbox."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem, Verdict
from assay.verify.programs.compare import compare, equal
from assay.verify.programs.program import Program, parse
from assay.verify.programs.running import ProgramRun
from assay.verify.programs.spec import read_spec
from assay.verify.sandbox import Sandbox
from assay.verify.sandbox.arrays import Array
from assay.verify.sandbox.packages import find_packages
from assay.verify.service import VerifierService

PACKAGES = ("numpy", "sympy")
DOUBLE = "import numpy as np\ndef f(x):\n    return np.array(x) * 2\n"


@pytest.fixture(scope="module")
def service() -> Generator[VerifierService]:
    with VerifierService(
        "code", num_workers=1, deadline=60.0, options={"code": {"packages": list(PACKAGES)}}
    ) as made:
        yield made


def judge(service: VerifierService, program: str, *tests: Any, **spec: Any) -> Verdict:
    problem = Problem("p", "Write f.", {"tests": list(tests), **spec})
    text = f"```python\n{program}\n```"
    return next(iter(service.judge_text([(problem, Completion.from_text(text))])))


# (program, test, status)
ROWS: dict[str, tuple[str, Any, str]] = {
    "array equals a list of data": (DOUBLE, {"args": [[1, 2]], "expected": [2, 4]}, "passed"),
    "array of floats, data of ints": (
        "import numpy as np\ndef f(x):\n    return np.array(x) / 1",
        {"args": [[1, 2]], "expected": [1, 2]},
        "failed",
    ),
    "array of other values": (DOUBLE, {"args": [[1, 2]], "expected": [2, 5]}, "failed"),
    "number of numpy": (
        "import numpy as np\ndef f(x):\n    return np.sum(x)",
        {"args": [[1, 2]], "expected": 3},
        "passed",
    ),
    "assert on an array of several items": (DOUBLE, "assert f([1, 2]) == [2, 4]", "failed"),
    "assert on an array of one item": (DOUBLE, "assert f([1]) == [2]", "passed"),
    "all of an array": (DOUBLE, "import numpy as np\nassert (f([1, 2]) == [2, 4]).all()", "passed"),
    "allclose": (DOUBLE, "assert np.allclose(f([1, 2]), [2, 4])", "passed"),
    "allclose of other values": (DOUBLE, "assert np.allclose(f([1, 2]), [2, 4.1])", "failed"),
    "types are kept": (
        DOUBLE,
        "a = np.arange(3, dtype=np.float32)\nassert f(a).dtype == np.float32 and f(a).shape == (3,)",
        "passed",
    ),
    "argument changed in place": (
        "def f(x):\n    x += 1",
        "a = np.arange(3)\nf(a)\nassert a.tolist() == [1, 2, 3]",
        "passed",
    ),
    "view of a matrix": (
        "def f(x):\n    return x.T[::-1]",
        "a = np.arange(6).reshape(2, 3)\nassert (f(a) == [[2, 5], [1, 4], [0, 3]]).all()",
        "passed",
    ),
    "integer of sympy": (
        "import sympy\ndef f(n):\n    return sympy.factorial(n)",
        "assert f(5) == 120",
        "passed",
    ),
    "expression as text": (
        "import sympy\ndef f():\n    x = sympy.Symbol('x')\n    return str(sympy.diff(x**3, x))",
        "assert f() == '3*x**2'",
        "passed",
    ),
    "package that is not listed": (
        "import networkx\ndef f(x):\n    return x",
        "assert f(1) == 1",
        "failed",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_program_with_packages(service: VerifierService, name: str) -> None:
    program, test, status = ROWS[name]
    verdict = judge(service, program, test)
    assert verdict.status == status, verdict


def test_script_with_numpy(service: VerifierService) -> None:
    program = "import numpy as np\nprint(np.array(input().split(), float).sum())"
    assert judge(service, program, {"stdin": "1 2.5\n", "stdout": "3.5\n"}).status == "passed"
    assert judge(service, program, {"stdin": "1 2.5\n", "stdout": "3.6\n"}).status == "failed"


def test_random_numbers_are_the_same_in_every_process(service: VerifierService) -> None:
    program = "import numpy as np\ndef f():\n    return float(np.random.rand())"
    assert judge(service, program, "assert f() == 0.5488135039273248").status == "passed"


def test_tests_that_import_an_unlisted_package_are_not_judged(service: VerifierService) -> None:
    verdict = judge(service, "def f(x):\n    return x", "import networkx\nassert f(1) == 1")
    assert (verdict.status, verdict.reason) == ("not_judged", "error")
    assert "import networkx" in verdict.detail
    assert "packages of verification.options.code.packages" in verdict.detail


def test_packages_of_a_row_are_not_read(service: VerifierService) -> None:
    program = "import networkx\ndef f(x):\n    return x"
    verdict = judge(service, program, "assert f(1) == 1", packages=["networkx"])
    assert verdict.status == "failed" and "No module named 'networkx'" in verdict.detail


def test_versions_are_facts_and_part_of_the_hash(service: VerifierService) -> None:
    with VerifierService("code", num_workers=1) as without:
        bare = without.describe()["code"]
    facts = service.describe()["code"]
    assert set(facts["versions"]) == {"mpmath", "numpy", "sympy"}
    assert "versions" not in bare and facts["hash"] != bare["hash"]


def test_hash_depends_on_versions() -> None:
    from assay.verify.programs.code_tests import CODE

    assert CODE.hash_with({}) == CODE.hash
    assert CODE.hash_with({"numpy": "1"}) != CODE.hash_with({"numpy": "2"})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["numpyy"], "did you mean numpy?"),
        (["json"], "programs always have the standard library"),
        (["assay"], "programs must not have the code that judges them"),
        (["numpy;os"], "accepted: installed packages"),
        ("numpy", "accepted: installed packages"),
    ],
)
def test_list_of_packages_that_is_wrong(names: Any, words: str) -> None:
    with pytest.raises(VerifierError, match=r"verification\.options\.code\.packages") as caught:
        VerifierService("code", num_workers=1, options={"code": {"packages": names}})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_missing_package_is_not_judged_where_it_is_needed() -> None:
    options = {"code": {"packages": ["zzq_absent"]}}
    fine = Problem("a", "", {"tests": ["assert f(1) == 1"]})
    needs = Problem("b", "", {"tests": ["import zzq_absent\nassert f(1) == 1"]})
    honest = Completion.from_text("```python\ndef f(x):\n    return x\n```")
    wants = Completion.from_text("```python\nimport zzq_absent\ndef f(x):\n    return x\n```")
    with VerifierService("code", num_workers=1, deadline=60.0, options=options) as service:
        assert service.lacks(fine) == "" and "pip install zzq_absent" in service.lacks(needs)
        pairs = [(fine, honest), (needs, honest), (fine, wants)]
        first, second, third = service.judge_text(pairs)
    assert first.status == "passed"
    assert second.reason == third.reason == "unavailable"
    assert "zzq_absent: not installed on this machine" in second.detail + third.detail


# Values of which only one pair has a truth value, and others.
EQUALITIES = [
    ("np.array([1])", "[1]"),
    ("np.array([[1.0]])", "[1]"),
    ("np.array([1])", "1"),
    ("np.array(1)", "[[1]]"),
    ("np.array([1, 2])", "[1, 2]"),
    ("np.array([1])", "[1, 1]"),
    ("np.array([])", "[]"),
    ("[np.array([1])]", "[[1]]"),
    ("(np.array([1]), 2)", "(1, 2)"),
    ("np.array(['a'])", "'a'"),
    ("np.array([1])", "None"),
    ("{'a': np.array([2])}", "{'a': 2}"),
    ("np.int64(3)", "3"),
    ("np.zeros((2, 0, 3))", "[]"),
]


@pytest.mark.parametrize(("value", "expected"), EQUALITIES)
def test_direct_comparison_equals_the_one_of_the_tests_process(value: str, expected: str) -> None:
    spec = read_spec(
        Problem("p", "", {"tests": [f"assert f() == {expected}"], "packages": ["numpy"]})
    )
    text = f"import numpy as np\ndef f():\n    return {value}\n"
    program = Program(text, text, "", parse(text)[0])
    with Sandbox(packages=find_packages(("numpy",))) as sandbox:
        slow, fast = (
            [each.passed for each in ProgramRun(sandbox, spec, program, direct=direct).results()]
            for direct in (False, True)
        )
    assert fast == slow


def test_array_in_the_worker() -> None:
    two = Array("<i8", (2, 2), [1, 2, 3, 4])
    assert two.tolist() == [[1, 2], [3, 4]] and "array([[1, 2], [3, 4]]" in repr(two)
    assert compare([[1, 2], [3, 4]], two, from_json=True) == "same"
    assert compare([[1, 2], [3, 5]], two, from_json=True) == "different"
    assert compare([1, 2, 3, 4], two, from_json=True) == "different"
    assert compare([[1, 2], [3, 4]], two, from_json=False) == "type"
    assert compare(two, Array("<i8", (4,), [1, 2, 3, 4]), from_json=False) == "different"
    assert compare(two, Array("<i8", (2, 2), [1, 2, 3, 4]), from_json=False) == "same"
    assert compare(two, [[1, 2], [3, 4]], from_json=False) == "type"
    assert not equal(two, [[1, 2], [3, 4]]) and equal(Array("|b1", (), [True]), True)


# What a program returns, and a test evaluates with sympy.
TEXTS = {
    "x**2 + 2*x + 1": "passed",
    "sqrt(x**2)**2 + 2*x + Integer(1)": "passed",
    "Rational(1, 2)*2 + x*(x + 2)": "passed",
    "x**2": "failed",
    "__import__('os')._exit(0)": "failed",
    "().__class__": "failed",
    "exec('import sys')": "failed",
    "lambdify([], 'open(1)')()": "failed",
    "[y for y in (1, 2)]": "failed",
    "sympify('eval(1)')": "failed",
    "Symbol('x')**2 + 2*Symbol('x') + Integer('__import__(\"os\")._exit(0)')": "failed",
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_a_program_is_not_executed_by_a_test(service: VerifierService, text: str) -> None:
    program = f"def f():\n    return {text!r}"
    test = (
        "import sympy\nx = sympy.Symbol('x')\n"
        "assert sympy.simplify(sympy.sympify(f()) - (x + 1)**2) == 0"
    )
    assert judge(service, program, test).status == TEXTS[text]


def test_text_does_not_change_the_tests_process(service: VerifierService) -> None:
    attack = "exec('import sympy; sympy.simplify = lambda *a: 0') or x"
    program = f"def f():\n    return {attack!r}"
    test = "import sympy\nx = sympy.Symbol('x')\ntry:\n    sympy.sympify(f())\nexcept Exception:\n    pass\nassert sympy.simplify(x) == 0"
    assert judge(service, program, test).status == "failed"


def test_object_cannot_point_numpy_at_the_tests_memory(service: VerifierService) -> None:
    program = (
        "class A:\n"
        "    __array_interface__ = {'data': (4096, False), 'shape': (2,), 'typestr': '<f8', 'version': 3}\n"
        "    def __eq__(self, other): return True\n"
        "def f(x):\n    return A()\n"
    )
    for test in (
        "assert np.allclose(f([1]), [2, 4])",
        "assert np.array_equal(f([1]), [2, 4])",
        "assert f([1]) == [2, 4]",
        "import numpy as np\nassert (np.array([2, 4]) == f([1])).all()",
    ):
        verdict = judge(service, program, test)
        assert verdict.status == "failed", verdict


def test_program_that_patches_numpy_patches_it_for_itself(service: VerifierService) -> None:
    program = (
        "import numpy as np\nnp.allclose = np.array_equal = np.all = lambda *a, **k: True\n"
        "class Same(np.ndarray):\n    def __eq__(self, other): return np.ones(2, bool)\n"
        "def f(x):\n    return np.zeros(2).view(Same)\n"
    )
    for test in (
        {"args": [[1]], "expected": [2, 4]},
        "assert np.allclose(f([1]), [2, 4])",
        "assert (f([1]) == [2, 4]).all()",
        "assert np.array_equal(f([1]), [2, 4])",
    ):
        assert judge(service, program, test).status == "failed", test
