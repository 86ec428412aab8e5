"""Import of user code, named as ``package.module:object``.

A user module may raise, exit or hang during import. In each of these cases an error with a one-line
message reports the fault, so that no user module ends the process silently.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn

from assay.errors import AssayError, find_object, message
from assay.host.terminal import one_line

IMPORT_SECONDS = 60.0
NOTICE_SECONDS = 10.0
OBJECT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_object(name: str, where: str, error: type[AssayError]) -> Any:
    """Import the object ``package.module:object``. Raises ``error`` with a one-line message.

    where: location of the name, such as ``guard.rules my_rules:stop``. Python searches the working
        directory last, so that its modules cannot shadow an installed package.
    """
    if not OBJECT_NAME.fullmatch(name):
        raise error(message(where, repr(name), "package.module:object"))
    with deadline(IMPORT_SECONDS, f"importing {name.partition(':')[0]}"), _exit_raises():
        return find_object(name, where, error)


@contextmanager
def _exit_raises() -> Generator[None]:
    """Convert ``os._exit`` in this thread to SystemExit."""
    # A module that calls ``os._exit`` during import would end the command silently.
    # The exit code that such a module passes could even be 0, which means success.
    end, importing = os._exit, True
    thread = threading.get_ident()

    def raised(status: int) -> NoReturn:
        # A module may keep this function, and call it later or in another thread.
        # Such a call must reach the real ``os._exit``.
        if importing and threading.get_ident() == thread:
            raise SystemExit(f"os._exit({status})")
        end(status)

    os._exit = raised
    try:
        yield
    finally:
        importing, os._exit = False, end


@contextmanager
def deadline(seconds: float, what: str) -> Generator[None]:
    """Raise TimeoutError in the ``with`` block after ``seconds``. Print a notice earlier.

    The context manager has no effect outside the main thread.
    """
    # Python delivers signals in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    started = time.monotonic()
    every = min(seconds, NOTICE_SECONDS)
    notified = False

    def ring(number: int, frame: object) -> None:
        nonlocal notified
        # The timer can fire slightly early by the clock of `time.monotonic`.
        if time.monotonic() - started >= 0.99 * seconds:
            raise TimeoutError(f"not done after {seconds:g} s")
        if not notified:
            notified = True
            # `print` is not reentrant, and this signal may have interrupted a `print`.
            os.write(2, f"{one_line(what)}: not done yet; given up after {seconds:g} s\n".encode())

    handler = signal.signal(signal.SIGALRM, ring)
    outer, interval = signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            # Restart an outer timer with its remaining time; 0 would stop the timer.
            left = max(0.001, outer - (time.monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, left, interval)
