"""Python that users name, as ``package.module:object``: imported in one way, whatever it does.

A module may raise, exit or hang: each is told in one line, and never ends the process unsaid.
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
    """Return the object that ``package.module:object`` names; raises ``error`` in one line.

    where: of the name, as ``guard.rules my_rules:stop``. The working directory is searched last,
    while `python -m` searches it first: a file beside the configuration is found, and none can
    shadow an installed package.
    """
    if not OBJECT_NAME.fullmatch(name):
        raise error(message(where, repr(name), "package.module:object"))
    with deadline(IMPORT_SECONDS, f"importing {name.partition(':')[0]}"), _kept_alive():
        return find_object(name, where, error)


@contextmanager
def _kept_alive() -> Generator[None]:
    """Make ``os._exit`` of this thread a SystemExit.

    A module that calls it as it is imported would end the command without a word, with a code of
    its choice: 0 says that all went well.
    """
    end, importing = os._exit, True
    thread = threading.get_ident()

    def raised(status: int) -> NoReturn:
        # A module may keep this function; later, and in other threads, it is the real one.
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
    """Raise TimeoutError inside once ``seconds`` are over, and say before that what is waited for.

    In the main thread, where Python delivers signals; in another one it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    started = time.monotonic()
    every = min(seconds, NOTICE_SECONDS)
    told = False

    def ring(number: int, frame: object) -> None:
        nonlocal told
        if time.monotonic() - started >= 0.99 * seconds:
            raise TimeoutError(f"not done after {seconds:g} s")
        if not told:
            told = True
            os.write(2, f"{one_line(what)}: not done yet; given up after {seconds:g} s\n".encode())

    handler = signal.signal(signal.SIGALRM, ring)
    outer, interval = signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            left = max(0.001, outer - (time.monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, left, interval)
