"""Write the error tables of docs/behaviors.md: ``python tools/behavior_reference.py``.

The errors are measured on the labelled sets in `assay/verify/labelled/`. A test fails if the page
is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

from assay.evaluation.detector_errors import DetectorError, detector_errors
from assay.run.intervals import Interval
from assay.verify.behaviors.detectors import BEHAVIORS
from assay.verify.behaviors.monitor import FINDINGS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "behaviors.md"
TABLES = {"behaviors": ("behavior", BEHAVIORS), "trace_monitor": ("finding", FINDINGS)}


def page() -> str:
    """Return the page with newly measured tables."""
    text = PAGE.read_text(encoding="utf-8")
    for verifier, (key, names) in TABLES.items():
        mark = f"<!-- errors of {verifier}: written by tools/behavior_reference.py -->"
        pattern = rf"(?<={re.escape(mark)}\n\n)(?:\|[^\n]*\n)*\n?"
        table = "".join(f"{line}\n" for line in table_of(verifier, key, names))
        assert mark in text, mark
        text = re.sub(pattern, lambda _, table=table: f"{table}\n", text)
    return text


def table_of(verifier: str, key: str, names: tuple[str, ...]) -> list[str]:
    """Return the lines of one table: confusion counts, precision and recall of each detector."""
    errors = detector_errors(verifier, key)
    rephrased = detector_errors(verifier, key, ("rephrased",))
    lines = [
        "| detects | found, labelled | found, not labelled | missed | rightly not found "
        "| precision | recall | recall on rephrased passages |",
        "|---|---:|---:|---:|---:|---|---|---|",
    ]
    for name in names:
        one, hard = errors[name], rephrased.get(name)
        cells = [
            f"`{name}`",
            str(one.true_found),
            str(one.false_found),
            str(one.true_missed),
            str(one.false_missed),
            rate(one.precision, one.precision_interval),
            rate(one.recall, one.recall_interval),
            "" if hard is None else counts(hard),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def rate(share: float | None, interval: Interval | None) -> str:
    """Format a share with its interval, in percent."""
    if share is None or interval is None:
        return ""
    return f"{share:.0%} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f})".replace("%", " %")


def counts(error: DetectorError) -> str:
    """Return the number of labelled passages that are detected."""
    return f"{error.true_found} of {error.true_found + error.true_missed}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
