"""Markup formats in which chat models write function calls.

A reply's call markup is never read as plain text. Text that looks like call markup but cannot be
parsed raises `BadCalls`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast


class NoCalls(ValueError):
    """Raised if the text contains no call."""


class BadCalls(ValueError):
    """Raised if a text contains calls that cannot be parsed, or too many calls."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call: the function's name and its arguments by name.

    id: identifier that the tool message with the call's result refers to, or "".
    as_text: whether all arguments are strings, because the call's format does not mark types.
        `FunctionCall.typed` converts such arguments.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = field(default="", compare=False)
    as_text: bool = field(default=False, compare=False)

    def typed(self, properties: Mapping[str, Any]) -> FunctionCall:
        """Return the call with its string arguments parsed as JSON or Python literals.

        properties: the parameters' JSON schemas by name. An argument whose schema declares a string
            stays a string.
        """
        if not self.as_text:
            return self
        values = {
            name: value if _is_text(properties.get(name)) else _literal(str(value))
            for name, value in self.arguments.items()
        }
        return FunctionCall(self.name, values, self.id)


def _is_text(declared: Any) -> bool:
    kind = cast("Mapping[str, Any]", declared).get("type") if isinstance(declared, Mapping) else ""
    return kind in (None, "string", "any")


def _literal(text: str) -> Any:
    """Parse a JSON or Python literal. Return the text itself if the text is no Python literal."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text.strip())
    return text


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """A markup format for calls.

    name: name of the format.
    pattern: regular expression for one region of call markup.
    read: function that parses the calls in a matched region. The second argument of `read` is a
        function that parses calls in plain text, for formats with JSON between tags.
    """

    name: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str], Callable[[str], list[FunctionCall]]], list[FunctionCall]]


# A reply is cut off at its first special token,
# because special tokens usually end an assistant turn.
# Kimi's <|tool_call_begin|> and DeepSeek's <｜tool▁call▁begin｜> do not end a turn.
# Both formats are rewritten to plain markers, so that clipping the turn keeps its calls.
_TOKEN = re.compile(r"<[|｜](tool[_▁][^|｜<>\s]{1,40})[|｜]>")
_SECTION = re.compile(r"<@tool_calls(?:_section)?_(?:begin|end)@>")
_LEFT = re.compile(
    r"<@tool_|</?tool_calls?>|<function=|</?function_call>|</?parameter=|<tool_use>|\[TOOL_CALLS\]"
)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def with_plain_tokens(text: str) -> str:
    """Replace the special tokens around calls with plain-text markers."""
    return _TOKEN.sub(lambda token: f"<@{token[1].replace('▁', '_')}@>", text)


def marked_calls(
    text: str, inner: Callable[[str], list[FunctionCall]]
) -> tuple[list[FunctionCall], str]:
    """Return the calls in regions of call markup, and the text outside these regions.

    text: output of `with_plain_tokens`.
    inner: function that parses calls in plain text, for formats with JSON between tags.

    Raises BadCalls for markup that cannot be parsed.
    """
    calls: list[FunctionCall] = []
    for each in FORMATS:
        for found in each.pattern.finditer(text):
            calls += each.read(found, inner)
        text = each.pattern.sub("\n", text)
    # Section markers without any call are an unfinished call, which the pattern `_LEFT` finds.
    outside = _SECTION.sub("\n", text) if calls else text
    if left := _LEFT.search(outside):
        shown = " ".join(outside[left.start() : left.start() + 60].split())
        raise BadCalls(f"no call: call markup that cannot be parsed: {shown}")
    return calls, outside.strip()


def _of_xml(found: re.Match[str], _: Callable[[str], list[FunctionCall]]) -> list[FunctionCall]:
    arguments: dict[str, Any] = {}
    position, body = 0, found["body"]
    while parameter := _PARAMETER.match(body, position):
        name, position = parameter[1].strip(), parameter.end()
        if name in arguments:
            raise BadCalls("no call: the same parameter twice")
        arguments[name] = parameter[2]
    if body[position:].strip():
        raise BadCalls("no call: a function's body is not a list of parameters")
    return [FunctionCall(found["name"].strip(), arguments, as_text=True)]


def _of_tag(found: re.Match[str], inner: Callable[[str], list[FunctionCall]]) -> list[FunctionCall]:
    return inner(found["body"].strip())


def _of_tokens(found: re.Match[str], _: Callable[[str], list[FunctionCall]]) -> list[FunctionCall]:
    """Parse a region that consists of a function name and a JSON object of arguments."""
    written = found["arguments"]
    if fence := _FENCED.match(written):
        written = fence[1]
    arguments: Any = None
    with suppress(ValueError, RecursionError):
        arguments = json.loads(written.strip() or "{}")
    if not isinstance(arguments, dict):
        raise BadCalls("no call: the arguments are not a JSON object")
    return [FunctionCall(found["name"].strip(), cast("dict[str, Any]", arguments))]


def _format(name: str, pattern: str, read: Any) -> CallMarkup:
    return CallMarkup(name, re.compile(pattern, re.DOTALL), read)


FORMATS = (
    # Qwen's format also has <tool_call> around a call, so Qwen's format is tried before Hermes'
    # format.
    # Hermes' parser would read Qwen's XML as JSON and fail.
    _format(
        "qwen_xml",
        r"(?:<tool_call>\s*)?<function=(?P<name>[^<>\n]{1,200})>(?P<body>.*?)</function>"
        r"(?:\s*</tool_call>)?",
        _of_xml,
    ),
    _format("hermes", r"<tool_call>(?P<body>.*?)(?:</tool_call>|\Z)", _of_tag),
    _format(
        "kimi",
        r"<@tool_call_begin@>\s*(?:functions\.)?(?P<name>[\w.\-]{1,200}?)(?::\d+)?\s*"
        r"<@tool_call_argument_begin@>(?P<arguments>.*?)<@tool_call_end@>",
        _of_tokens,
    ),
    _format(
        "deepseek",
        r"<@tool_call_begin@>(?:function<@tool_sep@>)?\s*(?P<name>[\w.\-]{1,200})"
        r"(?:<@tool_sep@>|\s*\n)(?P<arguments>.*?)<@tool_call_end@>",
        _of_tokens,
    ),
    _format(
        "mistral",
        r"\[TOOL_CALLS\]\s*(?P<name>[\w.\-]{1,200})\s*(?:\[CALL_ID\]\w*)?\[ARGS\]"
        r"(?P<arguments>.*?)(?=\[TOOL_CALLS\]|\Z)",
        _of_tokens,
    ),
    _format("mistral_list", r"\[TOOL_CALLS\](?P<body>\s*[\[{].*)\Z", _of_tag),
)
"""The markup formats in search order. Calls without markup are JSON, a fenced block, or Python."""
