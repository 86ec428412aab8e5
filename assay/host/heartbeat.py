"""Report the current phase to a run's listeners every second, from a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

SECONDS = 1.0


class Heartbeat(threading.Thread):
    """Thread that reports the progress of the current phase.

    now: returns the current progress row, or None if there is nothing to report. notify: receives
    the event kind ``progress`` and the row.
    """

    def __init__(
        self,
        now: Callable[[], Mapping[str, Any] | None],
        notify: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        super().__init__(name="run-heartbeat", daemon=True)
        self._now, self._notify = now, notify
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SECONDS):
            row = self._now()
            # A phase of less than a second would only flicker on the display.
            if row is not None and row["seconds"] >= SECONDS:
                self._notify("progress", row)

    def end(self) -> None:
        """Stop reporting."""
        self._ended.set()
        if self.is_alive():
            self.join()
