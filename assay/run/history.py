"""All values of each metric of a run, in memory.

For a resumed run, the history reads the values of earlier steps from file.
"""

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
    """Consecutive values of a metric, with their steps."""

    steps: Sequence[int]
    values: np.ndarray

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.values.mean())


class History:
    """All values of each metric of a run, by metric name.

        run.history["reward/mean"].values[-10:].mean()

    Timing metrics are omitted, except ``time/elapsed``. A step without a value of a metric is
    missing among the steps of this metric.
    """

    def __init__(self) -> None:
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of a finished step to the history."""
        for name, value in row.items():
            if value is None or name == "step" or (is_timing(name) and name not in _KEPT):
                continue
            if name not in self._steps:
                # Per value, an array takes 8 bytes and a list of float objects four times as much.
                self._steps[name], self._values[name] = array("q"), array("d")
            self._steps[name].append(row["step"])
            self._values[name].append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Window:
        """Return all values of a metric with their steps. Raises KeyError for a metric that the run
        does not have.
        """
        return self.part(name)

    def names(self, pattern: str) -> list[str]:
        """Return the names of the metrics that match a pattern. One ``*`` matches any text."""
        head, star, tail = pattern.partition("*")
        if not star:
            return [pattern] if pattern in self else []
        return [one for one in self._steps if one.startswith(head) and one.endswith(tail)]

    def part(self, name: str, first: int = 0, last: int | None = None) -> Window:
        """Return a slice of the values of a metric. first, last: bounds of the slice, as in
        Python."""
        cut = slice(first, last)
        return Window(self._steps[name][cut], np.array(self._values[name][cut]))

    def newest(self, name: str, count: int, after: int = 0) -> Window | None:
        """Return the newest ``count`` values.

        The result is None if fewer values than requested come after the step ``after``.
        """
        steps = self._steps.get(name, ())
        if len(steps) < count or steps[-count] <= after:
            return None
        return self.part(name, len(steps) - count)

    def total(self, name: str) -> float:
        """Return the sum of a metric over all steps; 0 if the run does not have the metric."""
        return float(np.sum(self._values.get(name, ())))
