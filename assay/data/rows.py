"""Row formats of problems, and conversion of rows to problems.

Published forms are in `assay.data.forms`; this module reads Assay's own form, GSM8K and MATH. A key
with the value ``null`` counts as absent. Keys to which a row's form gives no meaning become part of
the problem's spec, which the policy never sees.

    Assay's rows have {"id", "prompt": text | messages, "verifier", "answer" or other spec keys,
    "tags", "think", "effort"}.
    GSM8K's rows have {"question", "answer": "TEXT #### 1,234"}.
    MATH's rows have {"problem", "answer" | "solution", "type", "level"}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from assay.data.forms import nearest_form, read_form
from assay.errors import DataError, message, slip_of
from assay.types import Message, Problem, ThinkMode

MAX_CHARACTERS = 4_000_000
"""Maximum characters of one text: about a million tokens."""
PROMPT_KEYS = ("prompt", "question", "problem")
COMPLETION_KEYS = ("completion", "generated_solution", "solution")
ROLES = ("system", "developer", "user", "assistant", "tool")
_PROMPT_FORMS = '"prompt" (text or chat messages), "question" or "problem"'

Text = str | tuple[Message, ...]
"""A prompt: text or messages."""


def read_problem(row: Any, where: str, default_id: str) -> Problem:
    """Return the problem of a row; a row that is already a `Problem` is validated and returned.

    Raises DataError for an invalid row; the message begins with ``where`` and the key.
    """
    if isinstance(row, Problem):
        return _read_finished(row, where)
    spec = copy_row(row, where)
    read_form(spec, where)
    if advice := "" if any(key in spec for key in PROMPT_KEYS) else nearest_form(spec):
        found = f"none among: {', '.join(map(str, spec))}"
        raise DataError(message(f"{where} prompt", found, _PROMPT_FORMS, advice))
    key = key_among(PROMPT_KEYS, spec, where, _PROMPT_FORMS)
    prompt = read_prompt(spec.pop(key), where, key)
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        raise complaint(where, key, "a chat that the assistant ends", "a chat that the user ends")
    tags = read_tags(spec.pop("tags", ()), where)
    asked = read_think_and_effort(spec.pop("think", None), spec.pop("effort", None), where)
    if key == "question":
        _take_final_answer(spec, where)
    elif key == "problem":
        tags += _take_competition_keys(spec)
    answer = spec.get("answer")
    if isinstance(answer, str):
        if not answer.strip():
            raise complaint(where, "answer", answer, "text that is not blank, or a number")
        check_text(answer, where, "answer")
    verifier = spec.pop("verifier", None)
    if verifier is not None and (not isinstance(verifier, str) or not verifier.strip()):
        raise complaint(where, "verifier", verifier, "an expression, such as math")
    id = _read_id(spec, where, default_id)
    return Problem(id, prompt, spec, verifier, tags, where, **asked)


def problem_row(problem: Problem) -> dict[str, Any]:
    """Convert a problem to a row, from which `read_problem` restores the problem."""
    prompt = problem.prompt if isinstance(problem.prompt, str) else list(map(dict, problem.prompt))
    row: dict[str, Any] = {"id": problem.id, "prompt": prompt, **problem.spec}
    row |= {"verifier": problem.verifier} if problem.verifier is not None else {}
    row |= {"tags": list(problem.tags)} if problem.tags else {}
    asked = {"think": problem.think, "effort": problem.effort}
    row |= {key: value for key, value in asked.items() if value is not None}
    return {**row, "source": row.get("source", problem.source)}


def copy_row(row: Any, where: str) -> dict[str, Any]:
    """Copy a row without its null keys; a `Problem`, `Trace` or other dataclass is converted to a
    dict.
    """
    if isinstance(row, Problem):
        row = problem_row(row)
    elif dataclasses.is_dataclass(row) and not isinstance(row, type):
        found = {one.name: getattr(row, one.name) for one in dataclasses.fields(row)}
        row = {key: value for key, value in found.items() if value not in ("", ())}
    if not isinstance(row, Mapping):
        raise DataError(message(where, shown(row), "a row of keys and values (a JSON object)"))
    copy = dict(row)
    if None in copy.values():
        return {key: value for key, value in copy.items() if value is not None}
    return copy


def key_among(names: Sequence[str], row: Mapping[str, Any], where: str, accepted: str) -> str:
    """Return the first of ``names`` that is a key of the row; raises DataError if there is none."""
    for name in names:
        if name in row:
            return name
    keys = list(map(str, row))
    slips = [f"rename {key} to {slip_of(key, names)}" for key in keys if slip_of(key, names)]
    found = f"none among: {', '.join(keys) or 'no keys'}"
    raise DataError(message(f"{where} {names[0]}", found, accepted, "".join(slips[:1])))


def prompt_of(row: Mapping[str, Any], where: str) -> Text:
    """Return the prompt of a row, which has one of the keys in `PROMPT_KEYS`."""
    key = key_among(PROMPT_KEYS, row, where, _PROMPT_FORMS)
    return read_prompt(row[key], where, key)


def prompt_and_completion(
    row: Mapping[str, Any],
    where: str,
    names: Sequence[str] = COMPLETION_KEYS,
    given: Sequence[str] = ("prompt",),
) -> tuple[Text, str]:
    """Return the prompt and the completion of a training row.

    ``messages`` that end with the assistant supply the prompt and the completion, unless the row
    has a key in ``given``. Raises DataError for a row without a prompt or completion.
    """
    if "messages" in row and not any(name in row for name in given):
        turns = read_prompt(row["messages"], where, "messages")
        if isinstance(turns, str) or len(turns) < 2 or turns[-1]["role"] != "assistant":
            accepted = "a chat of at least two messages that the assistant ends"
            raise complaint(where, "messages", row["messages"], accepted)
        last: Mapping[str, Any] = turns[-1]
        if last.get("tool_calls"):
            # The loss covers only a message's content, so tool calls would be lost silently.
            # Messages with tool calls are therefore refused.
            accepted = "a last message whose content holds all that is trained on, its calls too"
            raise complaint(where, "messages", {"tool_calls": last["tool_calls"]}, accepted)
        return turns[:-1], check_completion(reply_text(turns[-1]), where, "messages")
    name = key_among(names, row, where, '"completion" (text), or "messages"')
    completion = check_completion(row[name], where, name)
    return prompt_of(row, where), completion


def check_completion(value: Any, where: str, key: str) -> str:
    """Return the completion in a row; raises DataError if it is blank or not text."""
    if not isinstance(value, str) or not value.strip():
        raise complaint(where, key, value, "text that is not blank")
    check_text(value, where, key)
    return value


def reply_text(turn: Message) -> str:
    """Return the text of a chat message; separate reasoning precedes it in a think block."""
    # Model servers and data sets name the reasoning of a message differently.
    thoughts = (turn.get(key) for key in ("reasoning_content", "reasoning", "thinking"))
    thought = next(filter(None, thoughts), "").strip("\n")
    said = turn["content"]
    return f"<think>\n{thought}\n</think>\n\n{said.lstrip(chr(10))}" if thought else said


def read_think_and_effort(think: Any, effort: Any, where: str) -> dict[str, Any]:
    """Validate a row's think mode and effort, and return a dict of both, which may be None.

    Any effort name is accepted here, because the configuration (`sampling.efforts`) defines the
    efforts.
    """
    if think is not None and think not in get_args(ThinkMode):
        raise complaint(where, "think", think, " or ".join(map(repr, get_args(ThinkMode))))
    if effort is not None and (not isinstance(effort, str) or not effort):
        raise complaint(where, "effort", effort, "a name of sampling.efforts, such as low")
    return {"think": think, "effort": effort}


def appended(prompt: Any, text: str) -> Any:
    """Append a text to a prompt; in a chat, the text is appended to the last user turn."""
    if isinstance(prompt, str):
        return f"{prompt}{text}"
    turns = [dict(turn) for turn in prompt]
    for turn in reversed(turns):
        if turn["role"] == "user":
            turn["content"] += text
            break
    return turns


def read_prompt(value: Any, where: str, key: str) -> Text:
    """Validate a prompt, and return its text or its messages as a tuple."""
    if isinstance(value, str):
        if not value.strip():
            raise complaint(where, key, value, "text that is not blank, or chat messages")
        check_text(value, where, key)
        return value
    if not isinstance(value, Sequence) or not value or isinstance(value, bytes):
        raise complaint(where, key, value, "text, or a list of chat messages")
    for turn in value:
        if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
            raise complaint(where, key, turn, f'messages with a "role" among {", ".join(ROLES)}')
        if not isinstance(turn.get("content"), str):
            raise complaint(where, key, turn, 'messages whose "content" is text')
        check_text(turn["content"], where, key)
    return tuple(value)


def check_text(text: str, where: str, key: str) -> None:
    """Raise DataError for text that is too long, or that has lone surrogates, which UTF-8 cannot
    encode.
    """
    if len(text) > MAX_CHARACTERS:
        found, accepted = f"{len(text):,} characters", f"at most {MAX_CHARACTERS:,}"
        raise DataError(message(f"{where} {key}", found, accepted, "shorten it"))
    # Python strings store whether they are ASCII, so `isascii` does not scan the text.
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise complaint(where, key, text[error.start], "text that UTF-8 can hold") from error


def complaint(where: str, key: str, found: Any, accepted: str) -> DataError:
    """Return an error such as ``file.jsonl:12 key: found ...; accepted: ...``."""
    return DataError(message(f"{where} {key}", shown(found), accepted))


def shown(value: Any) -> str:
    """Return the truncated repr of a value, for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _read_finished(problem: Problem, where: str) -> Problem:
    if not isinstance(problem.id, str) or not problem.id:
        raise complaint(where, "id", problem.id, "text that is not empty")
    read_prompt(problem.prompt, where, "prompt")
    read_think_and_effort(problem.think, problem.effort, where)
    return problem if problem.source else dataclasses.replace(problem, source=where)


