"""The worker's side of the sandbox: one zygote, and sessions forked from it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from assay.verify.base import Limits
from assay.verify.sandbox.outcome import Outcome, SandboxTrouble, SandboxUnavailable
from assay.verify.sandbox.process import Ended, Process, memory_file
from assay.verify.sandbox.session import MEMORY_MIB, OnCall, PROCESSES, Session

PRELOAD = (
    "math re collections itertools functools heapq bisect random string json datetime decimal "
    "fractions statistics copy typing dataclasses operator sys os io time abc enum cmath array "
    "textwrap traceback contextlib numbers"
).split()
FILE_BYTES = 16 * 2**20
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/tmp",
    "PATH": "/nowhere",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
START_SECONDS = 30.0
_origins = itertools.count(1)


class Sandbox:
    """A place where untrusted Python runs; a context manager, used by one thread at a time.

    unsafe: run without walls, where the user waived them: limits of CPU time, memory and output only.
    preload: modules that every process has imported already. facts: how it isolates.
    Raises SandboxUnavailable.
    """

    facts: dict[str, Any]

    def __init__(self, *, unsafe: bool = False, preload: tuple[str, ...] = tuple(PRELOAD)) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"sandbox: found {sys.platform}; accepted: Linux")
        self.unsafe, self.preload = unsafe, preload
        self._start()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "control": theirs.fileno(),
            "preload": self.preload,
            "unsafe": self.unsafe,
            "parent": os.getpid(),
            "uid": os.geteuid(),
            "with_thread": threading.current_thread() is threading.main_thread(),
            "file_bytes": FILE_BYTES,
        }
        program = str(Path(__file__).with_name("zygote.py"))
        self.zygote = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-X",
                "utf8",
                "-W",
                "ignore",
                program,
                json.dumps(settings),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
        )
        theirs.close()
        self.control.settimeout(START_SECONDS)
        try:
            while (reply := self._reply()) == "map":
                self.control.send(_map_users(self.zygote.pid).encode())
            self.facts = json.loads(reply.removeprefix("facts "))
        except (OSError, SandboxTrouble, ValueError) as error:
            self.close()
            raise SandboxUnavailable(f"sandbox: {error}") from None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote and everything forked from it."""
        self.control.close()
        if self.zygote.poll() is None:
            self.zygote.kill()
        self.zygote.wait()
        if self.zygote.stderr is not None:
            self.zygote.stderr.close()

    def run(self, source: str, stdin: str, limits: Limits) -> Outcome:
        """Execute a script as ``__main__`` in a fresh process; what it wrote is in `stdout`.

        A script that ends its process with exit code 0 is ``ok`` like one that comes to its end.
        """
        session = self._session(limits, stdin.encode("utf-8", "surrogatepass"), None)
        with session:
            outcome = session.request(("run", self._settings(session), source))
        return outcome

    def load(self, source: str, limits: Limits, *, on_call: OnCall | None = None) -> Session:
        """Execute a module in a fresh process, and keep it for calls.

        on_call: ``(name, args, kwargs) -> value`` answers ``call_out(name, args, kwargs)``, a built-in
        function that code in this process then has.
        """
        session = self._session(limits, b"", on_call)
        message = ("load", self._settings(session), source, on_call is not None)
        session.loaded = session.request(message)
        return session

    def _settings(self, session: Session) -> dict[str, Any]:
        limits = session.limits
        cpu = limits.cpu_seconds or 2.0
        return {
            "origin": session.origin,
            "memory_mib": limits.memory_mib or MEMORY_MIB,
            "file_bytes": FILE_BYTES,
            "threads": limits.processes or PROCESSES,
            "total_cpu_seconds": int(max(60, 200 * cpu)),
        }

    def _session(self, limits: Limits, stdin: bytes, on_call: OnCall | None) -> Session:
        ours, theirs = socket.socketpair()
        output = (memory_file("stdout"), memory_file("stderr"))
        given = memory_file("stdin", stdin)
        try:
            socket.send_fds(self.control, [b"fork"], [theirs.fileno(), given, *output])
            reply, descriptors, _, _ = socket.recv_fds(self.control, 64, 1)
            number, pidfd = int(reply.decode().removeprefix("pid ")), descriptors[0]
        except (OSError, ValueError) as error:
            raise SandboxTrouble(f"the sandbox cannot fork: {error}") from None
        finally:
            theirs.close()
            os.close(given)
        process = Process(number, pidfd, ours, output)
        process.begin(10.0, 10.0, 2**20)
        session = Session(process, next(_origins), limits, self._reap, on_call)
        try:
            ready = session.decode(process.receive())
        except Ended as end:
            with session:
                raise SandboxTrouble(
                    f"the sandbox did not start: {end.text}: {process.take_output()[1]}"
                ) from None
        if ready != (b"", "ready"):
            raise SandboxTrouble(f"the sandbox did not start: {ready!r}")
        return session

    def _reap(self, process: Process) -> int:
        process.kill()
        self.control.send(f"reap {process.number}".encode())
        return int(self._reply().removeprefix("status "))

    def _reply(self) -> str:
        try:
            reply = self.control.recv(65536).decode()
        except TimeoutError:
            reply = ""
        if not reply:
            raise SandboxTrouble(f"its zygote ended: {self._last_words()}")
        return reply

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            os.kill(self.zygote.pid, signal.SIGKILL)
        _, errors = self.zygote.communicate()
        return errors.decode("utf-8", "replace").strip().splitlines()[-1:].__str__()


def _map_users(pid: int) -> str:
    """Map users into the namespace of process ``pid``: two where we may, else our own as "nobody"."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with contextlib.suppress(OSError):
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{pid}/{name}").write_text("0 0 1\n65534 65534 1\n")
            return "many"
    Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text(f"65534 {user} 1\n")
    Path(f"/proc/{pid}/gid_map").write_text(f"65534 {group} 1\n")
    return "one"
