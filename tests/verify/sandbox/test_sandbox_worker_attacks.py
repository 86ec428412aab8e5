"""A submission that aims at the worker's own time, or at an error in the worker: neither is to be had."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from growth import LINEAR, cost, growth, times

from assay.verify.base import Limits
from assay.verify.sandbox import Handle, Sandbox
from assay.verify.sandbox.codec import MAX_BYTES, U32, Decoder
from assay.verify.sandbox.process import MAX_OUTPUT
from assay.verify.sandbox.values import Malformed

AGENT = """
import os, struct, sys, types
def agent():
    f = sys._getframe()
    while f and not (f.f_code.co_name == "run" and "self" in f.f_locals): f = f.f_back
    return f.f_locals["self"]
def push(data):
    data = memoryview(data)
    while data: data = data[os.write(3, data):]
def text(s): return b"s" + struct.pack("<I", len(s)) + s
def big(value):
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"I" + struct.pack("<I", len(data)) + data
def pair(a, b): return b"ft" + struct.pack("<I", 2) + big(a) + big(b)
def out(nonce, items):
    body = b"t" + struct.pack("<I", 6) + b"b" + struct.pack("<I", len(nonce)) + nonce + text(b"out")
    body += text(b"call") + text(b"x") + b"t" + struct.pack("<I", len(items)) + b"".join(items)
    body += b"m" + struct.pack("<I", 0)
    return struct.pack("<I", len(body)) + body
"""
LIMITS = Limits(seconds=3.0, cpu_seconds=3.0)


def decode(data: bytes, stand_in: Callable[[Handle], Any]) -> Any:
    return Decoder(data, stand_in).message()


def counted(tag: bytes, items: list[bytes]) -> bytes:
    return tag + U32.pack(len(items)) + b"".join(items)


def big(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"I" + U32.pack(len(data)) + data


def decimal(value: int) -> bytes:
    text = str(value).encode()
    return b"es" + U32.pack(len(text)) + text


def colliding(start: int, depth: int) -> bytes:
    """Sets of 32 sets of 32 ... numbers of one hash, all different."""
    if depth == 0:
        return big((start + 1) * (2**61 - 1))
    return counted(b"Zl", [colliding(32 * start + each, depth - 1) for each in range(32)])


def handle(number: int) -> bytes:
    parts = [b"i" + bytes(8), b"i" + number.to_bytes(8, "little"), b"N"]
    return counted(b"Ht", [*parts, b"s\x04\x00\x00\x00data", NAMES])


NAMES = counted(b"t", [b"s\x01\x00\x00\x00A"])
RECORD = counted(b"Rt", [b"s\x00\x00\x00\x00", counted(b"t", []), counted(b"t", [])])
PLAIN = counted(b"l", [b"l\x00\x00\x00\x00"] * 60_000)  # a quarter of what a frame may have


def answer_nothing(*_: Any) -> Any:
    return None


@pytest.mark.parametrize(
    "items",
    [
        "[pair(3**10300, 2**16300 - 1)] * 2000",
        "[pair(3**2500, 2**4000 - 1)] * 2000",
        "[text(b'\\xed\\xa0\\x80' * 2_700_000)]",
        "[]",
    ],
    ids=["fractions", "smaller fractions", "surrogates", "nothing"],
)
def test_questions_written_ahead_end_the_session_soon(sandbox: Sandbox, items: str) -> None:
    source = (
        AGENT
        + f"def f():\n  frame = out(agent().nonce, {items})\n  for _ in range(150): push(frame)"
    )
    with sandbox.load(source, LIMITS, on_call=answer_nothing) as session:
        outcomes: list[Any] = []
        seconds = cost(lambda: outcomes.append(session.call("f")))
        assert seconds < 48 * cost(decode, PLAIN, lambda handle: handle)
        (outcome,) = outcomes
        assert outcome.status in ("died", "output", "timeout") and not outcome.alive


def hostile_frames() -> dict[str, Callable[[], bytes]]:
    return {
        "text": lambda: b"s" + U32.pack(MAX_BYTES - 5) + b"x" * (MAX_BYTES - 5),
        "surrogates": lambda: b"s" + U32.pack(3 * 2_700_000) + b"\xed\xa0\x80" * 2_700_000,
        "broken text": lambda: b"s" + U32.pack(MAX_BYTES - 5) + b"\xff" * (MAX_BYTES - 5),
        "bytes": lambda: b"b" + U32.pack(MAX_BYTES - 5) + bytes(MAX_BYTES - 5),
        "floats": lambda: b"Ad" + U32.pack(MAX_BYTES - 7) + bytes(MAX_BYTES - 7),
        "numbers": lambda: counted(b"l", [big(2**200_000)] * 330),
        "fractions": lambda: counted(
            b"l", [counted(b"ft", [big(3**2500), big(2**4000 - 1)])] * 8000
        ),
        "decimals": lambda: counted(b"l", [b"es" + U32.pack(20_000) + b"9" * 20_000] * 400),
        "deep": lambda: counted(b"l", [b"l\x01\x00\x00\x00" * 140 + b"N"] * 1700),
        "empty lists": lambda: counted(b"l", [b"l\x00\x00\x00\x00"] * 240_000),
        "keys": lambda: counted(b"Sl", [big(n * (2**61 - 1)) for n in range(1, 200_000)]),
        "sets of sets": lambda: counted(b"Sl", [colliding(each, 2) for each in range(32)]),
        "a number and decimals": lambda: counted(
            b"Sl",
            [big(n + k * (2**61 - 1) * 2**200_000) for n in range(4) for k in range(10)]
            + [decimal(n + k * (2**61 - 1)) for n in range(4) for k in range(10, 30)],
        ),
        "records": lambda: counted(b"l", [RECORD] * 60_000),
        "objects": lambda: (
            counted(b"B", [handle(number) + b"m\x00\x00\x00\x00" for number in range(25_000)])
            + b"N"
        ),
    }


def read(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        decode(data, lambda handle: handle)


@pytest.mark.parametrize("name", hostile_frames())
def test_no_frame_takes_longer_to_read_than_plain_values(name: str) -> None:
    data = hostile_frames()[name]()[:MAX_BYTES]
    assert times(lambda: read(data), lambda: read(PLAIN)) < 20  # 8 of the deepest


@pytest.mark.parametrize("depth", [1, 140])
def test_reading_grows_with_the_frame(depth: int) -> None:
    def nested(count: int) -> bytes:
        lists = b"l\x01\x00\x00\x00" * depth + b"N"
        return counted(b"l", [lists] * (count // (depth + 1)))

    frames = {count: nested(count) for count in (25_000, 100_000)}
    assert growth(lambda count: read(frames[count]), 100_000) < LINEAR


def test_colliding_keys_that_a_program_has_travel() -> None:
    points = [b"t" + U32.pack(2) + b"i" + x + b"i" + y for x in ENDS for y in ENDS]
    assert len(decode(counted(b"Sl", points), lambda handle: handle)) == 4


ENDS = [(-1).to_bytes(8, "little", signed=True), (-2).to_bytes(8, "little", signed=True)]


@pytest.mark.parametrize(
    "reply",
    [
        "('ok', 1, (1,), None)",
        "('ok', 1)",
        "(1,)",
        "([],)",
        "('exception', 1, 2)",
        "('exception', (), '')",
        "('exception', (1,), '')",
        "('memory', 3)",
        "('verdict', 'passed')",
    ],
)
def test_a_forged_reply_of_another_shape_ends_the_session(sandbox: Sandbox, reply: str) -> None:
    source = AGENT + f"type(agent()).do_get = lambda *_: {reply}\ndef f(): return 1"
    with sandbox.load(source, LIMITS) as session:
        assert session.call("f", verb="get").status == "died"
        assert session.call("f").status == "died"


@pytest.mark.parametrize(
    "reply",
    [
        "('ok', 1, (1, 2), None)",
        "('ok', 1, [1], None)",
        "('ok', 1, None, {'x': 1})",
        "('ok', 1, None, {1: 1})",
        "('exception', 10**5000, '')",
        "('out', 'call', 'x', (), {1: 2})",
        "('out', 'call', 'x', [], {})",
        "('out', 'run', 'x', (), {})",
        "('out', 5, 'x', (), {})",
    ],
)
def test_arguments_and_questions_have_their_shape(sandbox: Sandbox, reply: str) -> None:
    source = (
        AGENT
        + f"def f(xs): type(agent()).do_get = lambda *_: 1; agent().send(agent().frame(*{reply})); return 1"
    )
    with sandbox.load(source, LIMITS, on_call=answer_nothing) as session:
        assert session.call("f", ([1],)).status == "died"


def test_errors_can_be_printed_and_named(sandbox: Sandbox) -> None:
    source = AGENT + (
        "def f(): agent().send(agent().frame('exception', ('A\\0\\ud800',), 'A: \\ud800'))\ndef g(): raise ValueError('\\udfff')"
    )
    with sandbox.load(source, LIMITS) as session:
        outcome = session.call("g")
        assert outcome.error == "ValueError: ?"
        outcome = session.call("f")
        assert type(outcome.error_type, (Exception,), {}) and outcome.error.encode()


def test_objects_in_sets_and_keys_are_read_without_a_question(sandbox: Sandbox) -> None:
    """Their hash comes along: to ask for it while a message is read would stand still for ever."""
    source = """
