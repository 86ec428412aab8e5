"""Data stage ``vary``: each row once for each way to ask, as with and without reasoning."""

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
    """One way to ask."""

    append: str = ""
    """Text behind the question, as `` /no_think``: behind the prompt, or the user's last turn."""
    reasoning: Literal["keep", "empty"] = "keep"
    """What becomes of a completion's reasoning. ``empty``: an empty block stands in its place, as
    Qwen3 answers without thinking."""
    keys: dict[str, Any] = Field(default={})
    """Keys that the row gets, as ``think``, ``effort`` or ``verifier``."""


class VarySettings(StageSettings):
    """Write each row once for each way to ask, as with and without reasoning.

    A row is a problem, or a prompt with a completion. The name of the variant is put behind its id
    and its tags.
    """

    variants: Annotated[dict[Text, Variant], Field(min_length=1)]
    """Ways to ask, by their names: ``append`` is put behind the question. ``reasoning = "empty"``
    puts an empty think block in the place of a completion's reasoning. ``keys`` are set in the row:
    ``{no_think = {append = " /no_think", reasoning = "empty", keys = {think = "free"}}}``."""

    def most_written(self, num_read: int | None) -> int | None:
        """Return a row for each row and variant."""
        return None if num_read is None else num_read * len(self.variants)


def vary(settings: VarySettings, out: Output) -> None:
    """Write every row in all variants."""

    def check(row: Record) -> object:
        return row.tags, _prompt_key(row)

    for row in out.open(settings.inputs, check, key=lambda row: row.id):
        for name, variant in settings.variants.items():
            out.write(varied(row, name, variant))


def varied(row: Record, name: str, variant: Variant) -> Row:
    """Return a row as one variant has it."""
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
    """Leave the answer alone of what a row's completion says, behind an empty block."""
    if "completion" in row:
        row["completion"] = _answer_alone(row["completion"])
    elif "messages" in row and row["messages"][-1]["role"] == "assistant":
        answer = _answer_alone(reply_text(row["messages"][-1]))
        row["messages"] = [*row["messages"][:-1], {"role": "assistant", "content": answer}]


def _answer_alone(text: str) -> str:
    return f"{EMPTY_BLOCK}{ThinkFormat('free').split(text)[1].strip()}"


STAGE = DataStage(VarySettings, vary)
