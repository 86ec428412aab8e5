"""A worker process as its pool sees it: started, asked, waited for, killed."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from assay.host.orphans import Remains
from assay.verify.serving.protocol import MAX_REPLY

START_DEADLINE = 120.0  # seconds for a fresh interpreter
IMPORT_DEADLINE = 60.0  # seconds for an import inside a worker
CONFIRMATION = 0.25  # seconds between finding a worker overdue and giving it up
STALE = 1.0  # seconds that a worker may take for work that nobody waits for
GATHER = 1e-5  # seconds for each reply that may come: waking up for one costs more than this
LOOK = 0.25  # seconds between two looks at whether somebody does

NONSENSE = (ValueError, TypeError, IndexError, KeyError, AttributeError)  # a reply of another form


class Lost(Exception):
    """A worker cannot be used again: it is overdue, died, sent nonsense, or works for nobody.

    idle: it had been given nothing.
    """

    def __init__(
        self, kind: Literal["overdue", "died", "nonsense", "stale"], detail: str, idle: bool = False
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.idle = idle

    def __reduce__(self) -> Any:
        return Lost, (self.kind, str(self), self.idle)


class Worker:
    """A fresh interpreter that runs `assay.verify.serving.worker`, and our end of its socket.

    family: of the mark by which all that it starts is found. since: when it began what it does.
    num_waiting: how many answers it still owes.
    """

    def __init__(self, family: str) -> None:
        self.remains = Remains(family)
        self.channel, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the worker
        environment = {
            **os.environ,
            **self.remains.environment,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OMP_NUM_THREADS": "1",
        }
        arguments = [str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "assay.verify.serving.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the parent's, and a kill takes children too
            )
        self.channel.settimeout(START_DEADLINE)
        self._poll = select.poll()
        self._poll.register(self.channel, select.POLLIN)
        self._inbox = bytearray()
        self.num_waiting = 0
        self._num_answered = 0
        self._loading = False
        self.ready = False
        self.since = time.monotonic()

    @property
    def has_heard(self) -> bool:
        """Whether an answer is here already."""
        return b"\n" in self._inbox

    def greet(self, options: dict[str, Any]) -> None:
        """Wait until a new worker is there, and tell it the options; raises Lost."""
        if self.ready and self.process.poll() is not None:
            raise Lost("died", "an idle worker died", idle=True)
        if not self.ready:
            self._message(START_DEADLINE)
            self.ready = True
            if options:
                self.send(0, "options", options)

    def send(self, num_answers: int, *request: Any) -> None:
        """Send a request to a worker that owes no answer, and so reads; raises Lost."""
        self.since = time.monotonic()
        self.num_waiting = num_answers
        try:
            self.channel.sendall(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise Lost("died", "the worker died") from error

    def reply(self, seconds: float, is_stale: Callable[[], bool]) -> Any:
        """Return the data of the next answer; raises Lost where it takes longer than ``seconds``.

        The time of a heavy import does not count. is_stale: whether nobody waits any more.
        """
        while True:
            try:
                kind, clock, *rest = self._message(seconds, is_stale)
                self.since = min(float(clock), time.monotonic())  # on one machine it is our clock
                if kind == "reply":
                    number, data = rest
                    if number != self._num_answered:
                        raise ValueError("a reply out of turn")
                    self._num_answered += 1
                    self.num_waiting -= 1
                    return data
                (self._loading,) = rest
            except NONSENSE as error:
                raise Lost("nonsense", f"a worker sent nonsense: {error}") from error

    def _message(self, seconds: float, is_stale: Callable[[], bool] = lambda: False) -> Any:
        """Return the next line of the worker."""
        searched = 0
        while (end := self._inbox.find(b"\n", searched)) < 0:
            searched = len(self._inbox)
            self._wait(seconds, is_stale)
            if self.num_waiting > 1:
                time.sleep(GATHER * self.num_waiting)
            chunk = b""
            with suppress(OSError):
                chunk = self.channel.recv(1 << 18)
            if not chunk:
                raise Lost("died", "the worker died")
            self._inbox += chunk
            if len(self._inbox) > MAX_REPLY:
                raise ValueError(f"a reply of more than {MAX_REPLY} bytes")
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        return json.loads(line)

    def _wait(self, seconds: float, is_stale: Callable[[], bool]) -> None:
        """Wait until there is something to read.

        A worker found overdue gets a moment more: after a time in which this process did not run
        its words may be on their way.
        """
        allowed = IMPORT_DEADLINE if self._loading else seconds
        while True:
            left = self.since + allowed - time.monotonic()
            if self._poll.poll(1000 * (CONFIRMATION if left <= 0 else min(left, LOOK))):
                return
            taken = time.monotonic() - self.since
            if left <= 0:
                raise Lost("overdue", f"killed after {taken:.1f} s")
            if taken > STALE and not self._loading and is_stale():
                raise Lost("stale", "nobody waits for its work")

    def last_words(self) -> str:
        """Return the end of what it wrote to standard error before it said hello."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def kill(self) -> int:
        """Kill the process and its group, and return its exit code; `clear` takes what left it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.release()
        return code

    def release(self) -> None:
        """Close our ends."""
        self.channel.close()
        self.errors.close()


def cause_of(code: int) -> str:
    """Return the signal or the exit code that ended a process."""
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
