"""The oversampling cutoff: selects the groups that a step uses, and cancels longer groups."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.types import Group


@dataclass(eq=False)
class OversamplingCutoff:
    """The oversampling cutoff: selects the ``enough`` groups whose longest completion is shortest.

    Length is counted in tokens. If all completions start at the same time, the selected groups
    finish first. The cutoff's selection depends only on the completions, not on slots, timings or
    placement. Of groups with equal lengths, the earlier group of the call is selected. limit:
    maximum length of a selected completion so far; a group with a longer completion can be
    canceled. tokens: number of tokens sampled for groups that were not selected.
    """

    enough: int
    limit: int | None = None
    tokens: int = 0
    _lengths: list[int] = field(default_factory=list[int])

    def ended(self, group: Group) -> None:
        """Record a finished group, which may lower the length limit."""
        insort(self._lengths, _longest(group))
        if len(self._lengths) >= self.enough:
            self.lower(self._lengths[self.enough - 1])

    def lower(self, limit: int) -> None:
        """Lower the length limit to a value that another process has computed."""
        self.limit = limit if self.limit is None else min(limit, self.limit)

    def first(self, groups: Sequence[Group]) -> list[Group]:
        """Return the selected groups in their order, and count the tokens of all other groups."""
        # The stable sort selects the earlier of two groups with equal lengths.
        places = sorted(range(len(groups)), key=lambda n: _longest(groups[n]))
        late = {*places[self.enough :]}
        self.tokens += sum(len(one.tokens) for n in late for one in groups[n].completions)
        return [group for n, group in enumerate(groups) if n not in late]


def _longest(group: Group) -> int:
    return max(len(one.tokens) for one in group.completions)
