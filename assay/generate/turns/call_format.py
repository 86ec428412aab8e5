"""How calls stand in what a policy says: between marks, or as its chat template writes them."""

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
SHOWN_LINES, SHOWN = 3, 160  # first lines and characters of what is no call
_BLANK_THOUGHT = re.compile(r"<think>\s*</think>")

Call = FunctionCall | str
"""A call, or what is wrong with what looks like one."""


class CallFormat(Protocol):
    """How calls are written."""

    def found(self, said: str, ended: bool, think: ThinkFormat = FREE) -> Sequence[Call]:
        """Return the calls of a turn that are to be answered now; think: how the turn thinks."""
        ...


class InText:
    """Calls between marks, as ``tools.call`` writes them; each is answered where it ends."""

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
        """Return the call that ends here, or nothing."""
        match = self._pattern.search(said)
        if match is None:
            return []
        groups = match.groupdict()
        if "call" in groups:
            return [*_read(groups["call"])]
        return [self._named(groups["tool"], groups["input"])]

    def _named(self, name: str, text: str) -> Call:
        """Return the call of a tool whose name stands beside its input."""
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
    """Calls as a chat template writes them; they are answered where the turn ends.

    opening, closing: what stands around the JSON of a call; both are empty where a reply is a call,
    or where the template writes one of the named formats. names: of the tools. A turn that calls
    one of them in another known form is answered too: small models often write another form than
    their template's.
    """

    opening: str
    closing: str
    names: tuple[str, ...] = ()

    def found(self, said: str, ended: bool, think: ThinkFormat = FREE) -> Sequence[Call]:
        """Return the calls of a turn that has ended."""
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
        """Return the calls of the tools in any known form, or what is wrong with an attempt."""
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
        """Return the format of a tokenizer's template; None where it knows no tools.

        Nor where it writes calls in no form that is known here.
        """
        if not tokenizer.chat_template:
            return None
        asked = [{"role": "user", "content": "x"}]
        called = {"type": "function", "id": "call00001", "function": _CALLED}
        reply = {"role": "assistant", "content": "", "tool_calls": [called]}
        try:
            before = render_chat(tokenizer, asked, True, [_LOOKUP])
            text = render_chat(tokenizer, [*asked, reply], False, [_LOOKUP])
        except TemplateFailed:  # a template that takes no calls has no format of them
            return None
        if "Looks a word up" not in before:
            return None
        if _MARK not in text and all(tag in before for tag in _TAGS):
            return cls(*_TAGS, tuple(names))  # it tells the form, and writes no calls itself
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
        if opening.endswith("["):  # a list of calls
            opening, closing = opening[:-1].strip(), closing.removeprefix("]")
        return cls(opening, closing, tuple(names))


def _of_other_form(text: str) -> list[FunctionCall]:
    """Return the calls of a text in marks whose inside is no JSON with a name; [] of any other."""
    try:
        calls, _ = marked_calls(with_plain_tokens(text), lambda _: [])
    except BadCalls:
        return []
    return calls


def _place_of_call(text: str) -> tuple[int, int]:
    """Return where the JSON of `_CALLED` stands, its keys in any order; (0, 0): nowhere."""
    mark = text.rfind(_MARK)
    start = mark
    while (start := text.rfind("{", 0, max(start, 0))) >= 0:
        with suppress(ValueError):
            value, end = json.JSONDecoder().raw_decode(text, start)
            if end > mark and value.get("name") == _CALLED["name"]:
                return start, end
    return 0, 0


def closing_of(pattern: str) -> str:
    """Return the text with which a call ends that is written so."""
    return re.split(_PLACE, pattern)[-1]


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _read(text: str) -> Iterator[Call]:
    """Yield the calls of a text, or what is wrong with it."""
    try:
        yield from calls_in(text.strip()) or ["an empty call"]
    except (BadCalls, NoCalls) as error:
        yield f"{error}; accepted: a JSON object with name and arguments"
