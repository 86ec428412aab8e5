"""More groups are sampled than are wanted: which of them are, and when the others are given up."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.types import Group


@dataclass(eq=False)
class Race:
    """Wants the ``enough`` groups whose longest completion is shortest, in tokens.

    Where all completions begin at once, those are the groups that end first. But the order depends
    on completions alone: not on slots, on clocks, or on who samples what. Of equal groups the
    earlier one of a call is wanted. limit: a group with a completion of more tokens is not wanted,
    and need not be sampled to its end. tokens: that were sampled of such groups.
    """

    enough: int
    limit: int | None = None
    tokens: int = 0
    _lengths: list[int] = field(default_factory=list[int])

    def ended(self, group: Group) -> None:
        """Hear of a group that has ended; the limit may fall."""
        insort(self._lengths, _longest(group))
        if len(self._lengths) >= self.enough:
            self.lower(self._lengths[self.enough - 1])

    def lower(self, limit: int) -> None:
        """Hear of a limit that was found elsewhere."""
        self.limit = limit if self.limit is None else min(limit, self.limit)

    def first(self, groups: Sequence[Group]) -> list[Group]:
        """Return those that are wanted, in their order; the tokens of the others are counted."""
        places = sorted(range(len(groups)), key=lambda n: _longest(groups[n]))
        late = {*places[self.enough :]}
        self.tokens += sum(len(one.tokens) for n in late for one in groups[n].completions)
        return [group for n, group in enumerate(groups) if n not in late]


def _longest(group: Group) -> int:
    return max(len(one.tokens) for one in group.completions)
