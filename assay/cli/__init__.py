"""The command line: parse, one call, exit code. Heavy imports wait until a command needs them."""

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
    """A signal to end.

    Python ends itself by SIGINT after a plain KeyboardInterrupt that left an `exec`, caught or not.
    """


def main() -> None:
    """Run the command line; an Assay error is one line and its exit code, never a traceback.

    A user's ``my_rewards:reward`` is found in the working directory, after everything installed.
    """
    # Idle tensor threads spin for some microseconds, then sleep. OpenMP reads this once, when torch
    # is first imported. By default they spin for long, which makes steps several times slower on a
    # machine that does anything else at the same time; never to spin is slower on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    with guarded_python(), signals_interrupt() as received:
        try:
            from assay.cli.command import run_command

            code = run_command()
        except BaseException:  # foreign code makes an error of its own of an interruption
            if not received:
                raise
            code = INTERRUPTED
        if code == INTERRUPTED:
            say("interrupted")
        sys.exit(code)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Make SIGTERM an interruption, as Ctrl-C is; yield the signals received so far.

    A second one ends the process at once: whatever was to be tidied up took too long.
    """
    received: list[int] = []

    def receive(number: int, frame: Any) -> NoReturn:
        if received:
            os._exit(INTERRUPTED)
        received.append(number)
        raise Interruption

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
