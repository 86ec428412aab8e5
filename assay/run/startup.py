"""Progress display while a run starts: loading the model, probing its speed, checking rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from assay.host.clock import PhaseClock
from assay.host.heartbeat import Heartbeat
from assay.host.startup import shown_on
from assay.run.progress import Progress


class _Startup:
    """Progress display of one start-up.

    The run's own progress display replaces the start-up display.
    """

    def __init__(self, quiet: bool) -> None:
        self.clock = PhaseClock()
        self._progress = Progress("", quiet=quiet)
        self._heartbeat = Heartbeat(self.clock.now, self._show)
        self._heartbeat.start()

    def _show(self, kind: str, row: Mapping[str, Any]) -> None:
        # A write to a closed terminal raises OSError, which must not end the start of the run.
        with suppress(OSError):
            self._progress(kind, dict(row))

    def end(self) -> None:
        self._heartbeat.end()
        self._progress.close()


_shown: ContextVar[_Startup | None] = ContextVar("startup", default=None)


@contextmanager
def show_startup(quiet: bool = False) -> Iterator[None]:
    """Show start-up progress on stderr, until this block ends or `end_startup` is called."""
    startup = _Startup(quiet)
    token, clock = _shown.set(startup), shown_on.set(startup.clock)
    try:
        yield
    finally:
        shown_on.reset(clock)
        _shown.reset(token)
        startup.end()


def end_startup() -> None:
    """End the start-up display before the progress display of the run begins."""
    # Two displays that update in place would overwrite each other on a terminal.
    if (startup := _shown.get()) is not None:
        startup.end()
