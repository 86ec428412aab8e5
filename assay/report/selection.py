"""Filters and orders of rollouts, for `assay run rollouts` and `assay run view`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from assay.report.rollout_index import RolloutIndex, pc
from assay.report.shown_behaviors import shown_behaviors
from assay.types import Status

Order = Literal["newest", "worst", "best", "longest", "shortest", "flipped"]
GroupKind = Literal["all_pass", "mixed", "all_fail", "not_judged"]
ORDERS, GROUP_KINDS = get_args(Order), get_args(GroupKind)
CONFLICT = 0.5
"""The components of a verdict are in conflict if two of them differ by at least this value."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters of rollouts, all of which must match, and the order of the result.

    group: kind of the rollout's group. problem: id of the problem. text: text within the prompt or
    the completion, ignoring case. truncated: select completions that ended at the length limit.
    injected: select completions with injected tokens, which the policy did not sample. conflict:
    select verdicts whose components differ by `CONFLICT` or more. shows: name of a behavior that
    ``assay run behaviors`` found in the completion.

    order: ``worst`` and ``best`` keep judged rollouts only. ``flipped`` keeps the problems whose
    pass rate changed between their first and last draw, the largest change first, with one rollout
    from each of the two draws. In all other orders, equal rollouts are ordered newest first.
    """

    order: Order = "newest"
    status: Status | None = None
    group: GroupKind | None = None
    step: int | None = None
    problem: str | None = None
    tag: str | None = None
    text: str = ""
    truncated: bool = False
    injected: bool = False
    conflict: bool = False
    shows: str | None = None

    def places(self, index: RolloutIndex) -> np.ndarray:
        """Return the positions of the selected rollouts in the index's table, in order."""
        table = index.table
        places = np.flatnonzero(self._mask(table))
        # Filters on columns of the index are applied first, because these filters read no files.
        if self.shows is not None and len(places):
            places = places[self._showing(index, places)]
        if self.text and len(places):
            found = index.contains(self.text)
            # Another thread may have refreshed the index between the two reads.
            if len(found) != len(table):
                return self.places(index)
            places = places[found[places]]
        if self.order == "flipped":
            return flipped(table, places)
        return _ordered(table, places, self.order)

    def _showing(self, index: RolloutIndex, places: np.ndarray) -> np.ndarray:
        """Return for each rollout whether ``assay run behaviors`` found the behavior in it."""
        shown = shown_behaviors(index.folder.parent)
        steps = index.table.column("step").take(pa.array(places)).to_pylist()
        ids = index.table.column("completion_id").take(pa.array(places)).to_pylist()
        found = [self.shows in shown.get(key, ()) for key in zip(steps, ids, strict=True)]
        return np.array(found, np.bool_)

    def _mask(self, table: pa.Table) -> np.ndarray:
        mask = np.ones(len(table), np.bool_)
        equal = {"status": self.status, "group_kind": self.group, "step": self.step}
        equal |= {"problem_id": self.problem, "finish_reason": "length" if self.truncated else None}
        for name, value in equal.items():
            if value is not None:
                mask &= _numpy(pc.equal(table.column(name), value))
        if self.tag is not None:
            mask &= np.array(
                [self.tag in (tags or ()) for tags in table.column("tags").to_pylist()]
            )
        if self.injected:
            mask &= _numpy(table.column("num_injected")) > 0
        if self.conflict:
            mask &= _numpy(table.column("conflict")) >= CONFLICT
        return mask


def _numpy(column: Any) -> np.ndarray:
    """Convert a column to NumPy. A null becomes False in Boolean and NaN in numeric columns."""
    if pa.types.is_boolean(column.type):
        column = column.fill_null(False)
    return column.to_numpy()


_KEYS: Mapping[str, tuple[str, int]] = {
    "worst": ("reward", 1),
    "best": ("reward", -1),
    "longest": ("num_tokens", -1),
    "shortest": ("num_tokens", 1),
}


def _ordered(table: pa.Table, places: np.ndarray, order: str) -> np.ndarray:
    steps = _numpy(table.column("step"))
    if order == "newest":
        # A stable sort keeps the groups of a step together, because the log is ordered by group.
        return places[np.argsort(-steps[places], kind="stable")]
    name, sign = _KEYS[order]
    values = _numpy(table.column(name)).astype(np.float64)
    places = places[~np.isnan(values[places])]
    return places[np.lexsort((-steps[places], sign * values[places]))]


def flipped(table: pa.Table, places: np.ndarray) -> np.ndarray:
    """Return the rollouts in the order ``flipped``: per problem, the first and the last draw."""
    names = ("problem_id", "step", "group_id", "status")
    columns = [table.column(name).take(pa.array(places)).to_pylist() for name in names]
    rows = [row for row in zip(*columns, places, strict=True) if row[3] != "not_judged"]
    rows.sort(key=lambda row: (row[0], row[1]))
    pairs: list[tuple[float, int, int]] = []
    for _, of_problem in groupby(rows, key=lambda row: row[0]):
        draws = [[*draw] for _, draw in groupby(of_problem, key=lambda row: row[2])]
        first, last = draws[0], draws[-1]
        if change := _share_passed(last) - _share_passed(first):
            before, after = ("failed", "passed") if change > 0 else ("passed", "failed")
            pairs.append((abs(change), _one_of(first, before), _one_of(last, after)))
    pairs.sort(key=lambda pair: -pair[0])
    return np.array([place for _, *pair in pairs for place in pair], np.int64)


def _share_passed(rows: Sequence[tuple[Any, ...]]) -> float:
    return sum(row[3] == "passed" for row in rows) / len(rows)


def _one_of(rows: Sequence[tuple[Any, ...]], status: str) -> int:
    return next(int(row[4]) for row in rows if row[3] == status)


def selection_of(asked: Mapping[str, str]) -> Selection:
    """Read a selection from the query parameters of a URL. Invalid values are ignored."""
    read: Mapping[str, Callable[[str], Any]] = {
        "order": lambda word: word if word in ORDERS else None,
        "status": lambda word: word if word in get_args(Status) else None,
        "group": lambda word: word if word in GROUP_KINDS else None,
        # The column of steps has 32 bits, and Arrow raises an exception for larger numbers.
        "step": lambda word: int(word) if word.isdecimal() and len(word) < 10 else None,
        "problem": str,
        "tag": str,
        "text": str,
        "truncated": bool,
        "injected": bool,
        "conflict": bool,
        "shows": str,
    }
    found: dict[str, Any] = {
        name: convert(asked[name]) for name, convert in read.items() if asked.get(name)
    }
    return Selection(**{name: value for name, value in found.items() if value is not None})
