"""What verifiers cost and how often they do not judge: counts and latencies, by verifier."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from assay.verify.base import Part

KEPT = 4096  # latest latencies that the percentiles are of


@dataclass(eq=False)
class VerifierStats:
    """Counts of one verifier's parts, and the latencies of its latest ones, in seconds."""

    count: int = 0
    not_judged: Counter[str] = field(default_factory=Counter[str])
    latencies: deque[float] = field(default_factory=lambda: deque[float](maxlen=KEPT))

    def add(self, part: Part) -> None:
        """Count a part."""
        self.count += 1
        self.latencies.append(part.seconds)
        if part.value is None:
            self.not_judged[part.reason or "error"] += 1

    def summary(self) -> dict[str, Any]:
        """Return count, seconds at the 50th, 95th and 99th percentile, and not judged by reason."""
        ordered = sorted(self.latencies)
        seconds = {f"p{p}": _percentile(ordered, p) for p in (50, 95, 99)}
        return {"count": self.count, **seconds, "not_judged": dict(self.not_judged)}


def _percentile(ordered: list[float], percent: int) -> float:
    """Return the nearest-rank percentile; 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
