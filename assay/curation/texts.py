"""The texts of a row that stages compare and sort by: its prompt, its completion, or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from assay.curation.base import Row, read_row
from assay.data.overlap import plain_text
from assay.data.rows import (
    COMPLETION_KEYS,
    PROMPT_KEYS,
    check_text,
    complaint,
    key_among,
    prompt_and_completion,
    prompt_of,
    read_tags,
)

Part = Literal["prompt", "completion", "all"]
DOCUMENT = "text"
"""The key of a row that is a plain document: it is its prompt, and its completion too."""


class TextReader:
    """Reads rows that have a text to look at; raises DataError, with their place, for others."""

    def __init__(self, part: Part) -> None:
        self.part: Part = part

    def __call__(self, row: Any, where: str, default_id: str) -> Row:
        """Return the row as it stands."""
        copy = read_tagged(row, where, default_id)
        text_of(copy, self.part, where)
        return copy


def read_tagged(row: Any, where: str, default_id: str) -> Row:
    """Return a row as it stands; its tags, if it has any, are a list of texts."""
    copy = read_row(row, where, default_id)
    if "tags" in copy:
        copy["tags"] = list(read_tags(copy["tags"], where))
    return copy


def text_of(row: Mapping[str, Any], part: Part, where: str = "row") -> str:
    """Return the text of a part of a row; a system's turn is no part of a prompt."""
    has_prompt = any(key in row for key in PROMPT_KEYS)
    if not has_prompt and "messages" not in row:
        key_among([DOCUMENT], row, where, "a prompt, messages, or the text of a document")
        if not isinstance(text := row[DOCUMENT], str) or not text.strip():
            raise complaint(where, DOCUMENT, text, "text that is not blank")
        check_text(text, where, DOCUMENT)
        return text
    has_completion = "messages" in row or any(key in row for key in COMPLETION_KEYS)
    if has_prompt and (part == "prompt" or (part == "all" and not has_completion)):
        return plain_text(prompt_of(row, where))
    prompt, completion = prompt_and_completion(row, where)
    texts = {"prompt": plain_text(prompt), "completion": completion}
    return "\n".join(texts.values()) if part == "all" else texts[part]
