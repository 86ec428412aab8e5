"""Statistics of verifiers: counts, failures and latencies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.verify.base import Part

# Number of recent latencies from which percentiles are computed.
KEPT = 4096
# Maximum number of verifiers in a step's metrics. The busiest verifiers are kept.
MAX_VERIFIERS = 16


@dataclass(eq=False)
class VerifierStats:
    """Counts of one verifier's parts, and the recent latencies in seconds.

    cache_hits: number of parts from the cache; cached parts are excluded from the latencies.
    rescues_asked: number of parts that the verifier gave as a later alternative of a term.
    rescues_accepted: number of parts in `rescues_asked` that accepted the completion.
    """

    count: int = 0
    cache_hits: int = 0
    seconds: float = 0.0
    rescues_asked: int = 0
    rescues_accepted: int = 0
    not_judged: Counter[str] = field(default_factory=Counter[str])
    latencies: deque[float] = field(default_factory=lambda: deque[float](maxlen=KEPT))

    def add(self, part: Part, hit: bool = False, accepted: bool | None = None) -> None:
        """Count a part.

        hit: whether the part came from the cache.
        accepted: whether the verifier, as a later alternative, accepted the completion. None means
            that the verifier is no later alternative.
        """
        self.count += 1
        self.cache_hits += hit
        if not hit:
            self.seconds += part.seconds
            self.latencies.append(part.seconds)
        if part.value is None:
            self.not_judged[part.reason or "error"] += 1
        self.rescues_asked += accepted is not None
        self.rescues_accepted += bool(accepted)

    def summary(self) -> dict[str, Any]:
        """Return counts, percentiles of latencies, and judgments per second of the verifier's time.

        The metric keys ``asked`` and ``accepted`` exist only for a later alternative.
        """
        ordered = sorted(self.latencies)
        found: dict[str, Any] = {
            "count": self.count,
            **{f"p{p}": _percentile(ordered, p) for p in (50, 95, 99)},
            "per_second": (self.count - self.cache_hits) / self.seconds if self.seconds else 0.0,
            "cache_hits": self.cache_hits,
            "not_judged": dict(self.not_judged),
        }
        if self.rescues_asked:
            found |= {"asked": self.rescues_asked, "accepted": self.rescues_accepted}
        return found


def step_metrics(stats: Mapping[str, VerifierStats]) -> dict[str, float]:
    """Return metrics such as ``verify/NAME/p50`` of the busiest verifiers, without zeros."""
    busiest = sorted(stats, key=lambda name: (-stats[name].count, name))[:MAX_VERIFIERS]
    metrics: dict[str, float] = {}
    for name in sorted(busiest):
        summary = stats[name].summary()
        reasons = summary.pop("not_judged")
        summary |= {f"not_judged_{reason}": count for reason, count in sorted(reasons.items())}
        metrics |= {f"verify/{name}/{key}": float(each) for key, each in summary.items() if each}
    return metrics


def _percentile(ordered: list[float], percent: int) -> float:
    """Return the nearest-rank percentile, or 0 for an empty list."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0
