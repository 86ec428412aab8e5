"""Sessions: values both ways, handles, limits of each call, questions to the parent, forged replies."""

from __future__ import annotations

import time
from typing import Any

import pytest
from forwarding import Forwarded, forward_to

from assay.verify.base import Limits
from assay.verify.sandbox import (
    Answer,
    Handle,
    Iterator,
    Record,
    Sandbox,
    SandboxTrouble,
    SubmissionError,
)
from assay.verify.sandbox.values import Unsupported

MODULE = """
import math
from collections import Counter, namedtuple
Point = namedtuple("Point", "x y")
LIMIT = 3
def add(a, b=1): return a + b
def grow(xs, extra=()):
    xs.append(len(xs)); xs.extend(extra)
    return None
def same(x): return x
def boom(): raise ValueError("no")
def squares(n): return (i * i for i in range(n))
def point(): return Point(1, 2)
def adder(n): return lambda x: x + n
def apply(f, x): return f(x)
def kinds(x): return type(x).__name__, [type(i).__name__ for i in x]
class Stack:
    size = property(lambda self: len(self.items))
    def __init__(self, *items): self.items = list(items)
    def push(self, x): self.items.append(x); return self
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __iter__(self): return iter(self.items)
    def __contains__(self, x): return x in self.items
def total(stack): return sum(stack.items)
print("loaded")
"""


def test_a_module_is_called_with_plain_data(sandbox: Sandbox, limits: Limits) -> None:
    with sandbox.load(MODULE, limits) as session:
        assert (session.loaded.status, session.loaded.stdout) == ("ok", "loaded\n")
        assert session.call("add", (2,)).value == 3
        assert session.call("add", (2,), {"b": 40}).value == 42
        assert session.call("same", (True,)).value is True
        assert type(session.call("same", (1.0,)).value) is float
        grown = session.call("grow", ([5],), {"extra": [7]})
        assert grown.value is None and grown.args_after == ([5, 1, 7],)
        assert grown.kwargs_after == {"extra": [7]}
        assert session.call("add", (2,)).args_after is None
        failed = session.call("boom")
        assert (failed.status, failed.error_type, failed.error) == (
            "exception",
            "ValueError",
            "ValueError: no",
        )
        assert failed.alive
        assert session.call("missing").error_type == "NameError"
        assert session.call("add").error_type == "TypeError"
        squares = session.call("squares", (3,)).value
        assert type(squares) is Iterator and (squares.items, squares.complete) == ([0, 1, 4], True)
        point = session.call("point").value
        assert type(point) is Record and point == (1, 2) and point.y == 2
        assert session.call("LIMIT", verb="get").value == 3
        assert session.call("same", (session.call("point").value,)).value == (1, 2)


def test_handles_can_be_passed_back(sandbox: Sandbox, limits: Limits) -> None:
    with sandbox.load(MODULE, limits) as session:
        stack = session.call("Stack", (1, 2)).value
        assert type(stack) is Handle and (stack.names, stack.kind) == (
            ("Stack", "object"),
            "object",
        )
        assert session.call(stack, ("push", 3), verb="method").value == stack
        assert session.call("total", (stack,)).value == 6
        assert session.call(stack, ("items",), verb="get").value == [1, 2, 3]
        assert session.call(stack, ("size",), verb="get").value == 3
        assert session.call(stack, ("__len__",), verb="method").value == 3
        assert session.call(stack, ("__getitem__", 0), verb="method").value == 1
        assert session.call(stack, ("__contains__", 9), verb="method").value is False
        assert session.call(stack, ("__getitem__", 9), verb="method").error_type == "IndexError"
        assert session.call("same", ([stack],)).value == [stack]
        adder = session.call("adder", (10,)).value
        assert adder.kind == "function"
        assert session.call(adder, (5,)).value == 15
        assert session.call("apply", (adder, 1)).value == 11
        assert session.call("Stack", verb="get").value.kind == "class"
    with sandbox.load(MODULE, limits) as other:  # another process: an object that it never had
        assert other.call("total", (stack,)).status == "exception"


