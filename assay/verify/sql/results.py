"""Comparison of the rows of two queries: as multisets or in order, with a tolerance for numbers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

Row = tuple[Any, ...]
# Groups of more rows than this are compared in sorted order only.
_MOST_PAIRED = 200


def decoded(rows: Sequence[Sequence[Any]]) -> list[Row]:
    """Return the rows that `query_process` printed, with reals and blobs decoded."""
    return [tuple(_decoded(value) for value in row) for row in rows]


def _decoded(value: Any) -> Any:
    if isinstance(value, Mapping):
        found = cast("Mapping[str, str]", value)
        return float(found["real"]) if "real" in found else bytes.fromhex(found["blob"])
    return int(value) if isinstance(value, bool) else value


def same_rows(
    found: Sequence[Row], expected: Sequence[Row], ordered: bool, tolerance: float
) -> bool:
    """Whether two results have the same rows, in the same order if ``ordered``.

    Result columns are compared by position, and column names do not matter. NULL equals only NULL.
    A number equals a number within the relative tolerance, and never a text. Texts are compared
    exactly. Repeated rows count.
    """
    if len(found) != len(expected):
        return False
    if ordered:
        return all(
            _same_row(one, other, tolerance) for one, other in zip(found, expected, strict=True)
        )
    mine, theirs = _groups(found), _groups(expected)
    return mine.keys() == theirs.keys() and all(
        _same_group(mine[key], theirs[key], tolerance) for key in mine
    )


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows by all values except numbers; of a number, only the column counts."""
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        key = [
            [0]  # No text and no NULL has this sort key.
            if isinstance(value, int | float)
            else ["blob", value.hex()]
            if isinstance(value, bytes)
            else [value]
            for value in row
        ]
        groups[json.dumps(key)].append(
            tuple(value for value in row if isinstance(value, int | float))
        )
    return groups


def _same_group(found: list[Row], expected: list[Row], tolerance: float) -> bool:
    if len(found) != len(expected):
        return False
    for key in (None, _rounded):
        pairs = zip(sorted(found, key=key), sorted(expected, key=key), strict=True)
        if all(_same_row(one, other, tolerance) for one, other in pairs):
            return True
    # Within the tolerance, two results may be sorted differently.
    if len(found) > _MOST_PAIRED:
        return False
    left = [*expected]
    for row in found:
        partner = next((n for n, one in enumerate(left) if _same_row(row, one, tolerance)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def _rounded(row: Row) -> Row:
    # Numbers that differ by a rounding error must not decide the order before later columns do.
    return tuple(float(f"{value:.6g}") for value in row)


def _same_row(one: Row, other: Row, tolerance: float) -> bool:
    return len(one) == len(other) and all(
        _same(a, b, tolerance) for a, b in zip(one, other, strict=True)
    )


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        # Whole numbers above 2^53 differ although their floats are equal.
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        # The absolute tolerance is needed for sums that are zero except for rounding.
        least = min(1e-12, tolerance)
        return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=least)
    return type(one) is type(other) and one == other
