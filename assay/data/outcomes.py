"""Outcomes of training problems: discounted pass counts, and the posterior distribution of pass
rates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.types import Floats

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
NEVER = 2**62
ALL = slice(None)
_MIDPOINTS = 512
_AT_ONCE = 256
_MOST_JUDGED = 4096.0
_COLUMNS = {"passed": "<f4", "judged": "<f4", "draws": "<i8", "returns_at": "<i8"}
_SAVED = np.dtype([("index", "<i8"), *_COLUMNS.items()])


class Outcomes:
    """Number of draws, judged completions and passed completions of each problem, by index.

    passed, judged: number of passed and of judged completions per problem; forgetting discounts
    older completions. draws: number of draws of each problem so far, which is part of the problem's
    next group id. returns_at: for a retired problem, the total number of draws (of all problems)
    after which the problem returns; 0 for other problems.
    """

    def __init__(self, counts: Floats | None, num_problems: int) -> None:
        start = np.zeros((2, num_problems), np.float32) if counts is None else counts.copy()
        self.passed, self.judged = start
        self.draws = np.zeros(num_problems, np.int64)
        self.returns_at = np.zeros(num_problems, np.int64)

    def add(self, index: int, num_passed: float, num_judged: float) -> None:
        """Add the passed and judged counts of one group of completions."""
        self.passed[index] += num_passed
        self.judged[index] += num_judged

    def fade(self, share: float) -> None:
        """Multiply all counts by ``1 - share``, so that older completions count less."""
        self.passed *= np.float32(1.0 - share)
        self.judged *= np.float32(1.0 - share)

    def pass_rates(self, some: Indices | slice = ALL) -> Numbers:
        """Return the posterior mean of each problem's pass rate, under a uniform prior."""
        passed, judged = self.passed[some], self.judged[some]
        return (passed.astype(np.float64) + 1.0) / (judged.astype(np.float64) + 2.0)

    def chances(self, some: Indices | slice, low: float, high: float) -> Numbers:
        """Return, for each problem, the probability that its pass rate is between ``low`` and
        ``high``.
        """
        return chance_within(self.passed[some], self.judged[some], low, high)

    def differences(self, some: Indices | slice = ALL) -> Numbers:
        """Return the probability that two completions of a problem get different verdicts.

        With the posterior Beta(a, b) of the pass rate p, the probability is E[2 p (1 - p)] = 2 a b
        / ((a + b) (a + b + 1)). The probability equals 1/3 for a problem without observations, and
        is at most 1/2.
        """
        passed = self.passed[some].astype(np.float64) + 1.0
        failed = self.judged[some].astype(np.float64) + 2.0 - passed
        both = passed + failed
        return 2.0 * passed * failed / (both * (both + 1.0))

    def histogram(self) -> Numbers:
        """Return the fraction of observed problems in each pass-rate bin; empty without
        observations.
        """
        seen = self.judged > 0
        counts, _ = np.histogram(self.passed[seen] / self.judged[seen], BINS)
        return counts / max(1, counts.sum()) if counts.sum() else np.zeros(0)

    def save(self, path: Path) -> None:
        """Write the outcomes of all problems that were drawn, judged or retired to a file."""
        index = np.flatnonzero((self.draws > 0) | (self.judged > 0) | (self.returns_at > 0))
        saved = np.empty(len(index), _SAVED)
        saved["index"] = index
        for name in _COLUMNS:
            saved[name] = getattr(self, name)[index]
        np.save(path, saved)

    def load(self, path: Path) -> None:
        """Load saved outcomes; raises ValueError if the file belongs to other problems."""
        saved = np.load(path)
        if saved.dtype != _SAVED or (saved["index"] >= len(self.draws)).any():
            raise ValueError("of other problems")
        for name in _COLUMNS:
            getattr(self, name)[saved["index"]] = saved[name]


def chance_within(passed: Floats, judged: Floats, low: float, high: float) -> Numbers:
    """Return, for each problem, the probability that its pass rate is between ``low`` and ``high``.

    Under a uniform prior, k passes in n completions give the pass rate p the density p^k (1 - p)^(n
    - k) times a constant: Beta(k + 1, n - k + 1). The midpoint rule integrates this density on
    equal intervals below, within and above the bounds. The error is about 1e-5.
    """
    # Many problems have equal counts, so each distinct pair (passed, judged) is integrated once.
    # Viewing two float32 values as one int64 gives np.unique a single key per pair.
    rows = np.stack([passed, judged], axis=-1).astype(np.float32)
    keys, places = np.unique(rows.view(np.int64).ravel(), return_inverse=True)
    pairs = keys.view(np.float32).reshape(-1, 2).astype(np.float64)
    # Large counts are scaled down, because their density is too narrow for the midpoint rule.
    pairs *= np.minimum(1.0, _MOST_JUDGED / np.maximum(pairs[:, 1:], 1.0))
    edges = [(0.0, low), (low, high), (high, 1.0)]
    middles = (np.arange(_MIDPOINTS) + 0.5) / _MIDPOINTS
    rates = np.concatenate([start + (end - start) * middles for start, end in edges])
    widths = np.repeat([end - start for start, end in edges], _MIDPOINTS)
    # A bound at 0 or 1 makes an empty interval, whose midpoint has an infinite logarithm.
    # Empty intervals are therefore skipped.
    is_empty = widths <= 0
    log_right = np.log(np.where(is_empty, 0.5, rates))
    log_wrong = np.log1p(-np.where(is_empty, 0.5, rates))
    found = np.empty(len(pairs))
    for first in range(0, len(pairs), _AT_ONCE):
        k, n = pairs[first : first + _AT_ONCE, :1], pairs[first : first + _AT_ONCE, 1:]
        logs = k * log_right + (n - k) * log_wrong
        # exp() would underflow to 0 for large counts, so the largest log density is subtracted.
        mass = np.exp(logs - logs.max(axis=1, keepdims=True)) * widths
        parts = mass.reshape(len(k), 3, _MIDPOINTS).sum(axis=2)
        found[first : first + _AT_ONCE] = parts[:, 1] / parts.sum(axis=1)
    return found[places]
