"""Precision and recall of the detectors, measured on the held-out half of their labelled sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from assay.run.intervals import Interval, share_interval
from assay.verify.base import resolve
from assay.verify.selftest import labelled_pair, labelled_rows

LABELLED = {"trace_monitor": "failed"}
"""Expected status of rows that show the behavior, for detectors that do not use ``passed``."""


@dataclass(frozen=True, slots=True)
class DetectorError:
    """Confusion table of one detector of a behavior, in numbers of passages.

    Each name begins with the label (true: the passage shows the behavior), and ends with the result
    (whether the detector found the behavior).
    """

    true_found: int
    false_found: int
    true_missed: int
    false_missed: int

    @property
    def precision(self) -> float | None:
        """Precision: share of the passages found by the detector that show the behavior; None if it
        found none."""
        found = self.true_found + self.false_found
        return self.true_found / found if found else None

    @property
    def recall(self) -> float | None:
        """Recall: share of the passages with the behavior that the detector found; None without
        such passages."""
        labelled = self.true_found + self.true_missed
        return self.true_found / labelled if labelled else None

    @property
    def precision_interval(self) -> Interval | None:
        """Wilson's 95 % interval of the detector's precision."""
        return _interval(self.precision, self.true_found + self.false_found)

    @property
    def recall_interval(self) -> Interval | None:
        """Wilson's 95 % interval of the detector's recall."""
        return _interval(self.recall, self.true_found + self.true_missed)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counts = ("true_found", "false_found", "true_missed", "false_missed")
        rates = ("precision", "precision_interval", "recall", "recall_interval")
        return {name: getattr(self, name) for name in (*counts, *rates)}


def _interval(share: float | None, count: int) -> Interval | None:
    return None if share is None else share_interval(share, count)


# Judging a labelled set takes seconds, and both report and table need it: it is cached.
@cache
def detector_errors(
    verifier: str, key: str, kinds: tuple[str, ...] | None = None
) -> Mapping[str, DetectorError]:
    """Measure a detector on the labelled set that Assay ships (`errors_on`). kinds: kinds of
    labelled rows to use; None means all kinds."""
    rows = [row for row in labelled_rows(verifier) if kinds is None or row["kind"] in kinds]
    return errors_on(verifier, key, rows, LABELLED.get(verifier, "passed"))


def errors_on(
    verifier: str, key: str, rows: Iterable[Mapping[str, Any]], labelled: str = "passed"
) -> Mapping[str, DetectorError]:
    """Measure a detector on labelled rows, separately for each behavior.

    key: row key whose value names the labelled behavior; the detector's verdict has a component
    with the same name. labelled: value of a row's label that means that the passage shows the
    behavior.
    """
    judge = resolve(verifier).judge
    counts: Counter[tuple[str, bool, bool]] = Counter()
    for row in rows:
        part = judge(*labelled_pair(verifier, row))
        # A row that the detector did not judge has no components, and counts as missed.
        found = part.components.get(row[key], 0.0) == 1.0
        counts[row[key], found, row["expected"] == labelled] += 1
    names = sorted({name for name, _, _ in counts})
    return {
        name: DetectorError(
            true_found=counts[name, True, True],
            false_found=counts[name, True, False],
            true_missed=counts[name, False, True],
            false_missed=counts[name, False, False],
        )
        for name in names
    }
