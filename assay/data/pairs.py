"""Preference rows: pairs of completions, and completions labelled desirable or undesirable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from assay.data.rows import (
    COMPLETION_KEYS,
    PROMPT_KEYS,
    Text,
    check_completion,
    complaint,
    copy_row,
    key_among,
    prompt_and_completion,
    prompt_of,
    read_prompt,
    read_think_and_effort,
    reply_text,
)
from assay.data.rowset import load_rows
from assay.errors import DataError, message
from assay.types import Message, ThinkMode

Turns = tuple[Message, ...]
SIDES = ("chosen", "rejected")

_SPEAKER = re.compile(r"(?:\A|\n\n)[ \t]*(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a preferred (chosen) and a rejected completion.

    source: ``file.jsonl:12``. think, effort: see `Problem`.
    """

    prompt: Text
    chosen: str
    rejected: str
    source: str = ""
    think: ThinkMode | None = None
    effort: str | None = None


@dataclass(frozen=True, slots=True)
class Labelled:
    """A prompt with one completion that is labelled desirable or undesirable.

    source: ``file.jsonl:12``. think, effort: see `Problem`.
    """

    prompt: Text
    completion: str
    desirable: bool
    source: str = ""
    think: ThinkMode | None = None
    effort: str | None = None


def read_preference(row: Any, where: str, default_id: str) -> Pair | Labelled:
    """Return the pair or labelled completion of a row.

    A row that is a `Pair` or `Labelled` object is validated and returned. A row of a pair has
    ``chosen`` and ``rejected``, both text or both chat messages. The prompt of a pair is under
    ``prompt``, ``question`` or ``problem``, or is the common beginning of both chats. A row of a
    labelled completion has a ``label`` (true or false), and either a prompt and ``completion``, or
    ``messages`` that end with the assistant. A text transcript (``Human: ...``, blank line,
    ``Assistant: ...``) is parsed as a chat.
    """
    if isinstance(row, Pair):
        found = _pair(row.prompt, row.chosen, row.rejected, row.source or where)
        return replace(found, **read_think_and_effort(row.think, row.effort, where))
    if isinstance(row, Labelled):
        found = _labelled(row.prompt, row.completion, row.desirable, row.source or where)
        return replace(found, **read_think_and_effort(row.think, row.effort, where))
    keys = copy_row(row, where)
    asked = read_think_and_effort(keys.get("think"), keys.get("effort"), where)
    if "label" in keys and not any(side in keys for side in SIDES):
        return replace(_read_labelled(keys, where), **asked)
    key_among(SIDES, keys, where, '"chosen" and "rejected", or a completion with its "label"')
    return replace(_read_pair(keys, where), **asked)


load_preferences = partial(load_rows, "preferences", read_preference)


def _read_pair(keys: Mapping[str, Any], where: str) -> Pair:
    for side in SIDES:
        key_among([side], keys, where, "text or chat messages")
    chosen, rejected = (read_prompt(keys[side], where, side) for side in SIDES)
    prompt = None
    if any(key in keys for key in PROMPT_KEYS):
        prompt = prompt_of(keys, where)
    if isinstance(chosen, str) and isinstance(rejected, str):
        if prompt is not None:
            return _pair(prompt, chosen, rejected, where)
        chosen, rejected = as_turns(chosen) or chosen, as_turns(rejected) or rejected
    if isinstance(chosen, str) or isinstance(rejected, str):
        found = "text" if prompt is None else "text in one and chat messages in the other"
        remedy = 'add "prompt"' if prompt is None else ""
        raise DataError(message(f"{where} chosen, rejected", found, _ACCEPTED, remedy))
    shared = _num_shared(chosen, rejected)
    if prompt is None and not shared:
        raise DataError(
            message(f"{where} chosen, rejected", "chats without a shared beginning", _ACCEPTED)
        )
    whole = chosen[:shared] if prompt is None else _prompt_of_both(prompt, chosen[:shared], where)
    texts = [
        _only_turn(turns[shared:], where, side)
        for turns, side in zip((chosen, rejected), SIDES, strict=True)
    ]
    return _pair(whole, texts[0], texts[1], where)


