"""A run's journals and listeners: every row is in the run directory before a listener gets it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.host.files import Journal

Listener = Callable[[str, Mapping[str, Any]], None]
"""Receives events of a run as ``(kind, row)``.

kind: ``metrics``, ``evaluations`` and ``events``, with the row of that file; ``rollouts``, with
``step``, ``path``, ``groups`` and ``verdicts``; ``notes``, with ``text``; ``progress``, every
second of longer work, with ``what``, ``seconds`` and, if known, ``done``, ``of``, ``unit`` and
``eta`` in seconds.
"""

MOST_WAITING = 10_000
"""Maximum number of unprocessed rows of a listener."""
CLOSE_SECONDS = 5.0
"""Seconds that the end of a run waits for a listener without its own ``close_seconds``."""


class Journals:
    """Metrics, evaluations and events of a run. Safe to use from any thread.

    Each listener has its own thread, so a hanging listener blocks nothing. A listener that raises
    or falls too far behind is dropped, and an event records it.
    """

    def __init__(self, folder: Path, failed: Callable[[str, str], None]) -> None:
        names = ("metrics", "evaluations", "events")
        self._files = {name: Journal(folder / f"{name}.jsonl") for name in names}
        self._threads: list[_ListenerThread] = []
        self._failed = failed

    def listen(self, listener: Listener) -> None:
        """Send all rows from now on to a listener."""
        thread = _ListenerThread(listener, self._failed)
        thread.start()
        self._threads.append(thread)

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append a row to a journal, then notify the listeners."""
        self._files[name].append(row)
        self.notify(name, dict(row))

    def notify(self, kind: str, row: Mapping[str, Any]) -> None:
        """Notify the listeners, without writing to a journal."""
        for thread in self._threads:
            thread.notify(kind, row)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return all rows of a journal."""
        return self._files[name].rows()

    def keep(self, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Rewrite a journal with only the wanted rows."""
        self._files[name].keep(wanted)

    def sync(self) -> None:
        """Sync all rows to disk, so that they survive a power failure."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        """Wait briefly for the listeners, then close the files."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.close()
        for file in self._files.values():
            file.close()


class _ListenerThread(threading.Thread):
    """Thread and queue of one listener."""

    def __init__(self, listener: Listener, failed: Callable[[str, str], None]) -> None:
        super().__init__(name="run-listener", daemon=True)
        self._listener, self._failed = listener, failed
        self._waiting: queue.Queue[tuple[str, Mapping[str, Any]] | None] = queue.Queue(MOST_WAITING)
        self._dropped = False

    def notify(self, kind: str, row: Mapping[str, Any]) -> None:
        if not self._dropped:
            try:
                self._waiting.put_nowait((kind, row))
            except queue.Full:
                self._give_up(f"it is {MOST_WAITING} rows behind")

    def run(self) -> None:
        while not self._dropped and (item := self._waiting.get()) is not None:
            try:
                self._listener(*item)
            except (Exception, SystemExit) as error:  # user code, or a terminal that is closed
                self._give_up(f"{type(error).__name__}: {error}".rstrip(": "))

    def close(self) -> None:
        patience = getattr(self._listener, "close_seconds", CLOSE_SECONDS)
        if not self._dropped and not self._waiting.full():
            self._waiting.put_nowait(None)
            self.join(patience)
        if self.is_alive() and not self._dropped:
            self._give_up(f"it did not end within {patience:g} s")

    def _give_up(self, why: str) -> None:
        self._dropped = True
        name = getattr(self._listener, "__name__", type(self._listener).__name__)
        self._failed(name, why)
