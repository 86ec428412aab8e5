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
    """Raised to end the step in progress after a stop was requested.

    After this exception, the run ends regularly and saves a checkpoint.
    """


class StopSignal:
    """Context in which a first signal sets `requested`, and a second raises KeyboardInterrupt.

    In threads other than the main thread, this context has no effect.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise StepInterrupted if a stop was requested."""
        if self.requested:
            raise StepInterrupted

    def __enter__(self) -> StopSignal:
        # Python allows signal handlers to be set in the main thread only.
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
        # os.write is used, because the signal may interrupt a print(),
        # and print() is not reentrant.
        with suppress(OSError):
            os.write(2, NOTICE)
