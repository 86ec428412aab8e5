"""Parse a judge's reply: find the one JSON object with the verdict key of its request.

A judge quotes the texts that it examines, and a completion may contain text that looks like a
verdict. The verdict key therefore contains a hash of the examined texts, which occurs in none of
the examined texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from assay.endpoint.http_client import EndpointFailure

# Number of characters at the end of a reply in which the parser searches.
MAX_REPLY = 200_000
# Number of opening braces that the search tries as the start of a JSON object.
# Each attempt may scan the rest of the text, so unlimited attempts take quadratic time.
MAX_TRIES = 500
# Length of a judge's reasoning in a verdict, in characters.
MAX_REASONING = 600
# Length of a quoted reply in an error message, in characters.
_WORDS = 200
CUT_OFF: Mapping[str, str] = {
    "length": "the judge's reply was cut at max_tokens (raise max_tokens)",
    "content_filter": "the endpoint's filter cut the judge's reply",
}
"""Error messages for incomplete replies, by finish reason."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request and its reply; None: not reported by the endpoint."""

    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of one reply, without reasoning."""

    text: str
    finish_reason: str = ""
    usage: Usage = Usage()


def _table(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged; return an empty dict for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def read_usage(body: Any) -> Usage:
    """Return the token usage in the body of a chat completion. Invalid counts become None."""
    usage = _table(_table(body).get("usage"))
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return Usage(*(each if type(each) is int and each >= 0 else None for each in counts))


def read_body(body: Any) -> Reply:
    """Return the reply in the body of a chat completion. Raises EndpointFailure.

    The reply excludes the judge's reasoning, whether in a separate field or in a think block.
    """
    message, content, finish = read_message(body)
    text = _without_reasoning(content)
    if not text.strip():
        raise EndpointFailure("error", why_empty(message, finish))
    return Reply(text, finish, read_usage(body))


def read_message(body: Any) -> tuple[dict[str, Any], str, str]:
    """Return message, text and finish reason from the body of a chat completion.

    Raises EndpointFailure if the body has no message.
    """
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
    # Some endpoints return the content as a list of text parts instead of a string.
    if isinstance(content, list):
        texts = [_table(part).get("text") for part in cast("list[Any]", content)]
        content = "".join(text for text in texts if isinstance(text, str))
    text = content if isinstance(content, str) else ""
    return message, text, str(choice.get("finish_reason") or "")


def _without_reasoning(text: str) -> str:
    """Return the text after the think block, or "" if the think block never closes."""
    start = text.lstrip()
    # A reply that begins with a JSON object has no think block, but may quote think tags.
    if start.startswith("{"):
        return text
    # Some chat templates end the prompt with <think>, so the reply has only the closing tag.
    _, closed, after = text.partition("</think>")
    if closed:
        return after
    return "" if start.startswith("<think>") else text


def why_empty(message: Mapping[str, Any], finish: str) -> str:
    """Return a text that explains why a reply's message has no text."""
    if finish == "length":
        return "the judge ran into max_tokens before it gave a verdict; raise max_tokens"
    if message.get("tool_calls") or message.get("function_call"):
        return "the judge called a tool instead of giving a verdict"
    if message.get("refusal"):
        return f"the judge refused: {shown(message['refusal'])}"
    return f"the judge's reply is empty (finish reason {finish or 'not given'})"


def finding_of(reply: Reply, key: str) -> tuple[Any, str]:
    """Return the verdict or score under ``key``, and the start of the judge's reasoning.

    Raises EndpointFailure, also for a truncated reply. Exactly one JSON object of the reply must
    contain the key, once. JSON objects without the key ``key`` are ignored, because the judge may
    quote JSON from the examined text.

    key: verdict key of the request, with a code that occurs in no examined text.
    """
    # The missing end of a truncated reply might have changed the verdict.
    if reply.finish_reason in CUT_OFF:
        raise EndpointFailure("error", f"{CUT_OFF[reply.finish_reason]}: {shown(reply.text)}")
    found = [each for each in objects_of(reply.text) if key in each]
    # The pattern also matches the verdict key in an escaped JSON string.
    # A reply that quotes its own verdict is as ambiguous as a reply with two verdicts.
    if len(re.findall(rf"{re.escape(key)}[\\\"'`*\s]{{0,9}}:", reply.text)) > 1 or len(found) > 1:
        raise EndpointFailure("error", f"the judge gave more than one verdict: {shown(reply.text)}")
    if not found:
        raise EndpointFailure("error", f"the judge's reply holds no {key}: {shown(reply.text)}")
    reasoning = found[0].get("reasoning")
    words = " ".join(reasoning.split())[:MAX_REASONING] if isinstance(reasoning, str) else ""
    return found[0][key], words


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the outermost JSON objects of a text, in order.

    An object may start at the beginning of the text or at one of its last `MAX_TRIES` opening
    braces. NaN and infinities become None. An object with a duplicate key becomes an empty object.
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
    # Python's JSON parser would silently keep the last of several equal keys.
    found = dict(pairs)
    return found if len(found) == len(pairs) else {}


def read_choice(value: Any, choices: Sequence[str]) -> str:
    """Match a value to one of ``choices``, ignoring case. Raises EndpointFailure."""
    if isinstance(value, str):
        for choice in choices:
            if value.strip().casefold() == choice.casefold():
                return choice
    raise EndpointFailure(
        "error", f"the judge's verdict is not {' or '.join(choices)}: {shown(value)}"
    )


def read_score(value: Any, low: float, high: float) -> float:
    """Return a reply's value as a float in [``low``, ``high``]. Raises EndpointFailure."""
    if type(value) in (int, float) and math.isfinite(value) and low <= value <= high:
        return float(value)
    accepted = f"a number from {low:g} to {high:g}"
    raise EndpointFailure("error", f"the judge's score is not {accepted}: {shown(value)}")


def shown(value: Any) -> str:
    """Format a value for an error message, short and on one line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(text.split())
    return repr(line if len(line) <= _WORDS else f"{line[:80]} ... {line[-(_WORDS - 85) :]}")
