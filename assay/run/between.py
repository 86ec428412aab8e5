"""Snapshot of a run after its last finished step, for a checkpoint while the next step is in
progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from assay.run.checkpoints import Stateful


@runtime_checkable
class Copied(Protocol):
    """Component of a checkpoint that already changes before the optimizer update of a step.

    For example, a curriculum changes when it draws the problems of a step.
    """

    def state_copy(self) -> Stateful:
        """Copy the component's current state in memory, so that the copy can be saved later."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """Component of a checkpoint that is too large to copy, such as a learner.

    A component of this type changes only by the optimizer update of a step.
    """

    @property
    def state_version(self) -> int:
        """Number that increases whenever the state of the run changes."""
        ...


class BetweenSteps:
    """Components for a checkpoint of the last finished step, usable while the next step runs.

    The constructor copies the state of every component that is `Copied`. Other components are
    stored as references, without a copy.
    """

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        # A copy of the weights and optimizer moments would double their memory.
        self._parts = {
            name: part.state_copy() if isinstance(part, Copied) else part
            for name, part in parts.items()
        }
        self._versions = self._versions_now()

    def parts(self) -> Mapping[str, Stateful] | None:
        """Return the components; None if the current step already changed a component without a
        copy.
        """
        return self._parts if self._versions_now() == self._versions else None

    def _versions_now(self) -> dict[str, int]:
        versioned = {n: one for n, one in self._parts.items() if isinstance(one, Versioned)}
        return {name: part.state_version for name, part in versioned.items()}
