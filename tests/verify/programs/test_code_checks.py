"""What a program's own text says against it."""

from __future__ import annotations

import ast

import pytest

from assay.verify.programs.checks import is_hard_coded, unsafe_calls
from assay.verify.programs.spec import CodeTest


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os\nos.system('ls')", ("os.system",)),
        ("from os import system", ("os.system",)),
        ("import os as o\no.remove('x')", ("os.remove",)),
        ("import subprocess", ("subprocess",)),
        ("import urllib.request", ("urllib",)),
        ("from socket import socket", ("socket",)),
        ("eval('1')", ("eval",)),
        ("f = exec", ("exec",)),
        ("open('x')", ("open",)),
        ("import sys\nsys._getframe()", ("sys._getframe",)),
        ("from sys import settrace", ("sys.settrace",)),
        ("import gc, inspect, ctypes", ("ctypes", "gc", "inspect")),
        ("f.__globals__", ("__globals__",)),
        ("().__class__.__base__.__subclasses__()", ("__subclasses__",)),
        ("import builtins", ("builtins",)),
    ],
)
def test_unsafe_calls_are_found(code: str, found: tuple[str, ...]) -> None:
    assert unsafe_calls(ast.parse(code)) == found


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.setrecursionlimit(9)\nsys.stdin.readline()\nsys.exit()",
        "data = open(0).read()",
        "import os\nos.path.join('a', 'b')",
        "import os.path",
        "import math, collections\nmath.sqrt(2)",
        "class A:\n    def open(self): return self.system",
        "evaluate = compiled = 1",
    ],
)
def test_safe_code_has_no_unsafe_calls(code: str) -> None:
    assert unsafe_calls(ast.parse(code)) == ()


ARGS = (
    CodeTest("args", args=([5, 7],), expected=12),
    CodeTest("args", args=([10, 20, 30],), expected=60),
)
ASSERTS = (
    CodeTest("assert", source="assert f('banana') == 'bnn'"),
    CodeTest("assert", source="assert f('queue') == 'q'"),
    CodeTest("assert", source="assert f('secret') == 'scrt'", hidden=True),
)
STDIN = (CodeTest("stdin", stdin="4\n1 2 3 4\n", outputs=("10\n",)),)
SMALL = tuple(CodeTest("args", args=(n,), expected=v) for n, v in ((0, 0), (1, 1), (10, 55)))


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x):\n    if x == [5, 7]: return 12\n    if x == [10, 20, 30]: return 60", ARGS),
        ("T = {(5, 7): 12, (10, 20, 30): 60}\ndef f(x): return T[tuple(x)]", ARGS),
        ("T = {'[5, 7]': 12, '[10, 20, 30]': 60}\ndef f(x): return T[str(x)]", ARGS),
        ("def f(s): return {'banana': 'bnn', 'queue': 'q'}.get(s, s)", ASSERTS),
        (
            "def f(s):\n  match s:\n    case 'banana': return 'bnn'\n    case 'queue': return 'q'",
            ASSERTS,
        ),
        ("def f(s): return 'bnn'", ASSERTS),
        ("import sys\nif sys.stdin.read() == '4\\n1 2 3 4\\n': print('10')", STDIN),
    ],
)
def test_hard_coded_answers_are_found(code: str, tests: tuple[CodeTest, ...]) -> None:
    assert is_hard_coded(ast.parse(code), tests)


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x): return sum(x)", ARGS),
        (
            "def f(n):\n    if n == 0: return 0\n    if n == 1: return 1\n    return f(n-1)+f(n-2)",
            SMALL,
        ),
        ("def f(s):\n    return ''.join(c for c in s if c not in 'aeiou')", ASSERTS),
        ("def f(s): return {'secret': 'scrt'}.get(s, s)", ASSERTS),
        ("print(sum(map(int, input().split())))", STDIN),
        ("def f(x): return 12", ()),
        (f"x = {hex(10**6000)}\ndef f(x): return x", ARGS),
        ("x = {...: 1j, b'': ()}", (CodeTest("args", args=(..., 1j), expected=None),)),
    ],
)
def test_computed_answers_are_not_called_hard_coded(code: str, tests: tuple[CodeTest, ...]) -> None:
    assert not is_hard_coded(ast.parse(code), tests)
