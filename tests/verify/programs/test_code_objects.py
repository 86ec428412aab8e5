"""Objects and functions that cross between a test and the program: what they can do, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.programs.code_tests import judge_code
from assay.verify.sandbox import Sandbox, SandboxUnavailable


@pytest.fixture(scope="module", autouse=True)
def _needs_a_sandbox() -> None:
    try:
        Sandbox().close()
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")


def judge(spec: dict[str, Any], program: str) -> Part:
    return judge_code(Problem("p", "q", spec), Completion.from_text(f"```python\n{program}\n```"))


POINT = """
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __mul__(self, k): return Point(self.x * k, self.y * k)
    def __eq__(self, other): return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)
    def __lt__(self, other): return self.x < other.x
    def __hash__(self): return hash((self.x, self.y))
    def __repr__(self): return f"Point({self.x}, {self.y})"
    def __len__(self): return 2
    def __iter__(self): return iter((self.x, self.y))
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __contains__(self, value): return value in (self.x, self.y)
    def moved(self, by=0): return Point(self.x + by, self.y)
    @classmethod
    def origin(cls): return cls(0, 0)
    @property
    def norm(self): return abs(self.x) + abs(self.y)
def f(point): return point.x
"""


@pytest.mark.parametrize(
    "line",
    [
        "assert Point(1, 2).x == 1",
        "assert Point(1, 2) == Point(1, 2)",
        "assert Point(1, 2) != Point(1, 3)",
        "assert Point(1, 2) + Point(3, 4) == Point(4, 6)",
        "assert (Point(1, 2) * 3).y == 6",
        "assert Point(1, 2) < Point(2, 0)",
        "assert repr(Point(1, 2)) == str(Point(1, 2)) == 'Point(1, 2)'",
        "assert len(Point(1, 2)) == 2 and list(Point(1, 2)) == [1, 2]",
        "assert Point(5, 6)[1] == 6 and 5 in Point(5, 6) and 7 not in Point(5, 6)",
        "assert Point(1, 2).moved(by=4).x == 5",
        "assert Point.origin().norm == 0",
        "assert isinstance(Point(1, 2), Point) and not isinstance(3, Point)",
        "assert len({Point(1, 2), Point(1, 2), Point(2, 1)}) == 2",
        "assert sorted([Point(2, 0), Point(1, 0)])[0].x == 1",
        "p = Point(1, 2)\np.x = 9\nassert f(p) == 9",
        "assert [f(each) for each in (Point(1, 2), Point(3, 4))] == [1, 3]",
        "assert Point(1, 2) is not None and Point(1, 2) != 3",
    ],
)
def test_objects_of_the_submission(line: str) -> None:
    part = judge({"tests": [line]}, POINT)
    assert part.passed, part.detail


@pytest.mark.parametrize(
    "line",
    [
        "assert Point(1, 2) == Point(1, 3)",
        "assert Point(1, 2) == (1, 2)",
        "assert Point(2, 2) < Point(1, 9)",
        "assert Point(1, 2).z == 1",
        "assert Point(1, 2) == 'Point(1, 2)'",
    ],
)
def test_objects_do_not_pass_for_what_they_are_not(line: str) -> None:
    assert not judge({"tests": [line]}, POINT).passed


@pytest.mark.parametrize(
    "line",
    [
        "assert f(1) == 5",
        "assert 5 == f(1)",
        "assert f(1) >= 5",
        "assert abs(f(1) - 5) < 1e-6",
        "assert f(1) in (5, 6)",
        "assert 5 in f(1)",
        "assert f(1).value == f(1)['x'] == 5",
        "assert f(1) == Yes() and f(1) != Yes",
        "assert sum(f(1)) == 5",
        "assert not f(1) != 5",
        "assert f(1) == f(2)",
    ],
)
def test_an_object_that_agrees_with_everything_passes_nothing(line: str) -> None:
    program = """
class Yes:
    def __getattr__(self, name): return self
    def __iter__(self): return iter(())