def _read_id(spec: dict[str, Any], where: str, default_id: str) -> str:
    value = spec.pop("id", None)
    if value is None:
        return default_id
    if isinstance(value, str) and value:
        check_text(value, where, "id")
        return value
    if type(value) is int:
        return str(value)
    raise complaint(where, "id", value, "text or a whole number")


def read_tags(value: Any, where: str) -> tuple[str, ...]:
    """Return the tags of a row, which are a list of texts or a single text."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(tag, str) for tag in value):
        return tuple(value)
    raise complaint(where, "tags", value, "a list of texts")


def _take_final_answer(spec: dict[str, Any], where: str) -> None:
    """Set the answer of a GSM8K row to the text after the last ``####``, without thousands
    separators.
    """
    answer = spec.get("answer")
    if not isinstance(answer, str) or "####" not in answer:
        return
    final = answer.rpartition("####")[2].replace(",", "").strip()
    if not final:
        raise complaint(where, "answer", answer[-40:], "an answer after ####")
    spec["answer"] = final


def _take_competition_keys(spec: dict[str, Any]) -> tuple[str, ...]:
    r"""Convert the keys of a MATH row, and return its type and level as tags.

    If a MATH row has no answer, the last ``\boxed{...}`` of the solution becomes the answer.
    """
    if "answer" not in spec and isinstance(solution := spec.get("solution"), str):
        boxed = last_box(solution)
        if boxed:
            spec["answer"] = boxed
    tags: list[str] = []
    if isinstance(spec.get("type"), str):
        tags.append(spec.pop("type"))
    level = spec.get("level")
    if isinstance(level, str | int | float):
        number = f"{level:g}" if isinstance(level, float) else str(level)
        tags.append(f"level-{number.lower().removeprefix('level').strip()}")
        del spec["level"]
    return tuple(tags)


def last_box(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` in a text; None if missing or unclosed."""
    # Braces nest, as in \boxed{\frac{1}{2}}, so a regular expression cannot find the end.
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    start += len(r"\boxed{")
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end].strip()
    return None
