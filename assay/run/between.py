"""The state of a run after its last finished step, while the next step is in progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from assay.run.checkpoints import Stateful


@runtime_checkable
class Copied(Protocol):
    """A part that a step already changes before its update, as drawing problems changes a
    curriculum."""

    def state_copy(self) -> Stateful:
        """Copy the current state in memory, to be saved later."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """A part that is too large to be copied, such as a learner. Only its update changes it."""

    @property
    def state_version(self) -> int:
        """A number that increases with every change of the state."""
        ...


class BetweenSteps:
    """Contents of a checkpoint of the last finished step, valid during the next step.

    Parts that are `Copied` are copied on construction. All others are live references.
    """

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = {
            name: part.state_copy() if isinstance(part, Copied) else part
            for name, part in parts.items()
        }
        self._versions = self._versions_now()

    def parts(self) -> Mapping[str, Stateful] | None:
        """Return the parts; None if the current step has changed a part that is not copied."""
        return self._parts if self._versions_now() == self._versions else None

    def _versions_now(self) -> dict[str, int]:
        versioned = {n: one for n, one in self._parts.items() if isinstance(one, Versioned)}
        return {name: part.state_version for name, part in versioned.items()}
