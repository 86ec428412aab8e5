"""The command line: parse arguments, make one call, exit with a code.

Heavy imports are deferred.
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
    """Raised when SIGINT or SIGTERM arrives. A plain KeyboardInterrupt inside `exec` makes Python
    end by SIGINT, even if it is caught."""


def main() -> None:
    """Run the command line. An Assay error prints one line and sets the exit code.

    User modules such as ``my_rewards:reward`` are imported from the working directory; installed
    packages take precedence.
    """
    # By default idle OpenMP threads spin for long, which makes steps several times slower on a
    # machine with other load. Never spinning is slower on an idle one. So they spin for some
    # microseconds and then sleep. OpenMP reads the setting once, when torch is first imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # At the end of the path, so that no file in the working directory replaces a library.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    with guarded_python(), signals_interrupt() as received:
        try:
            from assay.cli.command import run_command

            code = run_command()
        except BaseException:  # foreign code turned an interruption into its own error
            if not received:
                raise
            code = INTERRUPTED
        if code == INTERRUPTED:
            say("interrupted")
        sys.exit(code)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C. Yield the list of received signals.

    A second signal ends the process immediately, if cleaning up takes too long.
    """
    received: list[int] = []

    def receive(number: int, frame: Any) -> NoReturn:
        if received:
            os._exit(INTERRUPTED)
        received.append(number)
        raise Interruption

    # Python allows signal handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
