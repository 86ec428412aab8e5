"""What the policy is told of its calls: results, and words for whatever goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_tools
import pytest

from assay.config import ToolsConfig
from assay.generate.base import InjectedTokens, SoFar
from assay.generate.turns.calculator import CALCULATOR
from assay.generate.turns.call_format import InText, OfTemplate
from assay.generate.turns.reply_controller import ChatFormatter, ReplyController
from assay.generate.turns.tool import Tool, ToolError
from assay.generate.turns.toolbox import ToolEnvironment, cut, open_tools
from assay.generate.turns.user_functions import tool_named
from assay.testing import byte_tokenizer
from assay.types import UNREAD_CALL, Problem, Prompt

CALL = "<tool_call>{call}</tool_call>"


def _fails(arguments: Mapping[str, Any]) -> str:
    if arguments["expression"] == "1":
        raise ToolError("in words")
    raise OSError("as it comes")


def _counter() -> Any:
    said: list[str] = []

    def run(arguments: Mapping[str, Any]) -> str:
        said.append(arguments["expression"])
        return " ".join(said)

    return run


FAILING = replace(CALCULATOR, name="failing", open=lambda: _fails)
COUNTING = replace(CALCULATOR, name="counting", open=_counter)
FLOOD = replace(CALCULATOR, name="flood", open=lambda: lambda arguments: "a" * 100_000)
TOOLS: Mapping[str, Tool] = {one.name: one for one in (CALCULATOR, FAILING, COUNTING, FLOOD)}


def answers(**settings: Any) -> ToolEnvironment:
    return ToolEnvironment(TOOLS, ToolsConfig(call=CALL, **settings), InText(CALL, TOOLS))


def asked(answering: ToolEnvironment, name: str, **arguments: Any) -> str:
    said = f'<tool_call>{{"name": "{name}", "arguments": {str(arguments).replace(chr(39), chr(34))}}}</tool_call>'
    assert answering.is_addressed(said, False)
    (message,) = answering.respond(said)
    assert message["role"] == "tool"
    return message["content"]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("calculator", {"expression": "6*7"}, "42"),
        ("serch", {"x": 1}, "error: there is no tool serch; the tools: calculator, failing, "),
        ("calculator", {}, "error: calculator needs expression; it takes expression"),
        ("calculator", {"expression": "1", "y": 2}, "error: calculator has no y; it takes expression"),
        ("calculator", {"expression": "1/0"}, "error: division by zero"),
        ("failing", {"expression": "1"}, "error: in words"),
        ("failing", {"expression": "2"}, "error: OSError: as it comes"),
    ],
)  # fmt: skip
def test_faulty_calls_are_answered_with_their_fault(
    name: str, arguments: dict[str, Any], told: str
) -> None:
    assert asked(answers(), name, **arguments).startswith(told)


def test_a_call_that_cannot_be_read_is_answered() -> None:
    answering = answers()
    for said in (
        "<tool_call>6*7</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{</tool_call>",
    ):
        (message,) = answering.respond(said)
        assert message["content"].startswith(UNREAD_CALL), said
        assert "accepted: a JSON object with name and arguments" in message["content"]
    assert not answering.is_addressed("no call at all", True)


@pytest.mark.skipif(os.cpu_count() == 1, reason="one thread")
def test_functions_of_one_turn_run_side_by_side_and_are_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(own_tools.__file__).parent)
    own = [tool_named(f"own_tools:{name}", "tools.names", 30.0) for name in ("meets", "double")]
    tools = {**TOOLS, **{one.name: one for one in own}}
    both = [{"folder": str(tmp_path), "me": me, "other": other} for me, other in ("ab", "ba")]
    calls = [{"name": "meets", "arguments": each} for each in both]
    calls += [{"name": "counting", "arguments": {"expression": each}} for each in "12"]
    calls += [{"name": "double", "arguments": {"number": "x"}}, {"name": "no"}]
    calls += [{"name": "double", "arguments": {"number": 4}, "id": "mine"}] * 2
    form = OfTemplate("<tool_call>", "</tool_call>")
    answering = ToolEnvironment(tools, ToolsConfig(max_calls=7), form)
    said = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    told = answering.respond(said)
    contents = [message["content"] for message in told]
    assert contents[:4] == ["a met b", "b met a", "1", "1 2"]
    assert contents[4].startswith("error: number: ") and "no tool no" in contents[5]
    assert contents[6] == "8" and contents[7].startswith("error: no calls are left")
    assert [message["name"] for message in told[:3]] == ["meets", "meets", "counting"]
    assert [message["tool_call_id"] for message in told[5:7]] == ["call00006", "mine"]


def test_a_flood_is_cut_in_the_middle() -> None:
    told = asked(answers(max_output=90), "flood", expression="1")
    assert told == "a" * 60 + "\n[99910 characters left out]\n" + "a" * 30
    assert cut("short", 90) == "short"


def test_no_more_calls_than_are_left() -> None:
    answering = answers(max_calls=2)
    told = [asked(answering, "calculator", expression="1") for _ in range(4)]
    assert told[:2] == ["1", "1"]
    assert set(told[2:]) == {"error: no calls are left, after 2; give the answer"}


def test_a_tool_has_separate_state_per_completion() -> None:
    one, other = answers(), answers()
    assert asked(one, "counting", expression="a") == "a"
    assert asked(one, "counting", expression="b") == "a b"
    assert asked(other, "counting", expression="c") == "c"


def spoken(controller: ReplyController, text: str) -> list[int]:
    """The tokens of a completion whose policy says a text, byte by byte, whatever it is told."""
    tokens = np.zeros(0, np.int32)

    def told(given: bool) -> bool:
        nonlocal tokens
        promise = controller(SoFar(len(tokens), int(tokens[-1]), False, tokens.copy, given))
        answer: InjectedTokens | None = None if promise is None else promise.result()
        if answer is not None:
            assert answer.begins_turn
            tokens = np.append(tokens, np.array(answer.tokens, np.int32))
        return answer is not None

    for byte in text.encode():
        tokens = np.append(tokens, np.int32(byte))
        if told(given=False):
            assert not told(given=True)
    return tokens.tolist()


def test_a_chain_of_calls_is_answered_call_by_call() -> None:
    settings = ToolsConfig(
        names=("calculator",), call="<{tool}>{input}</{tool}>", result="[{result}]"
    )
    toolbox = open_tools(settings, byte_tokenizer(), in_chat=False)
    assert toolbox is not None and not toolbox.schemas
    assert "<NAME>INPUT</NAME>" in toolbox.introduction
    assert "- calculator: Returns the value of an arithmetic expression" in toolbox.introduction
    one, two = "so <calculator>6*7</calculator>", " and > <calculator>2+2</calculator>"
    controller = toolbox.make_controller(Problem("p", "?"), Prompt("?", np.zeros(1, np.int32)))
    said = bytes(spoken(controller, one + two + " it is 42")).decode()
    assert said == f"{one}[42]{two}[4] it is 42"


def test_a_turn_that_nobody_answers_goes_on() -> None:
    class Silent:
        def is_addressed(self, said: str, ended: bool) -> bool:
            return True

        def respond(self, said: str) -> None:
            return None

    controller = ReplyController(ChatFormatter(byte_tokenizer(), "{result}", ">"), Silent())
    assert bytes(spoken(controller, "a>b>c")).decode() == "a>b>c"


def test_what_exits_or_hangs_ends_no_process_and_keeps_none() -> None:
    def exits(arguments: Mapping[str, Any]) -> str:
        raise SystemExit("bye")

    tools = {"exits": replace(CALCULATOR, name="exits", open=lambda: exits)}
    answering = ToolEnvironment(tools, ToolsConfig(call=CALL), InText(CALL, tools))
    assert asked(answering, "exits", expression="1") == "error: SystemExit: bye"
    program = (
        "import time\nfrom assay.generate.turns.reply_controller import next_thread\n"
        "assert next_thread().submit(lambda: None).result() is None\n"
        "next_thread().submit(lambda: time.sleep(1000))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)


def test_a_call_alone_is_answered_at_the_end_of_its_turn() -> None:
    settings = ToolsConfig(names=("calculator",), call="{call}")
    toolbox = open_tools(settings, byte_tokenizer(), in_chat=False)
    answering = toolbox.make_environment(Problem("p", "q"), Prompt("q", np.zeros(0, np.int32)))  # pyright: ignore[reportOptionalMemberAccess]
    bare = '{"name": "calculator", "arguments": {"expression": "6*7"}}'
    xml = "<function=calculator>\n<parameter=expression>\n6*7\n</parameter>\n</function>"
    for said in (bare, f"```json\n{bare}\n```", xml):
        assert not answering.is_addressed(said, False) and answering.is_addressed(said, True)
        assert [message["content"] for message in answering.respond(said)] == ["42"]
    assert not answering.is_addressed("It is 42.", True)
