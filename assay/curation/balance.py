"""`assay data balance`: how many rows each tag gives, at most or in proportion."""

from __future__ import annotations

from collections import Counter
from typing import Self

from pydantic import model_validator

from assay.config.section import Natural, Positive, Seed, Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.mix import Lots, in_proportion
from assay.curation.output import Output
from assay.data.completions import Record
from assay.errors import DataError, message

NONE = "(none)"
"""What rows without a tag that counts are counted under."""


class BalanceSettings(StageSettings):
    """Keep so many rows of each tag: at most a number, or in proportion to weights.

    Rows are drawn by chance and keep their order. The rows are read twice, and memory grows with
    the number of tags only.
    """

    at_most: Natural | None = None
    """The most rows of one tag."""

    weights: dict[str, Positive] | None = None
    """Or how the tags stand to one another: `{math = 3, code = 1}` keeps three rows of `math` for
    each of `code`. Rows of other tags go."""

    rows: Natural | None = None
    """With `weights`: rows in all. Without it: as many as the scarcest tag allows."""

    key: Text = "tags"
    """The key of a row that holds what is called a tag here. Another may hold a text or a number,
    as ``source`` or ``level``."""

    tags: tuple[Text, ...] = ()
    """With `at_most`: the tags that count. Empty: all. A row counts under the first of its tags
    that counts, and under ``(none)`` where it has none."""

    seed: Seed = 0
    """Of the draw."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.at_most is None) == (not self.weights):
            found = "neither it nor weights" if self.at_most is None else "weights too"
            raise ValueError(message("at_most", found, "one of the two"))
        if self.rows and not self.weights:
            raise ValueError(message("rows", self.rows, "a number beside weights only"))
        if self.tags and self.weights:
            found = "tags beside weights"
            raise ValueError(message("tags", found, "tags beside at_most; weights name their own"))
        return self


def balance(settings: BalanceSettings, out: Output) -> None:
    """Count the rows of each tag, then write those that are drawn."""
    wanted, key = tuple(settings.weights or settings.tags), settings.key
    rows = out.open(settings.inputs, lambda row: row.tags)
    counts = Counter(_tag_of(row, key, wanted) for row in rows)
    if settings.weights is None:
        quotas = {tag: min(count, settings.at_most or 0) for tag, count in counts.items()}
    else:
        if absent := [tag for tag in settings.weights if not counts[tag]]:
            there = sorted({tag for row in rows for tag in _tags(row, key)})
            accepted = f"tags that rows have: {', '.join(there[:20]) or 'none'}"
            raise DataError(message(f"balance weights.{absent[0]}", "no row of this tag", accepted))
        quotas = in_proportion(counts, settings.weights, settings.rows, "balance rows")
    draws = {tag: Lots(counts[tag], most, f"{settings.seed} {tag}") for tag, most in quotas.items()}
    out.add_filters(*(f"too many of {tag}" for tag in draws))
    for row in rows:
        tag = _tag_of(row, key, wanted)
        if tag not in draws:
            out.take("no tag of the weights", row.keys, f"its tags: {_tags(row, key)}")
        elif draws[tag].takes():
            out.write(row.keys)
        else:
            reason = f"{quotas[tag]} of {counts[tag]} rows of {tag} were drawn"
            out.take(f"too many of {tag}", row.keys, reason)
    out.manifest.measured = {
        f"rows of {tag}": f"{quotas.get(tag, 0)} of {count}" for tag, count in counts.items()
    }


def _tags(row: Record, key: str) -> list[str]:
    found = row.tags if key == "tags" else row.keys.get(key, [])
    return list(map(str, found)) if isinstance(found, list) else [str(found)]


def _tag_of(row: Record, key: str, wanted: tuple[str, ...]) -> str:
    """Return the first tag of a row that counts; `NONE` where it has none."""
    return next((tag for tag in _tags(row, key) if not wanted or tag in wanted), NONE)


STAGE = DataStage(BalanceSettings, balance)
