"""Interface to the scorers of reward models, because `assay.verify` itself loads no model.

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
    """A learned reward model together with its options.

    The checkpoints of the reward models are loaded at the first use.
    """

    def load(self) -> None:
        """Load the checkpoints. Raises VerifierError if the options do not fit the checkpoints."""
        ...

    def judge(self, pairs: Sequence[tuple[Problem, Completion]]) -> list[Part]:
        """Return one result per (problem, completion), in order."""
        ...

    def evidence(self) -> Mapping[str, Any]:
        """Return the hashes of the checkpoints, which a run records."""
        ...


Opener = Callable[[str, Mapping[str, Any]], RewardScorer]
"""Function from a verifier's name and options to its scorer. Equal options share a scorer."""

open_scorer: Opener
modules: tuple[str, ...] = ()
"""Modules of the scorers, which are part of the content hash of verifiers that use scorers."""


def inject(opener: Opener, *packages: str) -> None:
    """Set the function that opens scorers, and the packages that contain the scorers' source."""
    global open_scorer, modules
    open_scorer, modules = opener, packages
