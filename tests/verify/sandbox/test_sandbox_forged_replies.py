"""What a submission can do to its own replies: nothing that is more than its own answer."""

from __future__ import annotations

from typing import Any

import pytest
from forwarding import forward_to

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox

FORGE = """
import os, struct, sys, threading
def frame():
    f = sys._getframe()
    while f.f_back: f = f.f_back
    return f
def agent():
    f = sys._getframe()
    while f and not (f.f_code.co_name == "run" and "self" in f.f_locals): f = f.f_back
    return f.f_locals["self"]
def text(s): return b"s" + struct.pack("<I", len(s)) + s
def reply(nonce, value=42):
    data = b"t" + struct.pack("<I", 5) + b"b" + struct.pack("<I", len(nonce)) + nonce + text(b"ok")
    data += b"i" + struct.pack("<q", value) + b"NN"
    return struct.pack("<I", len(data)) + data
"""


@pytest.mark.parametrize(
    "body",
    [
        "def f(x): os.write(3, reply(b'')); return 1",
        "def f(x): os.write(3, reply(bytes(16))); return 1",
        "def f(x): os.write(3, b'garbage' * 1000); return 1",
        "def f(x): os.write(3, struct.pack('<I', 2**31)); return 1",
        "def f(x): os.write(3, struct.pack('<I', 3) + b'abc'); return 1",
        "def f(x): os.write(3, struct.pack('<I', 0)); return 1",
        "def f(x): agent().nonce = bytes(16); return 1",
    ],
)
def test_a_forged_reply_without_the_nonce_ends_the_session(
    sandbox: Sandbox, limits: Limits, body: str
) -> None:
    with sandbox.load(FORGE + body, limits) as session:
        assert session.loaded.status == "ok"
        outcome = session.call("f", (1,))
        assert (outcome.status, outcome.alive) == ("died", False)
        assert session.call("f", (1,)).status == "died"


def test_a_forged_reply_is_only_its_own_answer(sandbox: Sandbox, limits: Limits) -> None:
    source = FORGE + "def f(x): os.write(3, reply(agent().nonce)); return 1\ndef g(): return 5"
    with sandbox.load(source, limits) as session:
        assert session.call("f", (1,)).value == 42  # as if it had returned this
        # its second reply, which nobody asked for, ends the session instead of answering the next call
        assert session.call("g").status == "died"


def test_a_reply_written_ahead_answers_nothing(sandbox: Sandbox, limits: Limits) -> None:
    source = FORGE + "os.write(3, reply(b'') + reply(bytes(16)))\ndef f(): return 1"
    with sandbox.load(source, limits) as session:
        assert session.loaded.status == "died"
    source = (
        FORGE
        + """
def later():
    import time
    time.sleep(0.2)
    os.write(3, reply(b'x' * 16))
def f(): threading.Thread(target=later, daemon=True).start(); return 1
def g():
    import time
    time.sleep(0.5)
    return 2
"""
    )
    with sandbox.load(source, limits) as session:
        assert session.call("f").value == 1
        assert session.call("g").status == "died"


def test_replies_are_bounded_in_all(sandbox: Sandbox) -> None:
    """Reading replies is our own time: it must not be the way to a checker's timeout."""
    source = "def f(): return [(None,)] * 100_000"
    with sandbox.load(source, Limits(cpu_seconds=10.0, memory_mib=256)) as session:
        statuses = [session.call("f").status for _ in range(12)]
    assert statuses[0] == "ok" and "output" in statuses and statuses[-1] == "died"


def test_a_submission_sees_neither_tests_nor_expected_values(
    sandbox: Sandbox, limits: Limits
) -> None:
    spy = """
import gc, sys
def f(x):
    seen = []
    frame = sys._getframe()
    while frame:
        seen.append(repr(frame.f_locals)); frame = frame.f_back
    for each in gc.get_objects():
        try: seen.append(repr(each)[:10000])
        except BaseException: pass
    text = "".join(seen)
    return [word in text for word in map("".join, (["FIR", "ST"], ["EXPE", "CTED"], ["LAT", "ER"]))]
"""
    program = (
        "assert call_out('call', 'f', ('FIRST',)) == 'EXPECTED'\ncall_out('call', 'f', ('LATER',))"
    )
    with sandbox.load(spy, Limits(cpu_seconds=20.0)) as submission:
        answers: list[Any] = []
        forward = forward_to(submission)

        def on_call(*question: Any) -> Any:
            answer = forward(*question)
            answers.append(answer.value)
            return answer

        with sandbox.load(program, limits, on_call=on_call) as tests:
            assert tests.loaded.error_type == "AssertionError"
    assert answers == [[True, False, False]]


def test_patched_built_ins_do_not_reach_the_replies(sandbox: Sandbox, limits: Limits) -> None:
    source = """
import builtins, struct, os, random, threading, types
def f(x): return [x, {"a": (1, 2.5)}, {3}]
for name in "len type isinstance repr tuple getattr min max set list dict any all hash hasattr".split():
    setattr(builtins, name, None)
struct.Struct = struct.pack = None
os.write = os.read = os._exit = None
"""
    with sandbox.load(source, limits) as session:
        assert session.loaded.status == "ok", session.loaded
        outcome = session.call("f", ([1] * 50,))
        assert outcome.value == [[1] * 50, {"a": (1, 2.5)}, {3}]
        assert outcome.args_after == ([1] * 50,)


def test_equality_that_lies_does_not_travel(sandbox: Sandbox, limits: Limits) -> None:
    source = """
class Yes(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
class Always:
    __eq__ = lambda self, other: True
def f(): return Yes("no")
def g(): return Always()
"""
    with sandbox.load(source, limits) as session:
        value = session.call("f").value
        assert type(value) is str and value == "no" and value != "yes"
        assert session.call("g").value != 3
