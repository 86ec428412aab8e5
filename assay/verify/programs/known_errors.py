"""How the verifier ``code`` is known to be wrong, each with an example that is also a test."""

from __future__ import annotations

from assay.verify.base import KnownError


def _fenced(program: str) -> str:
    return f"```python\n{program}```\n"


KNOWN_ERRORS = (
    KnownError(
        "public tests alone cannot tell a program from a table of their answers: write hidden tests",
        {"entry_point": "square", "tests": [{"args": [3], "expected": 9}]},
        _fenced("def square(x):\n    return {3: 9}[x]\n"),
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "only the last block is read: a usage example after the program is taken for the program",
        {"entry_point": "square", "tests": [{"args": [3], "expected": 9}]},
        _fenced("def square(x):\n    return x * x\n")
        + "Use it so:\n"
        + _fenced("print(square(3))\n"),
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "two objects of the program's own class are equal when that class says so",
        {"tests": ["assert Money(2).doubled() == Money(4)"]},
        _fenced(
            "class Money:\n    def __init__(self, n):\n        self.n = n\n"
            "    def __eq__(self, other):\n        return isinstance(other, Money)\n"
            "    def doubled(self):\n        return self\n"
        ),
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "an object of a class that inherits list, dict, str or a number arrives as that plain value",
        {"tests": ["stack = Stack()\nstack.push(1)\nassert stack.top() == 1"]},
        _fenced(
            "class Stack(list):\n    push = list.append\n    def top(self):\n        return self[-1]\n"
        ),
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "where several outputs are right, only those that the test lists pass",
        {"tests": [{"stdin": "10\n", "stdout": "2 5\n"}]},
        _fenced("n = int(input())\nprint(n // 2, 2)\n"),
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "an expected whole number is not met by a float of its value; give types in the prompt",
        {"entry_point": "half", "tests": [{"args": [8], "expected": 4}]},
        _fenced("def half(x):\n    return x / 2\n"),
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "values travel as copies: a result is never the very object that was passed in",
        {"entry_point": "add", "tests": ["items = []\nassert add(items) is items"]},
        _fenced("def add(items):\n    items.append(1)\n    return items\n"),
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "programs and tests have the standard library and no other packages",
        {"entry_point": "total", "tests": [{"args": [[1, 2]], "expected": 3}]},
        _fenced("import numpy\n\n\ndef total(items):\n    return int(numpy.sum(items))\n"),
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "of an exception of the program's own class only the class and the text travel",
        {
            "tests": [
                "try:\n    f()\nexcept Full as error:\n    assert error.size == 3\nelse:\n    assert False"
            ]
        },
        _fenced("class Full(Exception):\n    size = 3\n\n\ndef f():\n    raise Full('no room')\n"),
        says="failed",
        should_say="passed",
    ),
)
