"""Formats of tool calls in a turn: between configured marks, or as the chat template writes tool
calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from assay.data.chat import end_of_turn
from assay.data.template import TemplateFailed, render_chat
from assay.generate.turns.tool import FREE, Tool
from assay.types import ThinkFormat
from assay.verify.answers.call_formats import (
    BadCalls,
    FunctionCall,
    NoCalls,
    marked_calls,
    with_plain_tokens,
)
from assay.verify.answers.calls import calls_in, is_attempt, read_calls

FENCED = "```{tool}\n{input}\n```"
_PLACE = r"(\{(?:tool|input|call)\})"
_MARK = "0Assay0"
_LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}
_CALLED = {"name": "lookup", "arguments": {"word": _MARK}}
_TAGS = ("<tool_call>", "</tool_call>")
# Maximum numbers of lines and characters that an error message quotes of an invalid call.
SHOWN_LINES, SHOWN = 3, 160
_BLANK_THOUGHT = re.compile(r"<think>\s*</think>")

Call = FunctionCall | str
"""A call, or the error message of an invalid call."""


class CallFormat(Protocol):
    """A format of tool calls."""

    def found(self, said: str, ended: bool, think: ThinkFormat = FREE) -> Sequence[Call]:
        """Return the tool calls that must be answered now, before the policy continues. think: the
        turn's think format."""
        ...


