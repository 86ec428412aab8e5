"""Normalize a reward model's scores to mean 0 and standard deviation 1 on a reference set."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field

from assay.data.completions import Record
from assay.errors import DataError, RunError, VerifierError, message
from assay.host.files import read_json, write_json
from assay.host.records import checked
from assay.reward_models.checkpoint import checkpoint_hash
from assay.reward_models.options import place
from assay.types import Completion, Problem

RawScores = Callable[[int, Sequence[tuple[Problem, Completion]]], Sequence[float | None]]
_WHERE = f"{place('reward_model')}.normalize"


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean and standard deviation of a reference set."""

    mean: float = 0.0
    std: float = 1.0

    def of(self, raw: float) -> float:
        """Return (raw - mean) / std."""
        return (raw - self.mean) / self.std


def scales_of(
    normalize: Any, paths: Sequence[str], how: str, raw_scores: RawScores
) -> tuple[Scale, ...]:
    """Return one scale per member of the ensemble, as configured or measured on the rows of a file.

    normalize: ``{mean, std}``, or a JSON Lines file of rows with a prompt and a completion.
    how: text that describes the settings that affect raw scores, such as the truncation. Measured
    values are cached in ``FILE.stats.json``, keyed by hashes of the checkpoint, the rows and
    ``how``.

    The standard deviation divides by n, not by n - 1. Raises VerifierError.
    """
    if isinstance(normalize, Mapping):
        return _given(cast("Mapping[str, Any]", normalize), len(paths))
    file = Path(normalize).expanduser()
    try:
        content = file.read_bytes()
    except OSError as error:
        found = f"{normalize}, which cannot be read ({error.strerror})"
        raise VerifierError(message(_WHERE, found, "{mean, std}, or a JSON Lines file")) from error
    store = file.with_name(f"{file.name}.stats.json")
    stored: dict[str, Any] = read_json(store) or {}
    scales: list[Scale] = []
    for member, path in enumerate(paths):
        key = hashlib.sha256(content + how.encode()).hexdigest()[:12]
        key = f"{checkpoint_hash(path)}-{key}"
        # If the cache entry is missing or damaged, the values are measured again.
        if not _is_scale(stored.get(key)):
            raws = raw_scores(member, _pairs(content, file))
            stored[key] = _measure([raw for raw in raws if raw is not None])
            # If the folder is not writable, the next process measures the scale again.
            with suppress(OSError):
                write_json(store, stored)
        scales.append(_scale(stored[key]))
    return tuple(scales)


class _Facts(BaseModel):
    mean: Annotated[float, Field(allow_inf_nan=False)]
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _given(table: Mapping[str, Any], count: int) -> tuple[Scale, ...]:
    columns = [each if isinstance(each, list) else [each] * count for each in table.values()]
    for name, column in zip(table, columns, strict=True):
        if len(column) != count:
            accepted = f"a number, or {count}: one for each path"
            raise VerifierError(message(f"{_WHERE}.{name}", f"{len(column)} numbers", accepted))
    rows = (dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True))
    return tuple(map(_scale, rows))


def _scale(facts: Mapping[str, float]) -> Scale:
    if not facts["std"] > 0:
        raise VerifierError(message(f"{_WHERE}.std", facts["std"], "a number above 0"))
    return Scale(float(facts["mean"]), float(facts["std"]))


def _is_scale(facts: Any) -> bool:
    try:
        checked(facts, _Facts, "")
    except RunError:
        return False
    return True


def _measure(raws: Sequence[float]) -> dict[str, float]:
    if len(raws) < 2:
        found = f"{len(raws)} rows that the model can score"
        raise VerifierError(message(_WHERE, found, "2 or more; hundreds are better"))
    # `fsum` rounds only once, so the order of the rows does not change the scale.
    mean = math.fsum(raws) / len(raws)
    variance = math.fsum((raw - mean) ** 2 for raw in raws) / len(raws)
    return {"mean": mean, "std": math.sqrt(variance), "rows": len(raws)}


def _pairs(content: bytes, file: Path) -> list[tuple[Problem, Completion]]:
    pairs: list[tuple[Problem, Completion]] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = Record.read(json.loads(line), where, f"reference {number}")
            pairs.append(row.to_judge())
        except (DataError, json.JSONDecodeError) as error:
            raise VerifierError(f"{_WHERE}: {where}: {str(error).removeprefix(where)}") from error
    return pairs
