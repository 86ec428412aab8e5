"""Completion rows: a problem, a completion and a recorded verdict, parsed on access.

``assay eval --out``, ``assay compare --out`` and data transforms write completion rows. Data
transforms, ``assay verify`` and preference training read completion rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from assay.data.overlap import plain_text
from assay.data.rows import (
    COMPLETION_KEYS,
    PROMPT_KEYS,
    Text,
    check_completion,
    check_text,
    complaint,
    copy_row,
    key_among,
    prompt_and_completion,
    prompt_of,
    read_problem,
    read_tags,
)
from assay.data.sources import JsonLines, open_source
from assay.data.traces import read_said
from assay.errors import DataError, message
from assay.types import Completion, Problem, Status, ThinkFormat, Tokens, Verdict

TextPart = Literal["prompt", "completion", "all"]
DOCUMENT = "text"
"""Key of a plain document's text. Transforms treat a document as both prompt and completion."""
RECORDED = "recorded@1"
# The id of a completion is its problem's id with the suffix #DRAW/NUMBER.
_SIBLING = re.compile(r"#\d+/\d+$")


def problem_id_of(row: Mapping[str, Any]) -> str:
    """Return the key ``problem_id`` of a row, or else the row's ``id`` without the draw and
    number.
    """
    return str(row.get("problem_id", _SIBLING.sub("", str(row["id"]))))


@dataclass(frozen=True, eq=False)
class Record:
    """A completion row without its null keys.

    The properties parse the values of the row, and raise DataError for an invalid value. source:
    ``file.jsonl:12``.
    """

    keys: dict[str, Any]
    source: str

    @classmethod
    def read(cls, row: Any, where: str, default_id: str) -> Record:
        """Return the record of a row; a row without an id gets ``default_id``."""
        keys = copy_row(row, where)
        keys.setdefault("id", default_id)
        return cls(keys, where)

    @property
    def id(self) -> str:
        """Id of the row."""
        return str(self.keys["id"])

    @property
    def problem_id(self) -> str:
        """Id of the row's problem, shared by all completions of the problem."""
        return problem_id_of(self.keys)

    @property
    def prompt(self) -> Text:
        """Prompt of the completion: a text, or the messages before the last assistant message."""
        if self._is_chat:
            return prompt_and_completion(self.keys, self.source)[0]
        return prompt_of(self.keys, self.source)

    @property
    def completion(self) -> str:
        """Text of the completion, which may be empty."""
        # A policy may end a completion at once, so a recorded completion may be "".
        # Training rows need text, so `prompt_and_completion` would reject an empty completion.
        text = self.keys.get("completion")
        if isinstance(text, str):
            return text
        return prompt_and_completion(self.keys, self.source)[1]

    def text(self, part: TextPart) -> str:
        """Return the text of a prompt, of a completion or of both, without the system message."""
        if not self._has(*PROMPT_KEYS, "messages"):
            accepted = "a prompt, messages, or the text of a document"
            key_among([DOCUMENT], self.keys, self.source, accepted)
            return check_completion(self.keys[DOCUMENT], self.source, DOCUMENT)
        texts = [] if part == "completion" else [plain_text(self.prompt)]
        is_whole = self._has(*COMPLETION_KEYS, "messages")
        if part == "completion" or (part == "all" and is_whole):
            check_text(self.completion, self.source, "completion")
            texts.append(self.completion)
        return "\n".join(texts)

    @property
    def _is_chat(self) -> bool:
        return self._has("messages") and not self._has("prompt")

    def _has(self, *keys: str) -> bool:
        return any(key in self.keys for key in keys)

    @property
    def tags(self) -> list[str]:
        """Tags of the row."""
        return list(read_tags(self.keys.get("tags", ()), self.source))

    @property
    def problem_keys(self) -> dict[str, Any]:
        """The row without its completion, in the format of a problem row."""
        # Unknown keys of a row become part of the spec, so the completion is removed before.
        keys = dict(self.keys)
        keys.pop("completion", None)
        if self._is_chat:
            keys["prompt"] = self.prompt
            del keys["messages"]
        return keys

    @cached_property
    def problem(self) -> Problem:
        """Problem of the row."""
        return read_problem(self.problem_keys, self.source, self.id)

    def to_judge(self) -> tuple[Problem, Completion]:
        """Return the problem and the completion of the row, for a verifier.

        The row needs no prompt. The row's ``think_tags`` replace the default think tags, and its
        ``token_ids`` become the completion's tokens.
        """
        keys = {"prompt": "(not given)", **self.keys}
        if self._has(*PROMPT_KEYS, "messages"):
            keys = dict(self.keys)
        tags = _think_tags(keys.pop("think_tags", None), self.source)
        tokens = _token_ids(keys.pop("token_ids", None), self.source)
        row = Record(keys, self.source)
        # `assay data collect` nests the length and finish reason of a completion under "collected".
        # Rows of evaluations have a completion's length and finish reason at the top level.
        facts = self.keys.get("collected", self.keys)
        length = facts.get("tokens")
        completion = Completion.from_text(
            self.completion,
            row.problem.id,
            ThinkFormat(row.problem.think or "free", *tags),
            length if type(length) is int else 0,
            "length" if facts.get("finish_reason") == "length" else "eos",
            read_said(self.keys.get("said"), self.completion, self.source),
        )
        return row.problem, completion if tokens is None else replace(completion, tokens=tokens)

    @cached_property
    def verdict(self) -> Verdict | None:
        """Recorded verdict (status and reward), or None."""
        # Rows have verdicts in three formats: {"verdict": {"status", ...}}, {"verdict": "passed"},
        # or the keys status and reward at the top level of the row.
        found: Any = self.keys.get("verdict", self.keys)
        status = found.get("status") if isinstance(found, Mapping) else found
        if status is None:
            return None
        if status not in get_args(Status):
            raise complaint(self.source, "status", status, ", ".join(get_args(Status)))
        if status == "not_judged":
            return Verdict.not_judged("unavailable", RECORDED)
        passed = float(status == "passed")
        # A reward may differ from 1.0 or 0.0, for example after a length penalty.
        reward = found.get("reward", passed) if isinstance(found, Mapping) else passed
        if not isinstance(reward, int | float) or isinstance(reward, bool):
            raise complaint(self.source, "reward", reward, "a number, where it was judged")
        return Verdict.of_score(passed, RECORDED, reward=float(reward))


