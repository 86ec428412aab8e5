"""One worker process as seen by its owner: start, requests, deadlines, termination.

Requests are pickled, because workers trust their owner. A reply is one line of JSON, so that no
data from a worker is executed, whatever ran in it. `worker_loop` is the other side.

Replies: ``["hello", clock]``, ``["loading", clock, bool]``, ``["reply", clock, number, data]``,
    numbered over the worker's life.
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

# Seconds to start an interpreter.
START_DEADLINE = 120.0
# Seconds for an import inside a worker.
IMPORT_DEADLINE = 60.0
# Seconds between detecting an overdue worker and giving it up.
CONFIRMATION = 0.25
# Seconds that a worker may use for work that is no longer needed.
STALE = 1.0
# Seconds to wait per outstanding reply before reading. Waking up for each single reply would cost
# more.
GATHER = 1e-5
# Seconds between two checks whether the work is still needed.
LOOK = 0.25

# Bytes. Verdicts are truncated to much less, but a group can be large.
MAX_REPLY = 256 * 2**20
# Exceptions for a malformed reply.
NONSENSE = (ValueError, TypeError, IndexError, KeyError, AttributeError)


class Lost(Exception):
    """Raised if a worker is unusable: overdue, dead, sending invalid data, or doing unneeded work.

    idle: whether the worker had no call.
    """

    def __init__(
        self, kind: Literal["overdue", "died", "nonsense", "stale"], detail: str, idle: bool = False
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.idle = idle

    def __reduce__(self) -> Any:
        return Lost, (self.kind, str(self), self.idle)


class WorkerProcess:
    """A fresh interpreter that runs a module, and a socket to it.

    module: calls `run_worker`. family: prefix of the mark by which the worker's child processes are
    found. since: start time of its current work. num_waiting: number of outstanding replies.
    """

    def __init__(self, module: str, family: str) -> None:
        self.mark = WorkerMark(family)
        self.channel, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the worker
        environment = {
            **os.environ,
            **self.mark.environment,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            # Workers already run in parallel. More threads in each would only compete with each
            # other.
            "OMP_NUM_THREADS": "1",
        }
        arguments = [str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = subprocess.Popen(
                # -P: Python would otherwise import modules from the working directory first.
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the parent only, and a kill must reach child processes too.
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
        """Return the data of the next reply. Raises Lost if it takes longer than ``seconds``.

        The time of a slow import does not count. is_stale: returns whether the work is no longer
        needed.
        """
        while True:
            try:
                kind, clock, *rest = self._message(seconds, is_stale)
                # On one machine, both processes read the same clock.
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
        """Return the next line from the worker."""
        searched = 0
        while (end := self._inbox.find(b"\n", searched)) < 0:
            searched = len(self._inbox)
            self._wait(seconds, is_stale)
            if self.num_waiting > 1:
                # Replies to fast calls arrive one by one, and each would wake this thread.
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
        """Wait until data has arrived.

        An overdue worker gets a little more time. After a pause of this process, its reply may be
        on the way.
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
                raise Lost("stale", "no caller waits for its result")

    def last_words(self) -> str:
        """Return the end of the worker's standard error output before its first message."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def kill(self) -> int:
        """Kill the process and its group, and return its exit code.

        `end_orphans` kills its other descendants.
        """
        with suppress(ProcessLookupError, PermissionError):
            # SIGTERM could be caught or ignored by the program that hangs.
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.release()
        return code

    def release(self) -> None:
        """Close this process's ends."""
        self.channel.close()
        self.errors.close()


def cause_of(code: int) -> str:
    """Return the signal or exit code that ended a process."""
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
