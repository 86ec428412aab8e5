"""Shows what a command does before a run exists: loading the model, probing it, checking rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from assay.run.heartbeat import Heartbeat
from assay.run.progress import Progress
from assay.run.timing import PhaseClock


class _Startup:
    """The display of one start-up, until a run has a display of its own."""

    def __init__(self, quiet: bool) -> None:
        self.clock = PhaseClock()
        self._progress = Progress("", quiet=quiet)
        self._heartbeat = Heartbeat(self.clock.now, self._show)
        self._heartbeat.start()

    def _show(self, kind: str, row: Mapping[str, Any]) -> None:
        # a terminal that is gone ends no work
        with suppress(OSError):
            self._progress(kind, dict(row))

    def end(self) -> None:
        self._heartbeat.end()
        self._progress.close()


_shown: ContextVar[_Startup | None] = ContextVar("startup", default=None)


@contextmanager
def show_startup(quiet: bool = False) -> Iterator[None]:
    """Show on standard error what `doing` names, until this context or `end_startup` ends it."""
    startup = _Startup(quiet)
    token = _shown.set(startup)
    try:
        yield
    finally:
        _shown.reset(token)
        startup.end()


def end_startup() -> None:
    """Clear the display: a run shows its own from here on."""
    if (startup := _shown.get()) is not None:
        startup.end()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name the work inside, for the display of the start-up. Without one, do nothing."""
    startup = _shown.get()
    if startup is None:
        yield
    else:
        with startup.clock.working(what):
            yield
