"""`assay data balance`: limit the number of rows per tag, or mix tags in proportion to weights."""

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
"""Tag under which rows without a counted tag are counted."""


class BalanceSettings(StageSettings):
    """Keep a maximum number of rows per tag, or numbers of rows in proportion to tag weights.

    Rows are drawn at random, and the drawn rows keep their order. Each row is read twice. Memory
    grows only with the number of tags.
    """

    at_most: Natural | None = None
    """Maximum number of rows per tag."""

    weights: dict[str, Positive] | None = None
    """Relative numbers of rows per tag, instead of `at_most`: `{math = 3, code = 1}` keeps three
    rows of `math` for each row of `code`. Rows of other tags are removed."""

    rows: Natural | None = None
    """Total number of rows, only with `weights`. None: the largest number that the scarcest tag
    allows."""

    key: Text = "tags"
    """Key of a row's tags. A key whose value is a text or a number, such as ``source`` or
    ``level``, is also accepted."""

    tags: tuple[Text, ...] = ()
    """Tags to count, only with `at_most`. Empty: all tags. A row counts under its first counted
    tag, or under ``(none)`` if the row has no counted tag."""

    seed: Seed = 0
    """Seed of the random draw."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.at_most is None) == (not self.weights):
            found = "neither at_most nor weights" if self.at_most is None else "weights too"
            raise ValueError(message("at_most", found, "one of the two"))
        if self.rows and not self.weights:
            raise ValueError(message("rows", self.rows, "a number, only with weights"))
        if self.tags and self.weights:
            found = "tags beside weights"
            raise ValueError(
                message("tags", found, "tags, only with at_most; weights name their own")
            )
        return self


def balance(settings: BalanceSettings, out: Output) -> None:
    """Count the rows of each tag, then write the drawn rows."""
    # Exact proportions need the counts of all tags before the first row is written.
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
    """Return a row's first tag in ``wanted``, or `NONE`; an empty ``wanted`` accepts every tag."""
    return next((tag for tag in _tags(row, key) if not wanted or tag in wanted), NONE)


STAGE = DataStage(BalanceSettings, balance)