def test_each_call_has_its_own_limits(sandbox: Sandbox) -> None:
    source = (
        "def spin(n):\n  x = 0\n  for i in range(n): x += i\n  return 1\ndef say(n): print('x' * n)"
    )
    with sandbox.load(source, Limits(cpu_seconds=5.0, output_kib=1)) as session:
        for _ in range(3):  # together more than the limit below
            assert session.call("spin", (10**6,), limits=Limits(cpu_seconds=0.5)).value == 1
        for _ in range(3):
            assert len(session.call("say", (900,)).stdout) == 901
        late = session.call("spin", (10**12,), limits=Limits(cpu_seconds=0.2))
        assert late.status == "timeout" and not late.alive and late.cpu_seconds > 0.2
        after = session.call("spin", (1,))
        assert after.status == "died" and "CPU time" in after.error


def test_threads_between_requests_are_on_its_account(sandbox: Sandbox) -> None:
    source = """
import threading
def spin():
    while True: pass
def f(): threading.Thread(target=spin, daemon=True).start()
def g(): return 1
"""
    with sandbox.load(source, Limits(cpu_seconds=0.5)) as session:
        assert session.call("f").status == "ok"
        time.sleep(3.0)  # enough on a busy machine
        assert session.call("g").status == "timeout"


def test_trouble_of_the_sandbox_is_not_the_submissions(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    settings = sandbox._settings
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_settings", lambda *given: {**settings(*given), "threads": "many"})
        for attempt in (sandbox.load, lambda source, limits: sandbox.run(source, "", limits)):
            with pytest.raises(SandboxTrouble, match="TypeError"):
                attempt("print(1)", limits)
    assert sandbox.run("print(1)", "", limits).stdout == "1\n"


def test_large_input_arrives(sandbox: Sandbox, limits: Limits) -> None:
    text = "x" * (20 << 20)
    assert (
        sandbox.run("import sys\nprint(len(sys.stdin.read()))", text, limits).stdout
        == f"{20 << 20}\n"
    )
    source = "print(len(open('/dev/stdin').read()))"
    assert sandbox.run(source, "x" * (2 << 20), limits).stdout == f"{2 << 20}\n"


def test_cpu_time_over_all_requests_ends_by_the_kernel(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sandbox._settings
    monkeypatch.setattr(
        sandbox, "_settings", lambda *given: {**settings(*given), "total_cpu_seconds": 2}
    )
    limits = Limits(cpu_seconds=30.0)
    with sandbox.load("def f():\n  while True: pass", limits) as session:
        session.total_cpu = 2
        outcome = session.call("f")
    assert outcome.status == "timeout" and "all requests" in outcome.error, outcome


def test_memory_of_a_call_is_given_back(sandbox: Sandbox, limits: Limits) -> None:
    with sandbox.load("def f(n): return len(bytearray(n))", limits) as session:
        assert session.call("f", (10**9,)).status == "memory"
        assert session.call("f", (10**6,)).value == 10**6


def test_values_that_cannot_travel(sandbox: Sandbox, limits: Limits) -> None:
    source = """
def endless():
    x = []; x.append(x); return x
def large(): return 'x' * (20 << 20)
def many(): return [None] * 10**6
class Evil:
    @property
    def __class__(self): raise SystemExit
def evil(): return Evil()
def forever():
    while True: yield 1
def failing():
    yield 1
    raise KeyError("k")
"""
    with sandbox.load(source, limits) as session:
        for name in ("endless", "large", "many"):
            assert session.call(name).status == "unsupported", name
        assert type(session.call("evil").value) is Handle
        forever = session.call("forever").value
        assert type(forever) is Iterator and not forever.complete
        assert session.call("failing").error_type == "KeyError"
        assert session.call("evil").status == "ok"


def test_an_argument_that_cannot_be_sent(sandbox: Sandbox, limits: Limits) -> None:
    with sandbox.load("def f(x): return x", limits) as session:
        for argument in (object(), print, "x" * (20 << 20), [[None] * 300_000]):
            with pytest.raises(Unsupported):
                session.call("f", (argument,))
        assert session.call("f", (1,)).value == 1


def test_a_module_that_fails_to_load(sandbox: Sandbox, limits: Limits) -> None:
    for source, status in {
        "def f(:": "compile_error",
        "1/0": "exception",
        "raise SystemExit(0)": "exception",
        "import os; os._exit(0)": "died",
        "while True: pass": "timeout",
    }.items():
        with sandbox.load(source, limits) as session:
            assert session.loaded.status == status
            assert session.call("f").status in ("exception", "died")


def test_main_is_not_run_by_loading(sandbox: Sandbox, limits: Limits) -> None:
    with sandbox.load("if __name__ == '__main__': 1/0", limits) as session:
        assert session.loaded.status == "ok"


def test_code_inside_asks_the_parent(sandbox: Sandbox, limits: Limits) -> None:
    asked: list[Any] = []

    def on_call(verb: str, name: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        asked.append((verb, name, args, kwargs))
        if name == "fail":
            raise SubmissionError(("KeyError",), "KeyError: 'k'")
        if name == "own":
            raise SubmissionError(("TheirError", "LookupError"), "TheirError: t", "before ")
        if name == "grow":
            return Answer(None, ([*args[0], 1],), {"by": {"a": [1, 2]}}, "printed ")
        return sum(args)

    source = """
result = call_out("call", "add", (1, 2), {"a": 3})
xs, inner = [5], [1]
by = {"a": inner}
call_out("call", "grow", (xs,), {"by": by})
for name in ("fail", "own"):
    try:
        call_out("call", name)
    except LookupError as error:
        print(type(error).__name__, error)
print(result, xs, by, inner)
def later(): return call_out("call", "add", (4, 5))
"""
    with sandbox.load(source, limits, on_call=on_call) as session:
        assert session.loaded.status == "ok", session.loaded
        printed = "printed KeyError 'k'\nbefore TheirError t\n3 [5, 1] {'a': [1, 2]} [1, 2]\n"
        assert session.loaded.stdout == printed
        assert session.call("later").value == 9
    assert asked[0] == ("call", "add", (1, 2), {"a": 3})
    with sandbox.load("call_out('call', 'add')", limits) as session:
        assert session.loaded.error_type == "NameError"


def test_a_process_that_waits_can_be_asked_meanwhile(sandbox: Sandbox, limits: Limits) -> None:
    """A function goes from one process to the other, which calls it: they take turns."""
    user = "def use(f, n): return f(n, [n]) + 1"
    owner = """
seen = []
def own(n, xs):
    xs.append(9)
    seen.append(n)
    if n < 0: raise ValueError("low")
    return call_out("call", "use", (own, n - 1)) if n > 3 else n
def run(n): return call_out("call", "use", (own, n)), seen
"""

    def lent(verb: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return owning.ask(target, args, kwargs)

    with sandbox.load(user, limits, on_call=lent) as using:
        forward = forward_to(using)
        busy = [False]

        def on_call(*question: Any) -> Any:
            if busy[0]:
                raise SubmissionError(("RuntimeError",), "RuntimeError: busy")
            busy[0] = True
            try:
                return forward(*question)
            finally:
                busy[0] = False

        with sandbox.load(owner, limits, on_call=on_call) as owning:
            assert owning.call("run", (2,)).value == (3, [2])
            assert owning.call("run", (-1,)).error == "ValueError: low"
            assert owning.call("run", (4,)).error == "RuntimeError: busy"
            assert owning.call("run", (3,)).value == (4, [2, -1, 4, 3])


def test_objects_of_a_class_that_both_sides_have_travel(sandbox: Sandbox, limits: Limits) -> None:
    """Each side has a copy of its own class; a cycle and a chain beyond the depth of values arrive."""
    node = "class Node:\n  def __init__(self, v, next=None): self.v, self.next = v, next\n"
    user = (
        node
        + """
def grow(node):
    assert type(node) is Node
    end = node
    while end.next: end = end.next
    end.next = Node("new", node)
    node.grow = None
    return end.next
"""
    )
    owner = (
        node
        + """
def run(length):
    first = None
    for n in range(length): first = Node(n, first)
    second = first.next
    new = call_out("call", "grow", (first,))
    count, each = 0, second
    while each is not first: each, count = each.next, count + 1
    return count, new.v, type(new) is Node, new.next is first, second is first.next
Node.grow = lambda self: "a method"
def kept():
    one = Node(1)
    call_out("call", "grow", (one,))
    return one.grow()
"""
    )
    with sandbox.load(user, limits, shared=["Node"]) as using:
        forward = forward_to(using)
        with sandbox.load(owner, limits, on_call=forward, shared=["Node"]) as owning:
            assert owning.call("run", (500,)).value == (500, "new", True, True, True)
            assert owning.call("kept").value == "a method"  # no attribute hides a method
            fault = owning.call("Node", ({1},))
            assert fault.value.state["v"] == {1}
    source = (
        node
        + """
class Key:
    def __init__(self, x): self.x = x
    def __hash__(self): return hash(self.x)
    def __eq__(self, other): return self.x == other.x
def f(): return {Key(1), Key(2)}, {Key(1): Node(1)}, Node({Node(1)})
def g(keys): return sorted(key.x for key in keys)
def h(): return Node({Key(1)})
"""
    )
    with sandbox.load(source, limits, shared=["Node", "Key"]) as session:
        keys, table, holder = session.call("f").value
        assert {each.state["x"] for each in keys} == {1, 2} and len(table) == 1
        assert [each.kind for each in holder.state["v"]] == ["data"]
        with sandbox.load(source, limits, shared=["Node", "Key"]) as other:
            assert other.call("g", (keys,)).value == [1, 2]
        assert session.call("h").status == "unsupported"


def test_trouble_of_the_parent_is_raised_and_ends_the_session(
    sandbox: Sandbox, limits: Limits
) -> None:
    def on_call(*_: Any) -> Any:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        sandbox.load("call_out('call', 'x')", limits, on_call=on_call)
    assert sandbox.run("print(1)", "", limits).stdout == "1\n"


def test_time_of_the_parent_is_not_the_submissions(sandbox: Sandbox) -> None:
    def on_call(*_: Any) -> Any:
        time.sleep(0.4)

    limits = Limits(cpu_seconds=1.0, seconds=0.3)
    with sandbox.load(
        "for _ in range(3): call_out('call', 'x')", limits, on_call=on_call
    ) as session:
        assert session.loaded.status == "ok"


def test_a_submission_that_dies_ends_the_test_program(sandbox: Sandbox, limits: Limits) -> None:
    def attempt(body: str) -> str:
        with sandbox.load(f"import os\ndef f():\n  {body}", limits) as submission:
            with pytest.raises(Forwarded) as raised:
                sandbox.load("call_out('call', 'f')", limits, on_call=forward_to(submission))
            return raised.value.outcome.status

    assert attempt("os._exit(0)") == "died"
    assert attempt("return 'x' * (20 << 20)") == "unsupported"
    assert attempt("x = bytearray(10**9)") == "memory"
    assert attempt("while True: pass") == "timeout"


def test_a_zygote_that_died_is_replaced(limits: Limits, sandbox: Sandbox) -> None:
    with Sandbox() as own:
        assert own.run("print(1)", "", limits).stdout == "1\n"
        session = own.load("def f(): return 1", limits)
        assert own.zygote is not None
        own.zygote.kill()
        own.zygote.wait()
        end = time.monotonic() + 120
        while session.call("f").status not in ("died", "memory"):
            assert time.monotonic() < end
        session.close()
        for _ in range(2):
            try:
                assert own.run("print(2)", "", limits).stdout == "2\n"
                break
            except SandboxTrouble:  # the first to notice
                continue
        else:
            pytest.fail("no new zygote")


def test_a_worker_that_got_no_processor_does_not_blame_the_submission(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stands still for longer than a process may idle, while its answer is already there."""
    with sandbox.load("def f(): return 1", Limits(seconds=0.5, cpu_seconds=1.0)) as session:
        process = session.process
        read = process.read

        def late() -> bool:
            process.check()
            time.sleep(0.6)
            return read()

        monkeypatch.setattr(process, "read", late)
        assert session.call("f").value == 1


def test_many_short_sleeps_are_counted_over_requests(sandbox: Sandbox) -> None:
    source = "import time\ndef f(): time.sleep(0.06)\ndef g(): pass"
    with sandbox.load(source, Limits(seconds=1.0, cpu_seconds=5.0)) as session:
        assert all(session.call("g").status == "ok" for _ in range(300))
        assert session.process.idle < 0.5
        statuses = [session.call("f").status for _ in range(60)]
    assert statuses[5] == "ok" and "timeout" in statuses
