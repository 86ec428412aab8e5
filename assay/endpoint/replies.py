"""Read what a judge replied: the one JSON object of its text with the key of this request.

A judge quotes what it examines, and a candidate may write what looks like a verdict. So the key
of the verdict holds a code that is a hash of the quoted texts and appears in none of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from assay.types import NotJudgedReason

MAX_REPLY = 200_000  # characters from the end of a reply that are searched
MAX_TRIES = 500  # opening braces at which an object is looked for: each may cost a look at the rest
MAX_REASONING = 600  # characters of a judge's reasoning that a verdict keeps
_WORDS = 200  # characters of a reply that a complaint shows
CUT_OFF: Mapping[str, str] = {
    "length": "the judge's reply was cut at max_tokens (raise max_tokens)",
    "content_filter": "the endpoint's filter cut the judge's reply",
}
"""Why a reply that ended so is no verdict."""


class EndpointFailure(Exception):
    """A judge that gave no judgement: the reason, and whether asking again may help.

    wait: seconds that the endpoint asks for before the next attempt; None: it does not say.
    """

    def __init__(
        self, reason: NotJudgedReason, detail: str, *, retry: bool = True, wait: float | None = None
    ) -> None:
        super().__init__(detail)
        self.reason: NotJudgedReason = reason
        self.detail = detail
        self.retry = retry
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request and its reply, as the endpoint counts them; None where it does not."""

    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of one reply, without reasoning."""

    text: str
    finish_reason: str = ""
    usage: Usage = Usage()


def _table(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and nothing of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def read_usage(body: Any) -> Usage:
    """Return the usage in the body of a chat completion, whatever else the body holds."""
    usage = _table(_table(body).get("usage"))
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return Usage(*(each if type(each) is int and each >= 0 else None for each in counts))


def read_body(body: Any) -> Reply:
    """Return the reply in the body of a chat completion; raises EndpointFailure.

    Reasoning, whether in a field of its own or in a think block, is never searched for a verdict.
    """
    message, content, finish = read_message(body)
    text = _without_reasoning(content)
    if not text.strip():
        raise EndpointFailure("error", why_empty(message, finish))
    return Reply(text, finish, read_usage(body))


def read_message(body: Any) -> tuple[dict[str, Any], str, str]:
    """Return the message in the body of a chat completion, its text, and why it ended; raises
    EndpointFailure where there is none."""
    if not isinstance(body, dict):
        raise EndpointFailure("error", "the endpoint's reply is not a JSON object")
    body = _table(body)
    if body.get("error"):
        raise EndpointFailure("unavailable", f"the endpoint said {shown(body['error'])}")
    choices = body.get("choices")
    choice = _table(cast("list[Any]", choices)[0]) if choices and isinstance(choices, list) else {}
    if not isinstance(choice.get("message"), dict):
        raise EndpointFailure("error", "the endpoint's reply holds no message")
    message = _table(choice["message"])
    content = message.get("content")
    if isinstance(content, list):  # in parts
        texts = [_table(part).get("text") for part in cast("list[Any]", content)]
        content = "".join(text for text in texts if isinstance(text, str))
    text = content if isinstance(content, str) else ""
    return message, text, str(choice.get("finish_reason") or "")


def _without_reasoning(text: str) -> str:
    """Return what follows the think block; one that never closes leaves nothing.

    A reply that begins with its object has no such block, though the object may quote the tags.
    """
    start = text.lstrip()
    if start.startswith("{"):
        return text
    _, closed, after = text.partition("</think>")
    if closed:
        return after
    return "" if start.startswith("<think>") else text


def why_empty(message: Mapping[str, Any], finish: str) -> str:
    """Return why a message may have no text."""
    if finish == "length":
        return "the judge ran into max_tokens before it gave a verdict; raise max_tokens"
    if message.get("tool_calls") or message.get("function_call"):
        return "the judge called a tool instead of giving a verdict"
    if message.get("refusal"):
        return f"the judge refused: {shown(message['refusal'])}"
    return f"the judge's reply is empty (finish reason {finish or 'not given'})"


def finding_of(reply: Reply, key: str) -> tuple[Any, str]:
    """Return what a reply says under a key, and the beginning of its reasoning.

    key: holds a code of this request, which no text to examine holds. Exactly one object of the
    reply has it, and nothing in the reply sets it a second time: objects without it are quotations,
    whatever they claim. Raises EndpointFailure, also for a reply that was cut off, which may have
    been about to change its mind.
    """
    if reply.finish_reason in CUT_OFF:
        raise EndpointFailure("error", f"{CUT_OFF[reply.finish_reason]}: {shown(reply.text)}")
    found = [each for each in objects_of(reply.text) if key in each]
    # a key behind a backslash too: a reply that quotes itself is as unclear as one with two objects
    if len(re.findall(rf"{re.escape(key)}[\\\"'`*\s]{{0,9}}:", reply.text)) > 1 or len(found) > 1:
        raise EndpointFailure("error", f"the judge gave more than one verdict: {shown(reply.text)}")
    if not found:
        raise EndpointFailure("error", f"the judge's reply holds no {key}: {shown(reply.text)}")
    reasoning = found[0].get("reasoning")
    words = " ".join(reasoning.split())[:MAX_REASONING] if isinstance(reasoning, str) else ""
    return found[0][key], words


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a text that stand in no other, in order.

    A text that is more than an object is searched from its last `MAX_TRIES` opening braces on. NaN
    and the infinities are read as nothing, and an object that says a key twice as an empty one.
    """
    text = text[-MAX_REPLY:]
    decoder = json.JSONDecoder(object_pairs_hook=_unrepeated, parse_constant=lambda _: None)
    starts = [0] if text.startswith("{") else []
    starts += [each.start() for each in re.finditer("{", text)][-MAX_TRIES:]
    found: list[dict[str, Any]] = []
    end = 0
    for start in starts:
        if start >= end:
            with suppress(ValueError, RecursionError):
                one, end = decoder.raw_decode(text, start)
                found.append(one)
    return found


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else {}


def read_choice(value: Any, choices: Sequence[str]) -> str:
    """Return one of ``choices``, given in any case; raises EndpointFailure."""
    if isinstance(value, str):
        for choice in choices:
            if value.strip().casefold() == choice.casefold():
                return choice
    raise EndpointFailure(
        "error", f"the judge's verdict is not {' or '.join(choices)}: {shown(value)}"
    )


def read_score(value: Any, low: float, high: float) -> float:
    """Return a number from ``low`` to ``high``; raises EndpointFailure."""
    if type(value) in (int, float) and math.isfinite(value) and low <= value <= high:
        return float(value)
    accepted = f"a number from {low:g} to {high:g}"
    raise EndpointFailure("error", f"the judge's score is not {accepted}: {shown(value)}")


def shown(value: Any) -> str:
    """Return a short, one-line form of what was found."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(text.split())
    return repr(line if len(line) <= _WORDS else f"{line[:80]} ... {line[-(_WORDS - 85) :]}")
