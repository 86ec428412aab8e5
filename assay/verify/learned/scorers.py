"""Where reward models come from: this package loads no model, so a higher one injects a loader.

`assay/__init__.py` calls `inject` whenever any part of Assay is imported. The module is as small as
it is because every process pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from assay.types import Completion, Problem
    from assay.verify.base import Part


class RewardScorer(Protocol):
    """A reward model under a set of options; it is loaded when it is first needed."""

    def load(self) -> None:
        """Load the checkpoints. Raises VerifierError where the options do not fit them."""
        ...

    def judge(self, pairs: Sequence[tuple[Problem, Completion]]) -> list[Part]:
        """Return one part for each pair."""
        ...

    def evidence(self) -> Mapping[str, Any]:
        """Return the hashes of the checkpoints, for a run's record of its verifiers."""
        ...


Opener = Callable[[str, Mapping[str, Any]], RewardScorer]
"""Returns the scorer of a verifier, by its name and options; equal options give the same scorer."""

open_scorer: Opener
modules: tuple[str, ...] = ()
"""Modules of the scorers: the content hash of a verifier that asks them covers their source."""


def inject(opener: Opener, *packages: str) -> None:
    """Set what loads scorers, and the packages that hold their source."""
    global open_scorer, modules
    open_scorer, modules = opener, packages
