"""`assay data mix`: rows of several sources, in proportion and mixed by chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Self

from pydantic import model_validator

from assay.config.section import Natural, Positive
from assay.curation.base import DataStage, Manifest, Output, Row, StageSettings, read_row
from assay.curation.quotas import Draw, in_proportion
from assay.errors import message


class MixSettings(StageSettings):
    """Mix the rows of several sources, in proportion to weights.

    The rows of a source are drawn by chance, and keep their order among one another. No row comes
    twice. Memory grows with the rows by some 100 bytes each, since ids of two sources may be the
    same: then the name of the source is put before the id.
    """

    weights: tuple[Positive, ...] = ()
    """How the sources stand to one another in the output, in the order of `inputs`: `[3, 1]` takes
    three rows of the first for each of the second. Empty: every row of every source."""

    rows: Natural | None = None
    """Rows in all. Without it: one pass over the source that the weights use up first."""

    seed: int = 0
    """Of the draw and of the order."""

    @model_validator(mode="after")
    def _a_weight_each(self) -> Self:
        if self.weights and len(self.weights) != len(self.inputs):
            found = f"{len(self.weights)} weights for {len(self.inputs)} inputs"
            raise ValueError(message("weights", found, "one for each of them"))
        return self


def mix(settings: MixSettings, folder: Path) -> Manifest:
    """Write rows of all sources in one order that chance gives."""
    with Output("mix", settings, folder) as out:
        rows = out.open(settings.inputs, read_row)
        names = [entry["source"] for entry in out.manifest.inputs]
        sizes = {entry["source"]: entry["rows"] for entry in out.manifest.inputs}
        weights = dict(zip(names, settings.weights, strict=True)) if settings.weights else sizes
        quotas = in_proportion(sizes, weights, settings.rows, "mix rows")
        starts = accumulate(sizes.values(), initial=0)
        streams = [
            _drawn(out, rows[start : start + size], quotas[name], f"{settings.seed} {number}")
            for number, (start, (name, size)) in enumerate(zip(starts, sizes.items(), strict=False))
        ]
        left = [quotas[name] for name in names]
        order, ids = Random(settings.seed), _Ids(names)
        for _ in range(sum(left)):
            [source] = order.choices(range(len(left)), left)
            left[source] -= 1
            out.write(ids.apart(next(streams[source]), source))
        for stream in streams:
            assert next(stream, None) is None  # the rest was not drawn
        out.manifest.measured = {f"rows of {name}": quotas[name] for name in names}
        out.manifest.measured["ids that two sources had"] = ids.num_renamed
    return out.manifest


def _drawn(out: Output, rows: Sequence[Row], wanted: int, seed: str) -> Iterator[Row]:
    draw = Draw(len(rows), wanted, seed)
    for row in rows:
        if draw.takes():
            yield row
        else:
            out.take("not drawn", row, f"{wanted} of {len(rows)} rows of its source were drawn")


class _Ids:
    """Keeps the ids of several sources apart."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._source_of: dict[int, int] = {}
        self.num_renamed = 0

    def apart(self, row: Row, source: int) -> Row:
        """Return the row; its id begins with its source where another source had the same."""
        if self._source_of.setdefault(hash(str(row["id"])), source) == source:
            return row
        self.num_renamed += 1
        return {**row, "id": f"{self._names[source]}:{row['id']}"}


STAGE = DataStage("mix", MixSettings, mix)
