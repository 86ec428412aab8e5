"""Warn about verifiers for tags that no row has, before the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from assay.config import TrainConfig
from assay.errors import message
from assay.host.terminal import warn
from assay.types import Problem

# Number of rows that are read for their tags, if a set is generated on demand.
LOOKED_AT = 200
SHOWN = 12


class TagWatch:
    """Collects the tags of rows, and warns about keys of ``verifier_by_tag`` that match no row."""

    def __init__(self, config: TrainConfig) -> None:
        self._wanted = config.data.verifier_by_tag
        self._met: dict[str, None] = {}
        self._num_seen = 0

    def see(self, problem: Problem) -> None:
        """Record the tags of one row."""
        self._num_seen += 1
        if self._wanted:
            self._met |= dict.fromkeys(problem.tags)

    def of(self, rows: Sequence[Problem]) -> TagWatch:
        """Read a sample of rows from a set that is generated on demand; return this object."""
        if self._wanted and self._num_seen < len(rows):
            for number in range(0, len(rows), -(-len(rows) // LOOKED_AT)):
                self.see(rows[number])
        self._num_seen = 0
        return self

    def warn(self) -> None:
        """Print a warning for each configured tag that no row has."""
        some = [*self._met][:SHOWN]
        shown = ", ".join([*some, "..."] if len(some) < len(self._met) else some)
        for tag in sorted(self._wanted.keys() - self._met.keys()):
            line = message(
                f"data.verifier_by_tag.{tag}", "a tag that no row has", shown or "no tags"
            )
            warn(line)
