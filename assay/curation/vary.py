"""Data transform ``vary``: write variants of each row, such as with and without reasoning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from assay.config.section import Section, Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.output import Output, Row
from assay.data.completions import Record
from assay.data.rows import PROMPT_KEYS, appended, key_among, reply_text
from assay.types import ThinkFormat

EMPTY_BLOCK = "<think>\n\n</think>\n\n"


class Variant(Section):
    """One variant of a row."""

    append: str = ""
    """Text to append to the prompt, or to the last user message of a chat, such as
    `` /no_think``."""
    reasoning: Literal["keep", "empty"] = "keep"
    """Treatment of a completion's reasoning. ``empty``: an empty think block replaces it, as in
    Qwen3's no-think answers."""
    keys: dict[str, Any] = Field(default={})
    """Keys to set in the row, such as ``think``, ``effort`` or ``verifier``."""


class VarySettings(StageSettings):
    """Write variants of each row, such as with and without reasoning.

    A row is a problem, or a prompt with a completion. The name of the variant is appended to the
    row's id and added to the row's tags.
    """

    variants: Annotated[dict[Text, Variant], Field(min_length=1)]
    """Variants by name. ``append`` is a text to add after the question. ``reasoning = "empty"``
    replaces a completion's reasoning with an empty think block. ``keys`` is a table of keys to set
    in the row. Example:
    ``{no_think = {append = " /no_think", reasoning = "empty", keys = {think = "free"}}}``."""

    def most_written(self, num_read: int | None) -> int | None:
        """Return the number of rows times the number of variants."""
        return None if num_read is None else num_read * len(self.variants)


def vary(settings: VarySettings, out: Output) -> None:
    """Write all variants of every row."""

    # The tags and the prompt of every row are read before any row is written.
    # A row with invalid tags or an invalid prompt is therefore reported before the output.
    def check(row: Record) -> object:
        return row.tags, _prompt_key(row)

    for row in out.open(settings.inputs, check, key=lambda row: row.id):
        for name, variant in settings.variants.items():
            out.write(varied(row, name, variant))


def varied(row: Record, name: str, variant: Variant) -> Row:
    """Return one variant of a row."""
    found = {**row.keys, "id": f"{row.id}-{name}", "tags": [*row.tags, name]}
    key = _prompt_key(row)
    found[key] = appended(found[key], variant.append)
    if variant.reasoning == "empty":
        _empty_block(found)
    return found | variant.keys


def _prompt_key(row: Record) -> str:
    names = (*PROMPT_KEYS, "messages")
    return key_among(names, row.keys, row.source, " or ".join(f'"{name}"' for name in names))


def _empty_block(row: Row) -> None:
    """Replace the reasoning of a row's completion with an empty think block."""
    if "completion" in row:
        row["completion"] = _answer_alone(row["completion"])
    elif "messages" in row and row["messages"][-1]["role"] == "assistant":
        answer = _answer_alone(reply_text(row["messages"][-1]))
        row["messages"] = [*row["messages"][:-1], {"role": "assistant", "content": answer}]


def _answer_alone(text: str) -> str:
    return f"{EMPTY_BLOCK}{ThinkFormat('free').split(text)[1].strip()}"


STAGE = DataStage(VarySettings, vary)
