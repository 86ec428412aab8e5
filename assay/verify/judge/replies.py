"""Read what a judge replied: the last JSON object of its text, strictly validated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from assay.types import NotJudgedReason

MAX_REPLY = 200_000  # characters from the end of a reply that are searched
MAX_TRIES = 500  # opening braces at which an object is looked for: each may cost a look at the rest
MAX_REASONING = 600  # characters of a judge's reasoning that a verdict keeps
_WORDS = 200  # characters of a reply that a complaint shows


class JudgeTrouble(Exception):
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
    """Return the reply in the body of a chat completion; raises JudgeTrouble.

    Reasoning, whether in a field of its own or in a think block, is never searched for a verdict.
    """
    message, content, finish = read_message(body)
    text = _without_reasoning(content)
    if not text.strip():
        raise JudgeTrouble("error", why_empty(message, finish))
    return Reply(text, finish, read_usage(body))


def read_message(body: Any) -> tuple[dict[str, Any], str, str]:
    """Return the message in the body of a chat completion, its text, and why it ended; raises
    JudgeTrouble where there is none."""
    if not isinstance(body, dict):
        raise JudgeTrouble("error", "the endpoint's reply is not a JSON object")
    body = _table(body)
    if body.get("error"):
        raise JudgeTrouble("unavailable", f"the endpoint said {shown(body['error'])}")
    choices = body.get("choices")
    choice = _table(cast("list[Any]", choices)[0]) if choices and isinstance(choices, list) else {}
    if not isinstance(choice.get("message"), dict):
        raise JudgeTrouble("error", "the endpoint's reply holds no message")
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


def last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object of a text that stands in no other, or None.

    A text that is more than an object is searched from its last `MAX_TRIES` opening braces on. NaN
    and the infinities are read as nothing, and an object that says a key twice as an empty one.
    """
    text = text[-MAX_REPLY:]
    decoder = json.JSONDecoder(object_pairs_hook=_unrepeated, parse_constant=lambda _: None)
    starts = [0] if text.startswith("{") else []
    starts += [each.start() for each in re.finditer("{", text)][-MAX_TRIES:]
    found: dict[str, Any] | None = None
    end = 0
    for start in starts:
        if start >= end:
            with suppress(ValueError, RecursionError):
                found, end = decoder.raw_decode(text, start)
    return found


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else {}


def _object(text: str) -> dict[str, Any]:
    found = last_object(text)
    if found is None:
        raise JudgeTrouble("error", f"the judge's reply holds no JSON object: {shown(text)}")
    return found


def read_verdict(text: str) -> str:
    """Return ``correct`` or ``incorrect``; raises JudgeTrouble.

    Says it: ``verdict`` with one of the two words. Where that key is missing, as judges that were
    trained on another form have it: ``correct``, true or false, or ``score``, 1 or 0.
    """
    found = _object(text)
    if "verdict" in found:
        return read_choice(text, ("correct", "incorrect"))
    value: Any = found.get("correct", found.get("score"))
    if isinstance(value, bool) is ("correct" in found) and value in (0, 1):
        return "correct" if value else "incorrect"
    raise JudgeTrouble("error", f"the judge's reply holds no verdict: {shown(text)}")


def read_choice(text: str, choices: tuple[str, ...]) -> str:
    """Return the ``verdict`` of a reply, one of ``choices`` in any case; raises JudgeTrouble."""
    value = _object(text).get("verdict")
    if isinstance(value, str):
        for choice in choices:
            if value.strip().casefold() == choice.casefold():
                return choice
    raise JudgeTrouble("error", f"the judge's verdict is not {' or '.join(choices)}: {shown(text)}")


def read_score(text: str, low: float, high: float) -> float:
    """Return the ``score`` of a reply, a number from ``low`` to ``high``; raises JudgeTrouble."""
    value: Any = _object(text).get("score")
    if type(value) in (int, float) and math.isfinite(value) and low <= value <= high:
        return float(value)
    accepted = f"a number from {low:g} to {high:g}"
    raise JudgeTrouble("error", f"the judge's score is not {accepted}: {shown(text)}")


def reasoning_of(text: str) -> str:
    """Return the beginning of a judge's reasons; an empty string where it gave none."""
    reasons = (last_object(text) or {}).get("reasoning")
    return " ".join(reasons.split())[:MAX_REASONING] if isinstance(reasons, str) else ""


def shown(value: Any) -> str:
    """Return a short, one-line form of what was found."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(text.split())
    return repr(line if len(line) <= _WORDS else f"{line[:80]} ... {line[-(_WORDS - 85) :]}")
