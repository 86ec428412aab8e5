"""What a pool gives out and to whom: a task on one group, and the process that works on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.types import NotJudgedReason
from assay.verify.serving.remains import Remains

Unit = tuple[int, int]
"""Index of a verifier among the names, and a completion or the whole group."""


@dataclass(eq=False)
class Task:
    """Units of work on one group, done in order by one worker.

    encode: makes the request's blob; called when a worker has room, so that what waits in the queue
    takes no memory of its own. seconds: of each name, its own deadline where it has one.
    """

    kind: Literal["judge", "describe"]
    names: tuple[str, ...]
    encode: Callable[[], bytes]
    units: deque[Unit]
    num_completions: int
    on_reply: Callable[[Unit, Any], None]
    on_failure: Callable[[Unit, NotJudgedReason, str, float], None]
    seconds: tuple[float | None, ...] = ()
    blob: bytes | None = None
    cancelled: bool = False
    id: int = 0
    answered: int = 0


@dataclass(eq=False)
class WorkerProcess:
    """One child process, its socket, the pipe whose end is its end, and what it was given."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    lifeline: int
    errors: Any
    since: float
    remains: Remains
    ready: bool = False
    loading: bool = False
    overdue: float | None = None
    tasks: deque[Task] = field(default_factory=deque[Task])
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)

    @property
    def num_units(self) -> int:
        return sum(len(task.units) for task in self.tasks)

    def kill(self) -> int:
        """Kill the process and its group, and return its exit code; `clear` takes what left the group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.release()
        return code

    def release(self) -> None:
        """Close our ends; the process goes with its lifeline unless another holds it."""
        self.channel.close()
        os.close(self.lifeline)
        self.errors.close()


def start_worker(family: str) -> WorkerProcess:
    """Start a fresh interpreter that runs `assay.verify.serving.worker`; its mark is of a family."""
    ours, theirs = socket.socketpair()
    lifeline, kept = os.pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the worker
    paths = [path or os.getcwd() for path in sys.path]
    remains = Remains(family)
    environment = {
        **os.environ,
        **remains.environment,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }
    arguments = [str(theirs.fileno()), str(lifeline), str(os.getpid())]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "assay.verify.serving.worker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            pass_fds=[theirs.fileno(), lifeline],
            start_new_session=True,  # Ctrl-C is the parent's affair, and a kill takes children too
        )
    os.close(lifeline)
    ours.setblocking(False)
    return WorkerProcess(process, ours, kept, errors, time.monotonic(), remains)
