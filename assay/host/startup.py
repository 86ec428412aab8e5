"""Labels of startup work, such as loading and probing the model, on the progress display."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from assay.host.clock import PhaseClock

# A context variable, so that functions which load a model need no clock as an argument.
shown_on: ContextVar[PhaseClock | None] = ContextVar("startup", default=None)
"""Clock of the open progress display. `assay.run.startup.show_startup` sets it."""


@contextmanager
def doing(what: str) -> Generator[None]:
    """Label the work of the ``with`` block on the startup display, if a display is open."""
    clock = shown_on.get()
    if clock is None:
        yield
    else:
        with clock.working(what):
            yield
