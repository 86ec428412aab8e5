"""Parent's side of one worker process: start, requests, deadlines, termination.

Requests are pickled, because a worker trusts its parent. A reply is one line of JSON, because
unpickling could execute code that an untrusted program in the worker sent. `worker_loop` is the
worker's side of the connection.

A worker sends three kinds of messages. In each, ``clock`` is the worker's time in seconds.
``["hello", clock]`` reports that the worker is ready. ``["loading", clock, on]`` reports that a
slow import begins (``on`` is true) or ends. ``["reply", clock, number, data]`` answers a request;
``number`` counts the worker's replies.
"""

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

from assay.host.orphans import WorkerMark

# Seconds until a new interpreter must be ready.
START_DEADLINE = 120.0
# Seconds for an import inside a worker.
IMPORT_DEADLINE = 60.0
# Seconds between the detection of an overdue worker and its termination.
CONFIRMATION = 0.25
# Seconds that a worker may spend on a request whose result is no longer needed.
STALE = 1.0
# Seconds to wait per outstanding reply before reading, because waking up for each reply costs more.
GATHER = 1e-5
# Seconds between two checks whether the result is still needed.
LOOK = 0.25

# Size limit of a reply in bytes. Verdicts are much shorter, but a group can be large.
MAX_REPLY = 256 * 2**20
# Exceptions for a malformed reply.
NONSENSE = (ValueError, TypeError, IndexError, KeyError, AttributeError)


class Lost(Exception):
    """Raised if a worker is unusable: overdue, dead, sending invalid data, or doing unneeded work.

    idle: whether the worker had no outstanding request.
    """

    def __init__(
        self, kind: Literal["overdue", "died", "nonsense", "stale"], detail: str, idle: bool = False
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.idle = idle

    # By default, unpickling an exception passes only the message to its class.
    def __reduce__(self) -> Any:
        return Lost, (self.kind, str(self), self.idle)


class WorkerProcess:
    """A new interpreter that runs a module, and a socket to this interpreter.

    module: name of a module that calls `run_worker`. family: prefix of the environment mark that
    identifies the worker's descendants. since: start time of the worker's current request.
    num_waiting: number of outstanding replies.
    """

    def __init__(self, module: str, family: str) -> None:
        self.mark = WorkerMark(family)
        self.channel, theirs = socket.socketpair()
        # A file instead of a pipe: a full pipe would block the worker.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the worker
        environment = {
            **os.environ,
            **self.mark.environment,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            # Workers already run in parallel; more threads would compete for the cores.
            "OMP_NUM_THREADS": "1",
        }
        arguments = [str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = subprocess.Popen(
                # Without -P, Python would search modules in the working directory first.
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                # In its own session a worker gets no Ctrl-C, and its group can be killed.
                start_new_session=True,
            )
        self.channel.settimeout(START_DEADLINE)
        # `select.select` fails for file numbers above 1023, which a large run reaches.
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
        """Whether a reply has arrived."""
        return b"\n" in self._inbox

    def await_start(self) -> None:
        """Wait until a new worker is ready. Raises Lost."""
        if self.ready and self.process.poll() is not None:
            raise Lost("died", "an idle worker died", idle=True)
        if not self.ready:
            self._message(START_DEADLINE)
            self.ready = True

    def send(self, num_answers: int, *request: Any) -> None:
        """Send a request to a worker without outstanding replies. Raises Lost."""
        self.since = time.monotonic()
        self.num_waiting = num_answers
        try:
            self.channel.sendall(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise Lost("died", "the worker died") from error

    def reply(self, seconds: float, is_stale: Callable[[], bool] = lambda: False) -> Any:
        """Return the data of the next reply. Raises Lost after ``seconds`` without a reply.

        The time of a slow import does not count. is_stale: returns whether the work is no longer
        needed.
        """
        while True:
            try:
                kind, clock, *rest = self._message(seconds, is_stale)
                # All processes of one machine read the same monotonic clock.
                self.since = min(float(clock), time.monotonic())
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
        """Return the next message of the worker, parsed."""
        searched = 0
        while (end := self._inbox.find(b"\n", searched)) < 0:
            searched = len(self._inbox)
            self._wait(seconds, is_stale)
            if self.num_waiting > 1:
                # Without this sleep, each short request's reply would wake the thread.
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
        """Wait until data arrives. Raises Lost."""
        allowed = IMPORT_DEADLINE if self._loading else seconds
        while True:
            left = self.since + allowed - time.monotonic()
            # An overdue worker gets more time, because this process may have been paused.
            if self._poll.poll(1000 * (CONFIRMATION if left <= 0 else min(left, LOOK))):
                return
            taken = time.monotonic() - self.since
            if left <= 0:
                raise Lost("overdue", f"killed after {taken:.1f} s")
            if taken > STALE and not self._loading and is_stale():
                raise Lost("stale", "no caller waits for its result")

    def last_words(self) -> str:
        """Return the end of the worker's standard error output before its first message."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def kill(self) -> int:
        """Kill the process and its process group, and return the exit code.

        `end_orphans` kills descendants in other process groups.
        """
        with suppress(ProcessLookupError, PermissionError):
            # A hanging program could ignore SIGTERM.
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.release()
        return code

    def release(self) -> None:
        """Close the socket and the file of the worker's errors."""
        self.channel.close()
        self.errors.close()


def cause_of(code: int) -> str:
    """Return the signal or exit code that ended a process."""
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
