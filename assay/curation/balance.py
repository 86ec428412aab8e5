"""`assay data balance`: how many rows each tag gives, at most or in proportion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from assay.config.section import Natural, Positive, Text
from assay.curation.base import DataStage, Manifest, Output, StageSettings
from assay.curation.quotas import Draw, in_proportion
from assay.curation.texts import read_tagged
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

    seed: int = 0
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


def balance(settings: BalanceSettings, folder: Path) -> Manifest:
    """Count the rows of each tag, then write those that are drawn."""
    with Output("balance", settings, folder) as out:
        wanted = tuple(settings.weights or settings.tags)
        rows = out.open(settings.inputs, read_tagged)
        counts = Counter(_tag_of(row, settings.key, wanted) for row in rows)
        if absent := [tag for tag in settings.weights or () if not counts[tag]]:
            there = sorted({tag for row in rows for tag in _tags(row, settings.key)})
            accepted = f"tags that rows have: {', '.join(there[:20]) or 'none'}"
            raise DataError(message(f"balance weights.{absent[0]}", "no row of this tag", accepted))
        quotas = _quotas(settings, counts)
        draws = {
            tag: Draw(counts[tag], quota, f"{settings.seed} {tag}") for tag, quota in quotas.items()
        }
        out.add_filters(*(f"too many of {tag}" for tag in draws))
        for row in rows:
            tag = _tag_of(row, settings.key, wanted)
            if tag not in draws:
                out.take("no tag of the weights", row, f"its tags: {_tags(row, settings.key)}")
            elif draws[tag].takes():
                out.write(row)
            else:
                reason = f"{quotas[tag]} of {counts[tag]} rows of {tag} were drawn"
                out.take(f"too many of {tag}", row, reason)
        out.manifest.measured = {
            f"rows of {tag}": f"{quotas.get(tag, 0)} of {count}" for tag, count in counts.items()
        }
    return out.manifest


def _tags(row: Mapping[str, Any], key: str) -> list[str]:
    found = row.get(key, [])
    return list(map(str, found)) if isinstance(found, list) else [str(found)]


def _tag_of(row: Mapping[str, Any], key: str, wanted: tuple[str, ...]) -> str:
    """Return the first tag of a row that counts; `NONE` where it has none."""
    return next((tag for tag in _tags(row, key) if not wanted or tag in wanted), NONE)


def _quotas(settings: BalanceSettings, counts: Counter[str]) -> dict[str, int]:
    if settings.at_most is not None:
        return {tag: min(count, settings.at_most) for tag, count in counts.items()}
    assert settings.weights is not None
    available = {tag: counts[tag] for tag in settings.weights}
    return in_proportion(available, settings.weights, settings.rows, "balance rows")


STAGE = DataStage("balance", BalanceSettings, balance)
