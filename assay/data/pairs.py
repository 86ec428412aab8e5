"""Preferences: prompts with two completions of which one is better, or with one that is good or bad."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.data.rows import PROMPT_KEYS, check_text, complaint, copy_row, prompt_key, read_prompt
from assay.data.rowset import OnBadRow, RowSet, load_rows
from assay.data.traces import COMPLETION_KEYS
from assay.errors import DataError, message
from assay.types import Message

Turns = tuple[Message, ...]
SIDES = ("chosen", "rejected")

_SPEAKER = re.compile(r"(?:\A|\n\n)[ \t]*(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and two completions of it, of which the first is better. source: ``file.jsonl:12``."""

    prompt: str | Turns
    chosen: str
    rejected: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A prompt and one completion of it that is desirable or not. source: ``file.jsonl:12``."""

    prompt: str | Turns
    completion: str
    desirable: bool
    source: str = ""


class PreferenceSet(RowSet[Pair | Labelled]):
    """Pairs and labelled completions in the order of their sources. `load_preferences` makes one."""

    noun = "preferences"


def load_preferences(
    sources: Sequence[str], *, on_bad_row: OnBadRow = "stop", limit: int | None = None
) -> PreferenceSet:
    """Open sources of preferences and validate every row; the sources and errors of `load_problems`.

    A pair is ``chosen`` and ``rejected``, both text or both chat messages, with their ``prompt`` (or
    ``question`` or ``problem``) beside them, or at the beginning that both chats share. A labelled
    completion is ``messages`` that the assistant ends, or a prompt and a ``completion``, with a
    ``label``, true or false. Text that is a transcript (``Human: ...``, blank line, ``Assistant: ...``)
    is read as the chat that it is.
    """
    return load_rows(PreferenceSet, read_preference, sources, on_bad_row=on_bad_row, limit=limit)


def read_preference(row: Any, where: str, default_id: str) -> Pair | Labelled:
    """Return the pair or the labelled completion that a row describes; finished ones pass through."""
    if isinstance(row, Pair):
        return _pair(row.prompt, row.chosen, row.rejected, row.source or where)
    if isinstance(row, Labelled):
        return _labelled(row.prompt, row.completion, row.desirable, row.source or where)
    keys = copy_row(row, where)
    if any(side in keys for side in SIDES):
        return _read_pair(keys, where)
    if "label" in keys:
        return _read_labelled(keys, where)
    found = f"none among: {', '.join(map(str, keys)) or 'no keys'}"
    accepted = '"chosen" and "rejected", or a completion with its "label"'
    raise DataError(message(f"{where} chosen", found, accepted))


def _read_pair(keys: Mapping[str, Any], where: str) -> Pair:
    for side in SIDES:
        if side not in keys:
            found = f"none among: {', '.join(map(str, keys))}"
            raise DataError(message(f"{where} {side}", found, "text or chat messages"))
    chosen, rejected = (read_prompt(keys[side], where, side) for side in SIDES)
    prompt = None
    if any(key in keys for key in PROMPT_KEYS):
        key = prompt_key(keys, where)
        prompt = read_prompt(keys[key], where, key)
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


_ACCEPTED = 'text in both beside a "prompt", or chats in both that share all but their last turn'


def _num_shared(chosen: Turns, rejected: Turns) -> int:
    """Return how many turns both begin with, each keeping its last one for itself."""
    shared = 0
    for one, other in zip(chosen[:-1], rejected[:-1], strict=False):
        if (one["role"], one["content"]) != (other["role"], other["content"]):
            break
        shared += 1
    return shared


def _prompt_of_both(prompt: str | Turns, shared: Turns, where: str) -> str | Turns:
    """Return the prompt of a row that gives one beside its chats, which may begin with it again."""
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
    found = "a prompt that is not what the chats begin with"
    raise DataError(message(f"{where} prompt", found, "the same in all three, or none"))


def _only_turn(turns: Turns, where: str, side: str) -> str:
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        found = f"{len(turns)} turns behind the shared ones, the last by the {turns[-1]['role']}"
        if len(turns) == 1:
            found = f"a last turn by the {turns[0]['role']}"
        raise DataError(message(f"{where} {side}", found, "one turn, by the assistant"))
    return turns[0]["content"]


def _read_labelled(keys: Mapping[str, Any], where: str) -> Labelled:
    label = keys["label"]
    if not isinstance(label, bool):
        raise complaint(where, "label", label, "true or false")
    if "messages" in keys and "prompt" not in keys:
        turns = read_prompt(keys["messages"], where, "messages")
        if isinstance(turns, str) or len(turns) < 2 or turns[-1]["role"] != "assistant":
            accepted = "a chat of at least two messages that the assistant ends"
            raise complaint(where, "messages", keys["messages"], accepted)
        return _labelled(turns[:-1], turns[-1]["content"], label, where)
    name = next((name for name in COMPLETION_KEYS if name in keys), None)
    if name is None:
        found = f"none among: {', '.join(map(str, keys))}"
        raise DataError(message(f"{where} completion", found, '"completion" or "messages"'))
    key = prompt_key(keys, where)
    completion = keys[name]
    if isinstance(completion, Sequence) and not isinstance(completion, str) and completion:
        turns = read_prompt(completion, where, name)
        completion = _only_turn(tuple(turns), where, name) if not isinstance(turns, str) else turns
    return _labelled(read_prompt(keys[key], where, key), completion, label, where)


def _pair(prompt: str | Turns, chosen: str, rejected: str, where: str) -> Pair:
    prompt = _checked_prompt(prompt, where)
    for side, text in zip(SIDES, (chosen, rejected), strict=True):
        _check_completion(text, where, side)
    if chosen.strip() == rejected.strip():
        raise DataError(
            message(f"{where} rejected", "the same text as chosen", "two that differ", "drop it")
        )
    return Pair(prompt, chosen, rejected, where)


def _labelled(prompt: str | Turns, completion: Any, desirable: bool, where: str) -> Labelled:
    _check_completion(completion, where, "completion")
    return Labelled(_checked_prompt(prompt, where), completion, desirable, where)


def _checked_prompt(prompt: Any, where: str) -> str | Turns:
    prompt = read_prompt(prompt, where, "prompt")
    if isinstance(prompt, str):
        prompt = as_turns(prompt) or prompt
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        found = "a chat that the assistant ends"
        raise DataError(message(f"{where} prompt", found, "a chat that the user ends"))
    return prompt


def _check_completion(value: Any, where: str, key: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise complaint(where, key, value, "text that is not blank")
    check_text(value, where, key)


def as_turns(text: str) -> Turns | None:
    """Return the chat that a transcript (``Human: ...``, blank line, ``Assistant: ...``) is; None for other text.

    A last ``Assistant:`` with nothing behind it, which asks for a completion, is no turn.
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
