"""All values of each metric of a run, in memory; read back from the file on resume."""

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
    """Consecutive values of a series, with their steps."""

    steps: Sequence[int]
    values: np.ndarray

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.values.mean())


class History:
    """Series by metric name, without timing metrics except ``time/elapsed``.

        run.history["reward/mean"].values[-10:].mean()

    A step without a value of a metric is missing from its series.
    """

    def __init__(self) -> None:
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of a step."""
        for name, value in row.items():
            if value is None or name == "step" or (is_timing(name) and name not in _KEPT):
                continue
            if name not in self._steps:
                # Arrays take 8 bytes per value. Lists of float objects would take four times as
                # much in runs of many thousand steps.
                self._steps[name], self._values[name] = array("q"), array("d")
            self._steps[name].append(row["step"])
            self._values[name].append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def __getitem__(self, name: str) -> Window:
        """Return a whole series. Raises KeyError if the run has not measured it."""
        return self.part(name)

    def names(self, pattern: str) -> list[str]:
        """Return the metric names that match a pattern, in which ``*`` stands for any text."""
        head, star, tail = pattern.partition("*")
        if not star:
            return [pattern] if pattern in self else []
        return [one for one in self._steps if one.startswith(head) and one.endswith(tail)]

    def part(self, name: str, first: int = 0, last: int | None = None) -> Window:
        """Return a slice of a series, from ``first`` to before ``last``."""
        cut = slice(first, last)
        return Window(self._steps[name][cut], np.array(self._values[name][cut]))

    def newest(self, name: str, count: int, after: int = 0) -> Window | None:
        """Return the newest ``count`` values after step ``after``; None if there are fewer."""
        steps = self._steps.get(name, ())
        if len(steps) < count or steps[-count] <= after:
            return None
        return self.part(name, len(steps) - count)

    def total(self, name: str) -> float:
        """Return the sum of a series; 0 if the series does not exist."""
        return float(np.sum(self._values.get(name, ())))
