"""The command line: parse arguments, make one call, exit with a code.

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
    """Raised when SIGINT or SIGTERM arrives.

    After a plain KeyboardInterrupt inside `exec`, Python ends by SIGINT, even if the code in `exec`
    caught the exception.
    """


def main() -> None:
    """Run the command line. An Assay error prints one line and sets the exit code.

    User modules such as ``my_rewards:reward`` are imported from the working directory; installed
    packages take precedence.
    """
    # By default, idle OpenMP threads spin for long, and training steps are several times slower
    # under other load.
    # OpenMP threads that never spin are slower on an idle machine.
    # Idle OpenMP threads spin for some microseconds and then sleep, which is a compromise.
    # OpenMP reads this setting only when torch is first imported, so set it before any import.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # The working directory is appended to the end of the path, so that no file in it replaces a
    # library.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    with guarded_python(), signals_interrupt() as received:
        try:
            # Commands are imported inside this `with` block, because a signal may arrive while they
            # load.
            from assay.cli.command import run_command

            code = run_command()
        # Libraries may turn an interruption into their own exceptions, so the list of received
        # signals decides whether the user interrupted.
        except BaseException:
            if not received:
                raise
            code = INTERRUPTED
        if code == INTERRUPTED:
            say("interrupted")
        sys.exit(code)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C. Yield the list of received signals.

    A second signal ends the process immediately, without any cleanup.
    """
    received: list[int] = []

    def receive(number: int, frame: Any) -> NoReturn:
        if received:
            # sys.exit would run the cleanup that the user no longer wants to wait for.
            os._exit(INTERRUPTED)
        received.append(number)
        raise Interruption

    # Python allows signal handlers in the main thread only, so other threads set no handler.
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
