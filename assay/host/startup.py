"""Labels the startup work (loading the model, probing it) for the open progress display."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from assay.host.clock import PhaseClock

shown_on: ContextVar[PhaseClock | None] = ContextVar("startup", default=None)
"""Clock of the open progress display. `assay.run.startup.show_startup` sets it."""


@contextmanager
def doing(what: str) -> Generator[None]:
    """Label the work inside the context for the startup display, if one is open."""
    clock = shown_on.get()
    if clock is None:
        yield
    else:
        with clock.working(what):
            yield
