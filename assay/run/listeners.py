"""Journals (metrics, evaluations and events) and listeners of a run. A listener receives a row
after the row was written to the run directory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.host.files import Journal

Listener = Callable[[str, Mapping[str, Any]], None]
"""Function that receives the data of a run as ``(kind, row)``.

``metrics``, ``evaluations``, ``events``: the row of the file with this name. ``rollouts``:
``step``, ``path``, ``groups`` and ``verdicts``. ``notes``: ``text``. ``progress``, once a second
during long work: ``what``, ``seconds``, ``signs`` (a counter that grows while the work goes on)
and, if known, ``done``, ``of``, ``unit`` and ``eta`` in seconds.

A listener with a method ``close`` is closed after the last row.
"""

MOST_WAITING = 10_000
"""Number of unprocessed rows at which a listener is dropped."""
CLOSE_SECONDS = 5.0
"""Seconds to wait for a listener at the end of a run. Its ``close_seconds`` overrides them."""


class Journals:
    """Journal files of a run's metrics, evaluations and events, and the listeners of the run.
    Thread-safe.

    Each listener has its own thread, so that a hanging listener cannot block the run. A listener
    that raises or falls too far behind is removed, and an event records the reason.
    """

    def __init__(self, folder: Path, failed: Callable[[str, str], None]) -> None:
        names = ("metrics", "evaluations", "events")
        self._files = {name: Journal(folder / f"{name}.jsonl") for name in names}
        self._threads: list[_ListenerThread] = []
        self._failed = failed

    def listen(self, listener: Listener) -> None:
        """Send all later rows of the journals to a listener."""
        thread = _ListenerThread(listener, self._failed)
        thread.start()
        self._threads.append(thread)

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append a row to a journal file, then send the row to the listeners."""
        # A listener must never report a row that a crash then loses: the file is written first.
        try:
            self._files[name].append(row)
        except OSError:
            # With a full disk, an alert must still report the end of the run.
            if name == "events":
                self.notify(name, dict(row))
            raise
        self.notify(name, dict(row))

    def notify(self, kind: str, row: Mapping[str, Any]) -> None:
        """Send a row to the listeners, without writing it to a journal."""
        for thread in self._threads:
            thread.notify(kind, row)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return all rows of a journal file."""
        return self._files[name].rows()

    def keep(self, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only those rows of a journal for which the function ``wanted`` is true."""
        self._files[name].keep(wanted)

    def sync(self) -> None:
        """Sync all journal files to disk, so that their rows survive a power failure."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        """Wait briefly for the listeners, then close the journal files."""
        # A failing listener writes an event to a file, so the threads stop before the files close.
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.close()
        for file in self._files.values():
            file.close()


class _ListenerThread(threading.Thread):
    """The thread and the queue of rows of one listener."""

    def __init__(self, listener: Listener, failed: Callable[[str, str], None]) -> None:
        # The thread is a daemon thread, so that a hanging listener cannot keep the process alive.
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
        while not self._dropped:
            item = self._waiting.get()
            close: Callable[[], None] | None = getattr(self._listener, "close", None)
            try:
                if item is not None:
                    self._listener(*item)
                elif close is not None:
                    close()
            # Listeners run user code, or write to a terminal that may have been closed.
            except (Exception, SystemExit) as error:  # from a listener
                self._give_up(f"{type(error).__name__}: {error}".rstrip(": "))
            if item is None:
                return

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