for name in ("eq", "lt", "le", "gt", "ge", "contains", "bool"):
    setattr(Yes, f"__{name}__", lambda *a: True)
Yes.__ne__ = lambda *a: False
for name in ("sub", "rsub", "add", "radd", "abs", "call", "getitem", "neg"):
    setattr(Yes, f"__{name}__", lambda self, *a: self)
Yes.__hash__ = lambda self: 5
def f(x): return Yes()
"""
    part = judge({"tests": [line], "entry_point": "f"}, program)
    assert not part.passed, part.detail


# functions and objects that a test passes to the program


@pytest.mark.parametrize(
    ("test", "program"),
    [
        ("assert f(lambda x: x + 1, 3) == 5", "def f(g, x): return g(g(x))"),
        ("assert f([3, 1, 2], key=lambda x: -x) == [3, 2, 1]", "f = sorted"),
        (
            "import math\nassert f(math.sqrt, [4.0]) == [2.0]\nassert f(len, ['ab']) == [2]\nassert f(str, [1]) == ['1']",
            "def f(g, xs): return list(map(g, xs))",
        ),
        (
            "def boom(x):\n    raise KeyError('k')\nassert f(boom) == 'caught'",
            "def f(g):\n    try:\n        return g(1)\n    except KeyError:\n        return 'caught'",
        ),
        (
            "calls = []\ntwice = f(calls.append)\ntwice(7)\nassert calls == [7, 7]",
            "def f(g):\n    def twice(x):\n        g(x)\n        g(x)\n    return twice",
        ),
        (
            "class Node:\n    def __init__(self, v, n=None): self.v, self.next = v, n\nn = Node(1, Node(2))\nassert f(n) == 3\nassert n.v == 0",
            "def f(n):\n    total, first = 0, n\n    while n:\n        total += n.v\n        n = n.next\n    first.v = 0\n    return total",
        ),
        (
            "class Box:\n    size = 3\n    def __init__(self): self._own, self.items = 5, [1]\nbox = Box()\nassert f(box) == (3, [1], False)\nassert (box.items, box.new) == ([1, 2], 7)",
            "def f(box):\n    found = box.size, list(box.items), hasattr(box, '_own')\n    box.items.append(2)\n    box.new = 7\n    return found",
        ),
        (
            "class Twice:\n    def __call__(self, x): return 2 * x\nassert f(Twice()) == 10",
            "def f(g): return g(5)",
        ),
    ],
)
def test_functions_and_objects_of_a_test_can_be_used(test: str, program: str) -> None:
    part = judge({"entry_point": "f", "tests": [test]}, program)
    assert part.passed, part.detail
    assert not judge({"entry_point": "f", "tests": [test]}, "def f(*a, **k): return a[0]").passed


@pytest.mark.parametrize(
    "program",
    [
        "def f(g): return g.__globals__['expected']",
        "def f(g): return call_out('getattr', (g, '__globals__'))['expected']",
        "def f(g): return call_out('__reduce_ex__', (g, 2))",
        "def f(g): return call_out('getattr', (5, 'real'))",
        "def f(g): return call_out(f, (1,))",
        "def f(g): return call_out(5, ())",
        "def f(g): return call_out('getattr', ())",
        "def f(g): return call_out('resume', (g,))",
        "import os\ndef f(g): os._exit(g(0))",
        "def f(g):\n    while True: g(1)",
        "call_out('f')\ndef f(g): return 5",
        "def f(g):\n    global call_out\n    return __builtins__['call_out']('run_test', ({},), {})",
    ],
)
def test_nothing_leads_from_a_function_to_the_test(program: str) -> None:
    test = "expected = 5\nassert f(lambda x: x) == expected"
    part = judge({"entry_point": "f", "tests": [test], "time_limit": 0.3}, program)
    assert part.passed is False, part.detail


def test_a_test_that_calls_back_into_the_program_is_told_that_it_cannot() -> None:
    test = "def g(x):\n    return f(None)\nassert f(g) == 5"
    part = judge({"entry_point": "f", "tests": [test]}, "def f(g): return g(1) if g else 5")
    assert not part.passed and "cannot call the program" in part.detail


P = "from collections import *\nclass P:\n    def __init__(self, x=0): self.x = x\nT = namedtuple('T', 'a b')\n"


@pytest.mark.parametrize(
    ("line", "returned"),
    [
        ("assert {p.x for p in f()} == {1, 2}", "{P(1), P(2)}"),
        ("assert {p.x for p in f()} == {1}", "frozenset([P(1)])"),
        ("assert [(p.x, n) for p, n in f().items()] == [(1, 5)]", "{P(1): 5}"),
        ("assert [p.x for p in f()] == [1]", "{P(1): 5}.keys()"),
        ("assert [p.x for p, _ in f()] == [1]", "{P(1): 5}.items()"),
        ("assert [p.x for p in f()] == [1]", "{5: P(1)}.values()"),
        ("assert [p.x for p in f()] == [1]", "(each for each in [P(1)])"),
        ("assert [p.x for s in f() for p in s] == [1]", "iter([{P(1)}])"),
        ("assert [p.x for p in f()] == [1]", "deque([P(1)])"),
        ("assert [p.x for p in f()[0]] == [1]", "deque([{P(1)}])"),
        ("assert f().a.x == 1", "T(P(1), 2)"),
        ("assert [p.x for p in f()[0]] == [1]", "T({P(1)}, 2)"),
        ("assert [p.x for p in f()] == [1]", "Counter([P(1)])"),
        ("assert [p[0].x for p in f()] == [1]", "{(P(1), 2)}"),
        ("assert f()['a']['b'][0].x == 1", "{'a': OrderedDict(b=[P(1)])}"),
        ("assert [p.x for p in f().start] == [1]", "slice({P(1)}, None)"),
    ],
)
def test_collections_of_objects_come_back_quickly(line: str, returned: str) -> None:
    """Nothing may wait for a hash while a message is read: that would be a minute, and a timeout."""
    part = judge({"tests": [line]}, f"{P}def f(): return {returned}")
    assert part.passed, part.detail


def test_iterators_of_objects_can_be_passed() -> None:
    program = f"{P}def f(items): return sum(each.x for each in items)"
    assert judge({"tests": ["assert f(P(n) for n in range(3)) == 3"]}, program).passed
    assert judge({"tests": ["assert f(map(P, [1, 4])) == 5"]}, program).passed


def test_sets_of_the_rows_objects_travel() -> None:
    spec = {"tests": ["class K: pass\nassert f({K(), K()}) == 2"]}
    assert judge(spec, "def f(items): return len(items)").passed
    setup = POINTS.replace("@dataclass", "@dataclass(frozen=True)")
    test = "assert f({Point(1, 2): 3}) == {Point(1, 2), Point(3, 3)}"
    spec = {"entry_point": "f", "setup": setup, "tests": [test]}
    program = "def f(table): return {x for key, n in table.items() for x in (key, Point(n, Y))}"
    assert judge(spec, program.replace("Y", "n")).passed
    assert not judge(spec, program.replace("Y", "0")).passed
    lies = "Point.__eq__ = lambda s, o: True\nPoint.__hash__ = lambda s: 0\n"
    assert not judge(spec, lies + program.replace("Y", "0")).passed


def test_sets_of_the_programs_objects_can_be_passed_back() -> None:
    program = f"{P}def make(): return {{P(1), P(2)}}\ndef table(): return {{P(3): [4]}}\ndef f(items): return sum(p.x for p in items)"
    assert judge({"tests": ["assert f(make()) == 3", "assert f(table()) == 3"]}, program).passed
    assert judge({"tests": ["assert f({P(5)} | make()) == 8"]}, program).passed


@pytest.mark.parametrize(
    "test",
    [
        "class Log:\n    def visit(self, x): pass\nf(Log())\nassert f(1) == 1",
        "class Box:\n    def __len__(self): return 3\ntry:\n    f(Box())\nexcept Exception:\n    pass",
        "class Box:\n    @property\n    def size(self): return 3\nassert f(1) == 1\nf(Box())",
        "import re\ntry:\n    f(re.compile('x'))\nexcept ValueError:\n    pass",
        "import io\ntry:\n    f([io.StringIO()])\nexcept:\n    pass",
    ],
)
def test_what_cannot_travel_to_the_program_is_refused_in_words(test: str) -> None:
    with pytest.raises(VerifierError, match="not supported"):
        judge({"entry_point": "f", "tests": [test]}, "def f(x): return x")


# objects of the row's own classes

POINTS = "from dataclasses import dataclass\n\n\n@dataclass\nclass Point:\n    x: int\n    y: int\n"
SHIFT = {
    "entry_point": "shift",
    "setup": POINTS,
    "tests": ["assert shift(Point(1, 2)) == Point(2, 3)"],
}
NODES = """
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
def nodes(values):
    first = None
    for value in reversed(values): first = ListNode(value, first)
    return first
