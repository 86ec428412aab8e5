"""Ctrl-C and SIGTERM: the first asks for a clean stop soon, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

NOTICE = b"\nstopping cleanly at the next micro-batch; once more to stop at once\n"


class StepInterrupted(KeyboardInterrupt):
    """Ends a step between two of its phases. The run then ends in order."""


class StopSignal:
    """Context in which the first signal only sets `requested`; the second raises KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, it changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise StepInterrupted if a stop was requested."""
        if self.requested:
            raise StepInterrupted

    def __enter__(self) -> StopSignal:
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
        # print() is not reentrant, and the signal may interrupt one.
        with suppress(OSError):
            os.write(2, NOTICE)
