"""docs/metrics.md tells every metric that the code names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "reward|group|verdict|length|tokens|kl|loss|ratio|entropy|mismatch|advantage|optimizer|critic"
    "|oversample|text|trust_region|update|penalty|policy|preference|sampling|memory|time|tools|verify|curriculum"
)
NAME = re.compile(rf'"((?:{PARTS})/[a-z_0-9]+)"')
ELSEWHERE = {"tokens/s", "text/html", "text/plain"}
"""Words on the progress line, and kinds of content, that are no metrics."""


def test_every_metric_is_told() -> None:
    files = [
        path
        for room in ("data", "learn", "run", "training")
        for path in (ROOT / "assay" / room).rglob("*.py")
    ]
    named = {name for path in files for name in NAME.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 50
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert not sorted(name for name in named - ELSEWHERE if f"`{name}`" not in page)
