"""Distribution of difficulty over rows: pass rates of a model, or numeric labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.data.row_facts import is_number, number_in_tags

# Shares of passed samples: none, up to a quarter, ..., below 1, all.
_BOUNDS = (0.25, 0.5, 0.75)
BANDS = ("0", "to 0.25", "to 0.5", "to 0.75", "below 1", "1")
# Levels, such as those of MATH, have few values; of more values only the range is shown.
_MAX_LEVELS = 10


def band_of(rate: float) -> str:
    """Return the name of the band of a pass rate."""
    if rate <= 0.0:
        return BANDS[0]
    if rate >= 1.0:
        return BANDS[-1]
    return BANDS[1 + sum(rate > bound for bound in _BOUNDS)]


@dataclass
class DifficultySpread:
    """Counts of rows by difficulty.

    rates: rows by band of their pass rate. levels: rows by numeric label. unknown: rows without a
    label. total: sum of the pass rates.
    """

    rates: Counter[str] = field(default_factory=Counter[str])
    levels: Counter[float] = field(default_factory=Counter[float])
    unknown: int = 0
    total: float = 0.0

    def add(self, value: Any, tags: tuple[str, ...] = (), key: str = "difficulty") -> None:
        """Count a row. value: the row's label: counts of passed and judged samples, or a number.
        tags: the row's tags, which may contain a level, such as ``level-5``.
        """
        if isinstance(value, Mapping):
            passed, judged = value.get("passed"), value.get("judged")
            if is_number(passed) and is_number(judged) and judged > 0:
                self.rates[band_of(passed / judged)] += 1
                self.total += passed / judged
                return
        level = value if is_number(value) else number_in_tags(key, tags)
        if level is None:
            self.unknown += 1
        else:
            self.levels[level] += 1

    @property
    def is_known(self) -> bool:
        """Whether any row has a label."""
        return bool(self.rates or self.levels)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: rows by band of the pass rate and by level, the mean pass rate."""
        return {
            "pass_rates": {name: self.rates[name] for name in BANDS} if self.rates else {},
            "mean_pass_rate": self._mean,
            "levels": {f"{level:g}": self.levels[level] for level in sorted(self.levels)},
            "unknown": self.unknown,
        }

    @property
    def _mean(self) -> float | None:
        return self.total / self.rates.total() if self.rates else None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.rates:
            bands = ", ".join(f"{name}: {self.rates[name]}" for name in BANDS)
            parts.append(f"pass rate {bands} (mean {self._mean:.2f})")
        if len(self.levels) > _MAX_LEVELS:
            low, high, count = min(self.levels), max(self.levels), self.levels.total()
            parts.append(f"{count} labels from {low:g} to {high:g}")
        elif self.levels:
            levels = ", ".join(f"{one:g}: {self.levels[one]}" for one in sorted(self.levels))
            parts.append(f"level {levels}")
        if self.unknown:
            parts.append(f"unknown: {self.unknown}")
        return "; ".join(parts)