_ACCEPTED = 'two texts with a "prompt", or two chats that differ only in the last turn'


def _num_shared(chosen: Turns, rejected: Turns) -> int:
    """Return the number of leading turns that two chats share, ignoring each chat's last turn."""
    shared = 0
    for one, other in zip(chosen[:-1], rejected[:-1], strict=False):
        if (one["role"], one["content"]) != (other["role"], other["content"]):
            break
        shared += 1
    return shared


def _prompt_of_both(prompt: Text, shared: Turns, where: str) -> Text:
    """Combine a row's prompt with the common beginning of its chosen and rejected chat.

    The chats of the chosen and the rejected completion may repeat the prompt. Raises DataError if
    the prompt and the chats contradict each other.
    """
    if not shared:
        return prompt
    if isinstance(prompt, str):
        given: Turns = ({"role": "user", "content": prompt},)
        asked = [turn["content"] for turn in shared if turn["role"] == "user"]
        repeated = prompt in asked or as_turns(prompt) == shared
    else:
        given, repeated = prompt, shared[: len(prompt)] == prompt
    if repeated:
        return shared
    if shared[0]["role"] == "assistant":
        return (*given, *shared)
    found = "a prompt that differs from the beginning of the chats"
    raise DataError(message(f"{where} prompt", found, "the same in all three, or none"))


def _only_turn(turns: Turns, where: str, side: str) -> str:
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        found = f"{len(turns)} turns behind the shared ones, the last by the {turns[-1]['role']}"
        if len(turns) == 1:
            found = f"a last turn by the {turns[0]['role']}"
        raise DataError(message(f"{where} {side}", found, "one turn, by the assistant"))
    return reply_text(turns[0])


def _read_labelled(keys: Mapping[str, Any], where: str) -> Labelled:
    label = keys["label"]
    if not isinstance(label, bool):
        raise complaint(where, "label", label, "true or false")
    name = next((name for name in COMPLETION_KEYS if name in keys), None)
    if name is not None and ("prompt" in keys or "messages" not in keys):
        completion = keys[name]
        if isinstance(completion, Sequence) and not isinstance(completion, str) and completion:
            # TRL's conversational format stores a completion as a chat of a single turn.
            turns = read_prompt(completion, where, name)
            keys = {**keys, name: _only_turn(cast("Turns", turns), where, name)}
    return _labelled(*prompt_and_completion(keys, where), label, where)


def _pair(prompt: Text, chosen: str, rejected: str, where: str) -> Pair:
    prompt = _checked_prompt(prompt, where)
    for side, text in zip(SIDES, (chosen, rejected), strict=True):
        check_completion(text, where, side)
    if chosen.strip() == rejected.strip():
        raise DataError(
            message(f"{where} rejected", "the same text as chosen", "two that differ", "drop it")
        )
    return Pair(prompt, chosen, rejected, where)


def _labelled(prompt: Text, completion: Any, desirable: bool, where: str) -> Labelled:
    check_completion(completion, where, "completion")
    return Labelled(_checked_prompt(prompt, where), completion, desirable, where)


def _checked_prompt(prompt: Any, where: str) -> Text:
    prompt = read_prompt(prompt, where, "prompt")
    if isinstance(prompt, str):
        prompt = as_turns(prompt) or prompt
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        found = "a chat that the assistant ends"
        raise DataError(message(f"{where} prompt", found, "a chat that the user ends"))
    return prompt


def as_turns(text: str) -> Turns | None:
    """Parse a text transcript as a chat; None for text that is no transcript.

    A transcript has the format of Anthropic's HH-RLHF data: ``Human: ...``, blank line,
    ``Assistant: ...``. An empty ``Assistant:`` at the end of a transcript marks the end of a prompt
    and is not a turn.
    """
    text = text.strip()
    if not text.startswith("Human:"):
        return None
    _, *parts = _SPEAKER.split(text)
    turns = [
        {"role": _ROLES[speaker], "content": content.strip()}
        for speaker, content in zip(parts[::2], parts[1::2], strict=True)
    ]
    if turns[-1]["role"] == "assistant" and not turns[-1]["content"] and len(turns) > 1:
        turns.pop()
    return tuple(turns)
