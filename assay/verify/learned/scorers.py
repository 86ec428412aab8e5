"""Scorers of reward models, injected by a higher package, because this package loads no model.

`assay/__init__.py` calls `inject` whenever any part of Assay is imported, so this module must be
cheap to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from assay.types import Completion, Problem
    from assay.verify.base import Part


class RewardScorer(Protocol):
    """A reward model with a set of options. It is loaded at its first use."""

    def load(self) -> None:
        """Load the checkpoints. Raises VerifierError if the options do not fit them."""
        ...

    def judge(self, pairs: Sequence[tuple[Problem, Completion]]) -> list[Part]:
        """Return one part per pair."""
        ...

    def evidence(self) -> Mapping[str, Any]:
        """Return the hashes of the checkpoints, for a run's record of its verifiers."""
        ...


Opener = Callable[[str, Mapping[str, Any]], RewardScorer]
"""Return the scorer for a verifier's name and options. Equal options share one scorer."""

open_scorer: Opener
modules: tuple[str, ...] = ()
"""Modules of the scorers. They are part of the content hash of verifiers that use them."""


def inject(opener: Opener, *packages: str) -> None:
    """Set the function that opens scorers, and the packages with their source."""
    global open_scorer, modules
    open_scorer, modules = opener, packages
