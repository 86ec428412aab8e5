"""Ctrl-C and SIGTERM: the first signal requests a clean stop, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

NOTICE = b"\nstopping cleanly at the next micro-batch; once more to stop at once\n"


class StepInterrupted(KeyboardInterrupt):
    """Raised to end the current step after a stop was requested.

    After this exception, the run ends normally and saves a checkpoint.
    """


class StopSignal:
    """Context in which the first signal sets `requested`, and the second raises KeyboardInterrupt.

    This context has no effect in threads other than the main thread.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise StepInterrupted if the user has requested a stop."""
        if self.requested:
            raise StepInterrupted

    def __enter__(self) -> StopSignal:
        # Python can set signal handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # The signal may interrupt a print(), which is not reentrant, so os.write is used.
        with suppress(OSError):
            os.write(2, NOTICE)
