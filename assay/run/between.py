"""State of a run after its last finished step, available while the next step is in progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from assay.run.checkpoints import Stateful


@runtime_checkable
class Copied(Protocol):
    """Checkpoint component that a step changes before its optimizer update.

    For example, a curriculum changes when problems are drawn.
    """

    def state_copy(self) -> Stateful:
        """Copy the current state in memory, so that it can be saved later."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """Checkpoint component that is too large to copy, such as a learner.

    Only the optimizer update changes a component of this type.
    """

    @property
    def state_version(self) -> int:
        """Number that increases with every change of the run's state."""
        ...


class BetweenSteps:
    """Components for a checkpoint of the last finished step, valid during the next step.

    The constructor copies the state of each `Copied` component. For all other components, the
    object holds references instead of copies.
    """

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        # Weights and optimizer moments are not copied, because a copy would double their memory.
        self._parts = {
            name: part.state_copy() if isinstance(part, Copied) else part
            for name, part in parts.items()
        }
        self._versions = self._versions_now()

    def parts(self) -> Mapping[str, Stateful] | None:
        """Return the components; None if the current step has changed an uncopied component."""
        return self._parts if self._versions_now() == self._versions else None

    def _versions_now(self) -> dict[str, int]:
        versioned = {n: one for n, one in self._parts.items() if isinstance(one, Versioned)}
        return {name: part.state_version for name, part in versioned.items()}
