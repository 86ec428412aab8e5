"""Functions of users: their signature is the schema, and each runs where it can be killed."""

from __future__ import annotations

import os
from pathlib import Path

import own_tools
import pytest
from processes import gone

from assay.errors import ConfigError
from assay.generate.turns.calculator import CALCULATOR
from assay.generate.turns.tool import ToolError
from assay.generate.turns.user_functions import tool_named


@pytest.fixture(autouse=True)
def _found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(own_tools.__file__).parent)


def test_a_signature_is_a_schema() -> None:
    tool = tool_named("own_tools:double", "tools.names", 1.0)
    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "double",
            "description": "Double a number, so many times.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer"},
                    "times": {"type": "integer", "default": 1},
                },
                "required": ["number"],
            },
        },
    }
    assert (
        tool_named("assay.generate.turns.calculator:CALCULATOR", "tools.names", 1.0) is CALCULATOR
    )


def test_a_parameter_may_be_called_title() -> None:
    schema = tool_named("own_tools:later", "tools.names", 1.0).parameters
    assert schema["properties"]["title"] == {"type": "string", "description": "A name."}
    assert schema["properties"]["extra"]["default"] == {"title": "kept"}


def test_an_async_function_is_awaited() -> None:
    run = tool_named("own_tools:later", "tools.names", 20.0).open()
    assert run({"title": "x"}) == "x later"


def test_calls_run_in_a_process_of_their_own() -> None:
    run = tool_named("own_tools:double", "tools.names", 20.0).open()
    assert run({"number": 21}) == "42"
    assert run({"number": "3", "times": 3}) == "24"
    with pytest.raises(ToolError, match=r"number: .*valid integer"):
        run({"number": "three"})
    failing = tool_named("own_tools:fails", "tools.names", 20.0).open()
    with pytest.raises(ToolError, match="RuntimeError: cannot do it"):
        failing({"text": "it"})


def test_what_hangs_or_ends_is_killed_and_the_next_call_works() -> None:
    hanging = tool_named("own_tools:hang", "tools.names", 0.3).open()
    with pytest.raises(ToolError, match=r"it took more than 0.3 seconds"):
        hanging({"seconds": 60.0})
    ending = tool_named("own_tools:ends", "tools.names", 20.0).open()
    with pytest.raises(ToolError, match="its process ended"):
        ending({})
    assert tool_named("own_tools:double", "tools.names", 20.0).open()({"number": 1}) == "2"
    assert os.getpid()


def test_a_process_that_a_function_started_is_killed_with_it(tmp_path: Path) -> None:
    leaving = tool_named("own_tools:leaves", "tools.names", 3.0).open()
    with pytest.raises(ToolError, match=r"it took more than 3 seconds"):
        leaving({"file": str(tmp_path / "pid")})
    assert gone([(tmp_path / "pid").read_text()])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_tools:untyped", "parameter text without a type; accepted: a function"),
        ("own_tools:NUMBER", "own_tools:NUMBER, of type int; accepted: a function"),
        ("own_tools:nothing", "nothing"),
        ("no_module:f", "no_module"),
    ],
)
def test_what_is_no_tool(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tool_named(name, "tools.names", 1.0)
