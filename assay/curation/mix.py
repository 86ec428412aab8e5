"""`assay data mix`: mix the rows of several sources in random order, in given proportions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Self

from pydantic import model_validator

from assay.config.section import Natural, Positive, Seed
from assay.curation.base import DataStage, StageSettings
from assay.curation.output import Output, Row
from assay.data.completions import Record
from assay.errors import DataError, message


class MixSettings(StageSettings):
    """Mix the rows of several sources, in proportion to weights.

    The rows of a source are drawn at random without replacement and keep their relative order.
    Memory grows by about 100 bytes per row, for detecting repeated ids. If rows of two sources have
    the same id, the name of the source is prepended to the second id.
    """

    weights: tuple[Positive, ...] = ()
    """Relative sizes of the sources in the output, in the order of `inputs`: `[3, 1]` takes three
    rows of the first source for each row of the second. Empty: all rows of all sources."""

    rows: Natural | None = None
    """Total number of rows. None: the largest number that the sources allow at these weights."""

    seed: Seed = 0
    """Random seed of the drawn rows and of their order."""

    def most_written(self, num_read: int | None) -> int | None:
        """Return the configured number of `rows`, or else the number of input rows."""
        return num_read if self.rows is None else self.rows

    @model_validator(mode="after")
    def _weights_match_inputs(self) -> Self:
        if self.weights and len(self.weights) != len(self.inputs):
            found = f"{len(self.weights)} weights for {len(self.inputs)} inputs"
            raise ValueError(message("weights", found, "one for each of them"))
        return self


def mix(settings: MixSettings, out: Output) -> None:
    """Write the rows of all sources, interleaved at random; each source keeps the order of its
    rows."""
    rows = out.open(settings.inputs)
    names = [entry["source"] for entry in out.manifest.inputs]
    sizes = {entry["source"]: entry["rows"] for entry in out.manifest.inputs}
    weights = dict(zip(names, settings.weights, strict=True)) if settings.weights else sizes
    quotas = in_proportion(sizes, weights, settings.rows, "mix rows")
    starts = accumulate(sizes.values(), initial=0)
    streams = [
        _drawn(out, rows[start : start + size], quotas[name], f"{settings.seed} {number}")
        for number, (start, (name, size)) in enumerate(zip(starts, sizes.items(), strict=False))
    ]
    # Each source is chosen with a probability proportional to its number of remaining rows.
    # Every interleaving of the sources is then equally likely, with one row per source in memory.
    left = [quotas[name] for name in names]
    order, num_renamed = Random(settings.seed), 0
    source_of_id: dict[int, int] = {}
    for _ in range(sum(left)):
        [source] = order.choices(range(len(left)), left)
        left[source] -= 1
        row = next(streams[source])
        if source_of_id.setdefault(hash(str(row["id"])), source) != source:
            row["id"] = f"{names[source]}:{row['id']}"
            num_renamed += 1
        out.write(row)
    for stream in streams:
        # All drawn rows are written; the loop reads each source to its end to count other rows.
        assert next(stream, None) is None
    out.manifest.measured = {f"rows of {name}": quotas[name] for name in names}
    out.manifest.measured["ids that two sources had"] = num_renamed


def _drawn(out: Output, rows: Sequence[Record], wanted: int, seed: str) -> Iterator[Row]:
    draw = Lots(len(rows), wanted, seed)
    for row in rows:
        if draw.takes():
            yield row.keys
        else:
            out.take(
                "not drawn", row.keys, f"{wanted} of {len(rows)} rows of its source were drawn"
            )


def in_proportion(
    available: Mapping[str, int], weights: Mapping[str, float], total: int | None, where: str
) -> dict[str, int]:
    """Compute the number of rows per name (a source or a tag), in proportion to the weights.

    available: number of existing rows per name. total: total number of rows; None: the largest
    possible number. The names with the largest fractions are rounded up. Raises DataError, located
    at ``where``, if a name has too few rows.
    """
    whole = sum(weights.values())
    # At fixed proportions, the scarcest source or tag limits the total.
    # The terms 1e-9 below keep exact products, such as 3 * (1 / 3), from being rounded down.
    most, scarcest = min((available[name] * whole / weights[name], name) for name in weights)
    if total is None:
        total = int(most + 1e-9)
    elif total > most + 1e-9:
        accepted = f"at most {int(most + 1e-9)} at these weights"
        remedy = f"{scarcest} has {available[scarcest]} rows"
        raise DataError(message(where, total, accepted, remedy))
    exact = {name: total * weight / whole for name, weight in weights.items()}
    quotas = {name: int(share + 1e-9) for name, share in exact.items()}
    losers = sorted(weights, key=lambda name: quotas[name] - exact[name])
    for name in losers[: total - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


class Lots:
    """Draws exactly ``wanted`` rows from ``of`` rows in one pass, with equal probabilities.

    The algorithm stores no row (Knuth, The Art of Computer Programming, section 3.4.2, algorithm
    S).
    """

    def __init__(self, of: int, wanted: int, seed: str) -> None:
        self.left, self.wanted = of, wanted
        self._random = Random(seed)

    def takes(self) -> bool:
        """Whether the next row is drawn."""
        taken = self._random.random() * self.left < self.wanted
        self.left -= 1
        self.wanted -= taken
        return taken


STAGE = DataStage(MixSettings, mix)