def _think_tags(value: Any, where: str) -> tuple[str, ...]:
    """Return the think tags of a row, or () if the row has none; raises DataError for invalid
    tags.
    """
    if value is None:
        return ()
    tags: list[Any] = [*value] if isinstance(value, list | tuple) else []
    if len(tags) != 2 or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        raise complaint(where, "think_tags", value, 'two texts: ["<think>", "</think>"]')
    return tuple(tags)


def _token_ids(value: Any, where: str) -> Tokens | None:
    """Return the token ids of a row, or None if the row has none; raises DataError for invalid
    ids.
    """
    if value is None:
        return None
    ids: list[Any] = value if isinstance(value, list) else [None]
    if not all(type(one) is int and 0 <= one < 2**31 for one in ids):
        raise complaint(where, "token_ids", value, "a list of whole numbers from 0")
    return np.array(ids, np.int32)


def read_completions(path: Path) -> Iterator[Record]:
    """Yield a record for each non-blank line of a file; raises DataError."""
    source = open_source(str(path.expanduser()))
    if not isinstance(source, JsonLines):
        raise DataError(message(str(path), "another kind of source", "a JSON Lines file"))
    empty = True
    for _, line, raw in source.scan():
        empty = False
        where = f"{path}:{line}"
        yield Record.read(source.parse(raw, where), where, f"{path.name}:{line}")
    if empty:
        raise DataError(f"{path}: holds no rows; give one JSON object a line")