class A:
    def __hash__(self): return 7
class B:
    __hash__ = None
a, b = A(), A()
def many(): return {a, b}, {a: 1}, B()
def same(x): return x is a
"""
    with sandbox.load(source, LIMITS) as session:
        members, table, other = session.call("many").value
        assert len(members) == 2 and {each.hash for each in members} == {7}
        assert [session.call("same", (each,)).value for each in table] == [True]
        assert type(other) is Handle and other.hash is None


def test_output_that_is_cut_and_written_again_is_not_read_again(sandbox: Sandbox) -> None:
    source = (
        "import os\ndef f(): os.ftruncate(1, 0); os.pwrite(1, b'\\xff' * 4_000_000, 0); os.ftruncate(1, 0)"
        "; os.pwrite(1, b'\\xff' * 4_000_000, 0)\ndef g(): os.ftruncate(1, 0)"
    )
    limits = Limits(cpu_seconds=5.0, output_kib=4096, memory_mib=256)
    with sandbox.load(source, limits) as session:
        size = 0
        for _ in range(20):
            size += len(session.call("f").stdout)
            session.call("g")
        assert 0 < size <= MAX_OUTPUT == session.process.taken


def test_a_signal_without_a_name_is_no_error_here() -> None:
    """Without walls a process is not the first of a namespace, and any signal ends it."""
    with Sandbox(unsafe=True) as unsafe:
        outcome = unsafe.run("import os\nos.kill(os.getpid(), 45)", "", LIMITS)
    assert (outcome.status, outcome.error) == ("died", "its process ended by signal 45")
