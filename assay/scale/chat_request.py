"""Parse and check requests to ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.scale.http_server import Refused
from assay.types import Message

MOST_MESSAGES = 1000
MOST_CHOICES = 16
MOST_STOPS, LONGEST_STOP = 4, 200

_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Keys of OpenAI's API that do not change a completion."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (0,)),
    # Log-probabilities would reveal the tokens of the reasoning, so they are refused.
    **dict.fromkeys(("logprobs", "parallel_tool_calls"), (False,)),
    **dict.fromkeys(("top_logprobs",), (0,)),
    **dict.fromkeys(("logit_bias",), ({},)),
    **dict.fromkeys(("tools",), ([],)),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Keys of OpenAI's API that this server does not support, with the values that ask for nothing."""


@dataclass(frozen=True)
class ChatRequest:
    """A checked request. None: the model's own setting.

    stop: strings that end the answer and are removed from it; in the reasoning, they have no
    effect. effort: name of a configured thinking effort. thinking_budget: maximum thinking tokens.
    """

    messages: tuple[Message, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    effort: str | None = None
    thinking_budget: int | None = None
    stream: bool = False
    include_usage: bool = False


def read_chat_request(raw: bytes, model: str) -> ChatRequest:
    """Read a request body. Raises Refused, in one line. model: name of the model that the server
    offers.
    """
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "body: accepted: a JSON object") from None
    if not isinstance(body, dict):
        raise Refused(400, "body: accepted: a JSON object")
    # In OpenAI's API, null means the same as a missing key.
    given: dict[str, Any] = {key: value for key, value in body.items() if value is not None}
    if given.pop("model", model) != model:
        raise Refused(404, f"model: accepted: {model}")
    messages = _messages(given.pop("messages", None))
    stream = _take(given, "stream", _is_bool, "true or false") or False
    options = _take(given, "stream_options", lambda one: isinstance(one, dict), "an object") or {}
    if not isinstance(include := options.get("include_usage") or False, bool):
        raise Refused(400, "stream_options.include_usage: accepted: true or false")
    limits = [_take(given, key, _is_count, "a whole number above 0") for key in _LIMITS]
    if None not in limits and limits[0] != limits[1]:
        raise Refused(400, f"max_tokens: accepted: none with {_LIMITS[0]}")
    request = ChatRequest(
        messages=messages,
        max_tokens=next((one for one in limits if one is not None), None),
        temperature=_take(given, "temperature", _is_in(0, 100), "a number from 0"),
        top_p=_take(given, "top_p", _is_in(1e-6, 1), "a number above 0, up to 1"),
        seed=_take(given, "seed", _is_seed, "a whole number of at most 63 bits"),
        n=_take(given, "n", _is_few, f"a whole number from 1 to {MOST_CHOICES}") or 1,
        stop=_stops(given.pop("stop", ())),
        effort=_take(given, "reasoning_effort", _is_name, "the name of an effort"),
        thinking_budget=_take(given, "thinking_budget", _is_count, "a whole number above 0"),
        stream=stream,
        include_usage=include,
    )
    for key in given.keys() - set(_IGNORED):
        if given[key] not in _NEUTRAL.get(key, ()):
            raise Refused(400, f"{_shown(key)}: not supported; leave it out")
    return request


_LIMITS = ("max_completion_tokens", "max_tokens")


def _take(given: dict[str, Any], key: str, fits: Callable[[Any], bool], accepted: str) -> Any:
    value = given.pop(key, None)
    if value is not None and not fits(value):
        raise Refused(400, f"{key}: accepted: {accepted}")
    return value


def _messages(value: Any) -> tuple[Message, ...]:
    accepted = (
        "messages: accepted: a list of objects with role (system, developer, user or assistant) and"
        " content (text, or a list of text parts)"
    )
    if not isinstance(value, list) or not value:
        raise Refused(400, accepted)
    if len(value) > MOST_MESSAGES:
        raise Refused(400, f"messages: found {len(value)}; accepted: at most {MOST_MESSAGES}")
    found: list[Message] = []
    for one in value:
        role = one.get("role") if isinstance(one, dict) else None
        content = _content(one.get("content")) if isinstance(one, dict) else None
        if role not in ("system", "developer", "user", "assistant") or content is None:
            raise Refused(400, accepted)
        # Chat templates do not know OpenAI's role developer, the newer name of the role system.
        found.append({"role": "system" if role == "developer" else role, "content": content})
    return tuple(found)


def _content(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    parts = [
        one.get("text") for one in value if isinstance(one, dict) and one.get("type") == "text"
    ]
    if not parts or len(parts) < len(value) or not all(isinstance(one, str) for one in parts):
        return None
    return "".join(map(str, parts))


def _stops(value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    fits = isinstance(listed, list | tuple) and len(listed) <= MOST_STOPS
    if not fits or not all(isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in listed):
        accepted = f"up to {MOST_STOPS} texts of at most {LONGEST_STOP} characters"
        raise Refused(400, f"stop: accepted: {accepted}")
    return tuple(listed)


def _no_constant(name: str) -> None:
    # Python's JSON parser accepts NaN and Infinity, which are not valid JSON.
    raise ValueError(name)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_few(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_CHOICES


def _is_seed(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 100


def _is_in(low: float, high: float) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        # NaN fails both comparisons.
        return type(value) in (int, float) and low <= value <= high

    return fits


def _shown(key: str) -> str:
    return key if key.isidentifier() and len(key) <= 40 else "a key of the body"
