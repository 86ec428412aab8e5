"""The command line: parse the arguments, call one function, exit with a code.

Commands import torch and other slow packages only when they run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from assay.errors import INTERRUPTED
from assay.host.terminal import guarded_python, say

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interruption(KeyboardInterrupt):
    """Raised when the process receives SIGINT or SIGTERM.

    If code run by `exec` raises KeyboardInterrupt itself and not a subclass, Python later ends its
    own process by SIGINT, even if this code caught the exception.
    """


def main() -> None:
    """Run the command line. An error of Assay prints one line and sets the exit code.

    User modules such as ``my_rewards:reward`` are imported from the working directory, but
    installed packages take precedence.
    """
    # By default, idle OpenMP threads spin for long, which makes training slower under other load.
    # OpenMP threads that never spin are slower on an idle machine.
    # As a compromise, idle OpenMP threads spin for some microseconds and then sleep.
    # OpenMP reads GOMP_SPINCOUNT only when torch is first imported, so it is set before any import.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # The working directory is last on the import path, so that its files replace no library.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    with guarded_python(), signals_interrupt() as received:
        try:
            # A signal may arrive while the commands load, so they are imported in this block.
            from assay.cli.command import run_command

            code = run_command()
        # Libraries may turn an interruption into their own exceptions.
        # The list of received signals therefore decides whether the user interrupted.
        except BaseException:
            if not received:
                raise
            code = INTERRUPTED
        if code == INTERRUPTED:
            say("interrupted")
        sys.exit(code)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C. Yield the list of signals that the process has received so far.

    A second signal ends the process immediately, without cleanup.
    """
    received: list[int] = []

    def receive(number: int, frame: Any) -> NoReturn:
        if received:
            # sys.exit would run the cleanup, which the user does not want to wait for any longer.
            os._exit(INTERRUPTED)
        received.append(number)
        raise Interruption

    # Python allows signal handlers only in the main thread, so other threads set no handler.
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