class InText:
    """Calls between marks, as set in ``tools.call``. A call is answered as soon as its closing mark
    is sampled."""

    def __init__(self, pattern: str, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        parts = {"{tool}": r"(?P<tool>[\w.\-]+)", "{input}": r"(?P<input>.*?)"}
        parts["{call}"] = r"(?P<call>.*?)"
        words = re.split(_PLACE, pattern)
        expression = "".join(parts.get(word) or re.escape(word) for word in words)
        named, again = parts["{tool}"], "(?P=tool)"
        expression = expression.replace(named, again).replace(again, named, 1)
        self._pattern = re.compile(expression, re.DOTALL)

    def found(self, said: str, ended: bool, think: ThinkFormat = FREE) -> Sequence[Call]:
        """Return the first complete call of the text, if any."""
        match = self._pattern.search(said)
        if match is None:
            return []
        groups = match.groupdict()
        if "call" in groups:
            return [*_read(groups["call"])]
        return [self._named(groups["tool"], groups["input"])]

    def _named(self, name: str, text: str) -> Call:
        """Return a tool call whose tool name and input are separate texts."""
        tool = self._tools.get(name)
        names = [*tool.parameters.get("properties", {})] if tool else []
        if tool is None or (
            len(names) == 1 and tool.parameters["properties"][names[0]].get("type") == "string"
        ):
            return FunctionCall(name, dict.fromkeys(names, text))
        try:
            arguments: Any = json.loads(text or "{}")
        except ValueError as error:
            return f"the input is no JSON object with {', '.join(names)} ({error})"
        if not isinstance(arguments, dict):
            arguments = dict.fromkeys(names[:1], arguments)
        return FunctionCall(name, arguments)


@dataclass(frozen=True)
class OfTemplate:
    """Tool calls in the format of a chat template, answered at the end of the turn.

    opening, closing: the text around a call's JSON. Both texts are empty if the whole reply is a
    call, or if the template uses one of the named formats. names: the tools' names. Calls in
    formats of other known templates are answered too, because small models often deviate from their
    own template.
    """

    opening: str
    closing: str
    names: tuple[str, ...] = ()

    def found(self, said: str, ended: bool, think: ThinkFormat = FREE) -> Sequence[Call]:
        """Return the tool calls of a finished turn."""
        if not ended:
            return []
        start, end = think.answer_span(said) or (len(said), len(said))
        answer = said[start:end].strip().removeprefix("<|python_tag|>").strip()
        if not self.opening:
            is_call = answer.startswith(("{", "[{", "[]"))
            return [*_read(answer)] if is_call else self._in_any_form(answer)
        behind = rf"(.*?)(?:{re.escape(self.closing)}|\Z)" if self.closing else r"(.*)\Z"
        parts = re.findall(rf"{re.escape(self.opening)}{behind}", answer, re.DOTALL)
        if not parts:
            return self._in_any_form(answer)
        return [
            call
            for part in parts
            for call in _of_other_form(self.opening + part + self.closing) or _read(part)
        ]

    def _in_any_form(self, answer: str) -> Sequence[Call]:
        """Return the calls in any known format, or the error message of an attempted call."""
        try:
            calls = read_calls(answer)
        except NoCalls:
            return []
        except BadCalls as error:
            trouble = f"{error}"
            if not (is_attempt(answer, self.names) or "markup" in trouble):
                return []
        else:
            known = all(call.name in self.names for call in calls)
            return calls if known or _of_other_form(answer) else []
        first = " / ".join(answer.strip().splitlines()[:SHOWN_LINES])
        accepted = f"{self.opening}{{...}}{self.closing}" if self.opening else "a JSON object"
        return [f"{trouble}, in {first[:SHOWN]!r}; accepted: {accepted} with name and arguments"]

    @classmethod
    def of(cls, tokenizer: Any, names: Sequence[str] = ()) -> OfTemplate | None:
        """Detect the call format of a tokenizer's chat template.

        Returns None if the template does not support tools or writes calls in an unknown format.
        """
        if not tokenizer.chat_template:
            return None
        asked = [{"role": "user", "content": "x"}]
        called = {"type": "function", "id": "call00001", "function": _CALLED}
        reply = {"role": "assistant", "content": "", "tool_calls": [called]}
        try:
            before = render_chat(tokenizer, asked, True, [_LOOKUP])
            text = render_chat(tokenizer, [*asked, reply], False, [_LOOKUP])
        except TemplateFailed:
            # The template raises an error for tool calls, so its call format is unknown.
            return None
        if "Looks a word up" not in before:
            return None
        if _MARK not in text and all(tag in before for tag in _TAGS):
            # The template describes its call format in words but does not render calls.
            return cls(*_TAGS, tuple(names))
        if _of_other_form(text.removeprefix(before)):
            return cls("", "", tuple(names))
        start, end = _place_of_call(text)
        if not end:
            return None
        opening = text[len(before) : start] if text.startswith(before) else _last_line(text[:start])
        opening = _BLANK_THOUGHT.sub("", opening).strip()
        end_id = end_of_turn(tokenizer)
        stop = None if end_id is None else str(tokenizer.convert_ids_to_tokens(end_id))
        closing = text[end:].partition(stop)[0].strip() if stop else text[end:].strip()
        # The chat template writes a list of calls, so a bracket surrounds the call.
        if opening.endswith("["):
            opening, closing = opening[:-1].strip(), closing.removeprefix("]")
        return cls(opening, closing, tuple(names))


def _of_other_form(text: str) -> list[FunctionCall]:
    """Return the calls in known formats that have marks but no JSON object with a tool name; [] if
    there are none."""
    try:
        calls, _ = marked_calls(with_plain_tokens(text), lambda _: [])
    except BadCalls:
        return []
    return calls


def _place_of_call(text: str) -> tuple[int, int]:
    """Return the span of the JSON with which a template rendered the call `_CALLED`, with keys in
    any order; (0, 0) if there is none."""
    mark = text.rfind(_MARK)
    start = mark
    while (start := text.rfind("{", 0, max(start, 0))) >= 0:
        with suppress(ValueError):
            value, end = json.JSONDecoder().raw_decode(text, start)
            if end > mark and value.get("name") == _CALLED["name"]:
                return start, end
    return 0, 0


def closing_of(pattern: str) -> str:
    """Return the text that ends a tool call in this pattern."""
    return re.split(_PLACE, pattern)[-1]


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _read(text: str) -> Iterator[Call]:
    """Yield the tool calls of a text, or the error message of an invalid call."""
    try:
        yield from calls_in(text.strip()) or ["an empty call"]
    except (BadCalls, NoCalls) as error:
        yield f"{error}; accepted: a JSON object with name and arguments"