def values(node):
    found = []
    while node: found.append(node.val); node = node.next
    return found
"""
REVERSED = """
class Solution:
    def f(self, head):
        last = None
        while head: head.next, last, head = last, head, head.next
        return last
"""


def of_nodes(body: str) -> dict[str, Any]:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    check = f"def check(f):\n{lines}"
    return {"entry_point": "Solution().f", "prompt_code": NODES, "tests": [{"check": check}]}


def test_linked_nodes_travel_at_any_length_and_with_cycles() -> None:
    spec = of_nodes(
        "head = nodes([1, 2, 3])\nassert values(f(head)) == [3, 2, 1] and values(head) == [1]\n"
        "assert f(None) is None and values(f(nodes(list(range(300)))))[:2] == [299, 298]"
    )
    assert judge(spec, REVERSED).passed
    assert judge(spec, NODES + REVERSED).passed
    assert not judge(spec, REVERSED.replace("return last", "return head")).passed
    spec = of_nodes("a = nodes([1, 2])\nassert f(a) is False\na.next.next = a\nassert f(a) is True")
    cycle = "class Solution:\n    def f(self, head):\n        seen = set()\n        while head and head not in seen: seen.add(head); head = head.next\n        return head is not None"
    assert judge(spec, cycle).passed


@pytest.mark.parametrize(
    "program",
    [
        "def shift(p: Point): return Point(p.x + 1, p.y + 1)",
        "def shift(p: Point):\n    p.x, p.y = p.x + 1, p.y + 1\n    return p",
        f"{POINTS}def shift(p): return Point(p.x + 1, p.y + 1)",
    ],
)
def test_objects_of_the_rows_classes_compare_by_the_rows_class(program: str) -> None:
    part = judge(SHIFT, program)
    assert part.passed, part.detail


@pytest.mark.parametrize(
    "program",
    [
        "Point.__eq__ = lambda s, o: True\ndef shift(p): return p",
        "class Same(Point):\n    def __eq__(self, o): return True\ndef shift(p): return Same(0, 0)",
        "class Point(Point):\n    __class__ = property(lambda s: s)\n    def __eq__(s, o): return True\ndef shift(p): return Point(0, 0)",
        "made, init = [], Point.__init__\ndef __init__(self, x, y):\n    init(self, x, y)\n    for each in made: each.x, each.y = x, y\n    made.append(self)\nPoint.__init__ = __init__\ndef shift(p):\n    made.append(p)\n    return p",
        "class Yes:\n    def __eq__(s, o): return True\ndef shift(p):\n    p.x = p.y = Yes()\n    return p\nPoint",
        "class Yes(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef shift(p):\n    p.x = p.y = Yes()\n    return p\nPoint",
        "def shift(p):\n    p.__class__ = p.__eq__ = lambda *a: True\n    return p\nPoint",
    ],
)
def test_no_program_replaces_how_the_rows_objects_compare(program: str) -> None:
    part = judge(SHIFT, program)
    assert part.passed is False, part.detail


def test_heirs_of_the_rows_classes_are_instances_and_equal_to_none_of_its_objects() -> None:
    program = "class Heir(Point):\n    def sum(self): return self.x + self.y\ndef shift(p): return Heir(p.x + 1, p.y + 1)"
    tests = ["found = shift(Point(1, 2))\nassert isinstance(found, Point) and found.sum() == 5"]
    assert judge({**SHIFT, "tests": tests}, program).passed
    assert not judge(SHIFT, program).passed
    assert not judge(
        {**SHIFT, "tests": ["assert isinstance(shift(Point(1, 2)), int)"]}, program
    ).passed


def test_slots_and_trees_changed_in_place() -> None:
    setup = "class Tree:\n    __slots__ = ('v', 'l', 'r')\n    def __init__(self, v, l=None, r=None): self.v, self.l, self.r = v, l, r\n"
    test = "t = Tree(1, Tree(2), Tree(3))\nleft = t.l\nswap(t)\nassert (t.l.v, t.r.v) == (3, 2) and t.r is left"
    spec = {"entry_point": "swap", "setup": setup, "tests": [test]}
    for head in ("def swap(t)", "def swap(t: 'Tree')"):
        assert judge(spec, f"{head}:\n    if t: t.l, t.r = t.r, t.l").passed
        assert not judge(spec, f"{head}: pass").passed


def test_enums_and_exceptions_of_the_row_are_the_programs() -> None:
    setup = "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\nclass Late(LookupError): pass\n"
    tests = [
        "assert f(Color.RED) is Color.BLUE and Color.RED.value == 1",
        "try:\n    f(Color.BLUE)\nexcept Late as error:\n    assert str(error) == 'x'\nelse:\n    assert False",
    ]
    spec = {"entry_point": "f", "setup": setup, "tests": tests}
    program = "def f(c):\n    if c is Color.BLUE: raise Late('x')\n    return Color.BLUE"
    assert judge(spec, program).passed
    assert not judge(spec, program.replace("Late('x')", "LookupError('x')")).passed
    bases = "class Base(KeyError): pass\nclass Sub(Base): pass\n"
    test = "try:\n    f()\nexcept Base as error:\n    assert str(error) == repr('x') and isinstance(error, Sub)\nelse:\n    assert False"
    assert judge({"tests": [test]}, f"{bases}def f(): raise Sub('x')").passed
    assert not judge({"tests": [test]}, f"{bases}def f(): raise KeyError('x')").passed


def test_an_object_is_not_trusted_later() -> None:
    """What a function returned is no object that the test made, whatever a class returns afterwards."""
    program = "class Thing:\n    one = None\n    def __new__(cls, *a):\n        cls.one = cls.one or object.__new__(cls)\n        return cls.one\n    def __contains__(self, x): return True\ndef f(x): return Thing(0)"
    test = "found = f(1)\nmade = Thing(2)\nassert 5 in found"
    assert not judge({"entry_point": "f", "tests": [test]}, program).passed
    assert judge({"entry_point": "f", "tests": ["assert 5 in Thing(2)"]}, program).passed


def test_names_of_the_program_are_looked_up_when_they_are_used() -> None:
    program = "COUNT = 0\ndef inc():\n    'Count.'\n    global COUNT\n    COUNT += 1\nnumber = int\nclass P: 'A class.'"
    for line in (
        "inc()\nassert COUNT == 1\ninc()\nassert COUNT == 2",
        "assert inc.__name__ == 'inc' and inc.__doc__ == 'Count.' and P().__doc__ == P.__doc__",
        "found = number('3')\nassert found == 3",
    ):
        part = judge({"tests": [line]}, program)
        assert part.passed, part.detail
    spec = {"tests": [{"check": "def check(c):\n    assert c('3') == 3"}], "entry_point": "number"}
    assert judge(spec, program).passed
    assert judge(spec, program.replace("number = int", "number = str")).passed is False
