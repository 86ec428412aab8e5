"""The whole series of each metric of a run, in memory; on resume read back from its file."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.run.metrics import is_timing

_KEPT = ("time/elapsed",)


@dataclass(frozen=True, slots=True)
class Window:
    """Some values of a series in a row, and the steps that they are of."""

    steps: Sequence[int]
    values: np.ndarray

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(self.values.mean())


class History:
    """Series by the name of their metric, without those of the clock (but ``time/elapsed``).

        run.history["reward/mean"].values[-10:].mean()

    A step that did not measure a metric has no value in its series.
    """

    def __init__(self) -> None:
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in the metrics of a step."""
        for name, value in row.items():
            if value is None or name == "step" or (is_timing(name) and name not in _KEPT):
                continue
            if name not in self._steps:
                self._steps[name], self._values[name] = array("q"), array("d")
            self._steps[name].append(row["step"])
            self._values[name].append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Window:
        """Return a whole series; KeyError where the run has not measured it."""
        return self.part(name)

    def names(self, pattern: str) -> list[str]:
        """Return the metrics of a name, in which ``*`` stands for any text, once."""
        head, star, tail = pattern.partition("*")
        if not star:
            return [pattern] if pattern in self else []
        return [one for one in self._steps if one.startswith(head) and one.endswith(tail)]

    def part(self, name: str, first: int = 0, last: int | None = None) -> Window:
        """Return the values from the ``first`` to before the ``last``, as a list is cut."""
        cut = slice(first, last)
        return Window(self._steps[name][cut], np.array(self._values[name][cut]))

    def newest(self, name: str, count: int, after: int = 0) -> Window | None:
        """Return the newest ``count`` values, all of steps after ``after``; None where fewer are
        there."""
        steps = self._steps.get(name, ())
        if len(steps) < count or steps[-count] <= after:
            return None
        return self.part(name, len(steps) - count)

    def total(self, name: str) -> float:
        """Return the sum of a series; 0 of one that is not there."""
        return float(np.sum(self._values.get(name, ())))
