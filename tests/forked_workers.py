"""Verifier workers as forks of one process, for tests of what uses them.

A worker is a fresh interpreter, whose start takes 0.15 seconds of processor time, most of it for numpy.
A training starts one; so do an evaluation, a dry run and most commands. Here one process imports what
every worker imports, and each worker is a fork of it. How real ones start, live and end is tested in
tests/verify/serving, by the programs that are killed in tests/training, and by whole commands in
processes of their own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

LONGEST_REQUEST = 1 << 20


class Template:
    """The process that all workers are forks of; it starts with the first and ends with the tests."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OMP_NUM_THREADS": "1",
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return ours

    def Popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stderr: Any,
        **rest: Any,
    ) -> Fork | subprocess.Popen[bytes]:
        """Start a worker, in place of `subprocess.Popen`, which starts those of tools."""
        if "assay.verify.serving.worker" not in command:
            whole: dict[str, Any] = {"env": env, "pass_fds": pass_fds, "stderr": stderr, **rest}
            return subprocess.Popen[bytes](command, **whole)
        request = json.dumps({"environment": dict(env), "folder": os.getcwd()}).encode()
        status, theirs = socket.socketpair()
        with theirs:
            with self._lock:
                self._channel = self._channel or self._start()
            given = [*pass_fds, stderr.fileno(), theirs.fileno()]
            socket.send_fds(self._channel, [request], given)
        return Fork(status)

    def close(self) -> None:
        """End it; workers end when their own socket closes."""
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.wait()


class Fork:
    """What a pool uses of `subprocess.Popen`."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status.makefile("rb", buffering=0)
        self._socket = status
        self.pid = int(self._status.readline())
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with self._lock:
            ended = self.returncode is None and select.select([self._socket], [], [], 0)[0]
        return self.wait() if ended else self.returncode

    def wait(self) -> int:
        """Wait for its end and return its exit code, as `subprocess.Popen` says it."""
        with self._lock:
            if self.returncode is None:
                self.returncode = int(self._status.readline() or -signal.SIGKILL)
                self._status.close()
                self._socket.close()
            return self.returncode


def serve(channel: socket.socket) -> None:
    """Fork a worker for each request, and tell how each ended, until the tests' process ends."""
    from assay.verify.serving import worker

    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            tell_ended(forks)
        if channel not in ready:
            continue
        request, given, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, 3)
        if not request:
            return
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (woken, wakes):
                os.close(descriptor)
            for other in (channel, *forks.values()):
                other.close()
            become_worker(worker, json.loads(request), *given)
        for descriptor in given[:2]:
            os.close(descriptor)
        forks[child] = socket.socket(fileno=given[2])


def tell_ended(forks: dict[int, socket.socket]) -> None:
    """Reap all forks that have ended, and tell those who wait for them."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            child, status = ended
            with forks.pop(child) as waiting, suppress(OSError):
                waiting.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become_worker(
    worker: Any, request: dict[str, Any], channel: int, errors: int, status: int
) -> NoReturn:
    """Do what a fresh interpreter would do from its start on."""
    code = 1
    try:
        os.setsid()
        with socket.socket(fileno=status) as waiting:  # now it can be killed by its group
            waiting.sendall(b"%d\n" % os.getpid())
        os.dup2(errors, 2)
        os.close(errors)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = request["environment"]["PYTHONPATH"].split(os.pathsep)
        tempfile.tempdir = None
        sys.argv = [worker.__file__, str(channel), str(os.getppid())]
        worker.main()
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
