"""Term weights that depend only on the policy version.

Because no other state matters, a verdict's reward is the same after a resume, in a replay, and when
a rollout log is judged again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from assay.errors import VerifierError, message
from assay.verify.expression import Term, unpinned

Points = tuple[tuple[int, float], ...]
ACCEPTED = "a list of [policy_version, multiplier], versions rising, as [[0, 0.0], [400, 1.0]]"


class Schedule:
    """Multipliers of terms' weights, piecewise linear in policy_version.

    points: {term: [[policy_version, multiplier], ...]}. A term of a schedule is written as in the
        expression, without versions. Raises VerifierError for invalid points.
    """

    def __init__(self, points: Mapping[str, Sequence[Any]]) -> None:
        self.points = {name: _read(name, given) for name, given in points.items()}

    def key_of(self, term: Term) -> str | None:
        """Return a term's key in `points`: its whole name, or the name of its first verifier."""
        keys = (unpinned(term.name), unpinned(term.names[0]))
        return next((key for key in keys if key in self.points), None)

    def multiplier(self, term: Term, policy_version: int) -> float:
        """Return the multiplier of a term's weight at a policy version, 1 if none is configured."""
        if not self.points or (key := self.key_of(term)) is None:
            return 1.0
        points = self.points[key]
        after = bisect_right(points, policy_version, key=lambda point: point[0])
        # A term's multiplier is constant before the first point and after the last point.
        if after == 0 or after == len(points):
            return points[max(0, after - 1)][1]
        (start, low), (end, high) = points[after - 1 : after + 1]
        return low + (high - low) * (policy_version - start) / (end - start)

    def largest(self, term: Term) -> float:
        """Return the maximum absolute multiplier of a term."""
        key = self.key_of(term)
        return 1.0 if key is None else max(abs(value) for _, value in self.points[key])


def _read(name: str, given: Any) -> Points:
    try:
        points = tuple((version, value) for version, value in given)
        plain = all(type(v) is int and v >= 0 and type(m) in (int, float) for v, m in points)
        rising = all(one[0] < other[0] for one, other in pairwise(points))
        if points and plain and rising and all(math.isfinite(value) for _, value in points):
            return tuple((version, float(value)) for version, value in points)
    except (TypeError, ValueError):
        pass
    raise VerifierError(message(f"verification.schedule.{name}", repr(given)[:80], ACCEPTED))
