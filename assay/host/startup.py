"""Names the work of a start-up, for whatever display is open: loading the model, probing it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from assay.host.clock import PhaseClock

shown_on: ContextVar[PhaseClock | None] = ContextVar("startup", default=None)
"""The clock of the display that is open. `assay.run.startup.show_startup` sets it."""


@contextmanager
def doing(what: str) -> Generator[None]:
    """Name the work inside, for the display of the start-up. Without one, do nothing."""
    clock = shown_on.get()
    if clock is None:
        yield
    else:
        with clock.working(what):
            yield
