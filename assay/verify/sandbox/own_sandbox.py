"""A sandbox for a verifier's commands, with one instance in each process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from assay.host.imports import slow_import
from assay.verify.sandbox.sandbox import Sandbox
from assay.verify.sandbox.toolchain import FOLDERS


class OwnSandbox:
    """The sandbox of this process for one verifier: started at its first use, closed at exit.

    folders: function that returns the folders which commands may read besides `FOLDERS`. lock: lock
    that a caller holds while it uses the sandbox.
    """

    def __init__(self, folders: Callable[[], Sequence[str]]) -> None:
        self.lock = threading.Lock()
        self._folders = folders
        # The key is the process id, because a forked process must not use its parent's sandbox.
        self._opened: dict[int, Sandbox] = {}
        atexit.register(self.close)

    def open(self) -> Sandbox:
        """Return the sandbox. Raises SandboxUnavailable."""
        key = os.getpid()
        if key not in self._opened:
            # `slow_import` pauses the deadline, so that no completion pays for the sandbox's start.
            with slow_import():
                self._opened[key] = Sandbox(toolchain=(*FOLDERS, *self._folders()))
        return self._opened[key]

    def close(self) -> None:
        """Close the sandbox if this process has started one. The next use starts another."""
        sandbox = self._opened.pop(os.getpid(), None)
        if sandbox is not None:
            with suppress(Exception):
                sandbox.close()


def interpreter_folders() -> list[str]:
    """Return the folders from which commands can execute the Python interpreter."""
    home = os.path.realpath(sys.base_prefix)
    return [] if home == "/usr" else [home]
