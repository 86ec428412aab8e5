"""The worker's side of the sandbox: one zygote, and sessions forked from it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.errors import message
from assay.verify.base import Limits
from assay.verify.sandbox import probe
from assay.verify.sandbox.outcome import Outcome, SandboxTrouble, SandboxUnavailable
from assay.verify.sandbox.packages import NONE, Packages
from assay.verify.sandbox.process import Process, memory_file
from assay.verify.sandbox.session import CPU_SECONDS, MEMORY_MIB, PROCESSES, OnCall, Session

_PRELOAD = """
    math re collections itertools functools heapq bisect random string json datetime decimal
    fractions statistics copy typing dataclasses operator sys os io time abc enum cmath array
    textwrap traceback contextlib numbers
"""
PRELOAD = tuple(_PRELOAD.split())
FILE_BYTES = 16 * 2**20
ENVIRONMENT = {
    # Hashes of strings decide the order of sets, and a program can print a set.
    "PYTHONHASHSEED": "0",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/tmp",
    "PATH": "/nowhere",
    # Each malloc arena and each BLAS thread reserves address space, which RLIMIT_AS limits.
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
START_SECONDS = 60.0
CLOSE_SECONDS = 5.0
ACCEPTED = "Linux with user, mount, pid, ipc, uts and net namespaces, seccomp and memfd"
REMEDY = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, "
    "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a container its "
    "seccomp profile), or say --unsafe-no-sandbox to run submissions without isolation"
)
_probed: set[tuple[int, int, Packages]] = set()
_origins = itertools.count(1)


class Sandbox:
    """Run untrusted Python. The class is a context manager, for one thread at a time.

    unsafe: run without isolation, if the user waived isolation. Without isolation, only limits of
        CPU time, memory and output apply.
    packages: packages that programs may import. Each forked process has the packages that were
        loaded at the process's start.
    toolchain: folders that commands may read and execute from (`toolchain.execute`).
    facts: description of the isolation.

    The class `Limits` has the resource limits of a process. ``cpu_seconds`` and ``output_kib`` (per
    stream, up to 16 MiB) apply to each request. ``seconds`` limits the total idle time of a
    process. A process is idle while it neither runs nor waits for a processor or for the worker.
    ``memory_mib`` limits the address space of a process, in addition to the interpreter's own
    address space. ``processes`` limits its threads.

    Raises SandboxUnavailable.
    """

    facts: dict[str, Any]

    def __init__(
        self,
        *,
        unsafe: bool = False,
        packages: Packages = NONE,
        toolchain: tuple[str, ...] = (),
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(message("sandbox", sys.platform, "Linux"))
        self.broken = False
        self.zygote: subprocess.Popen[bytes] | None = None
        self.unsafe = unsafe
        self.packages = packages
        self.toolchain = toolchain
        self._start()
        self._probe()

    def _start(self) -> None:
        # SOCK_SEQPACKET keeps messages apart, and a message can carry file descriptors.
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "control": theirs.fileno(),
            "preload": PRELOAD,
            "packages": self.packages.names,
            "toolchain": self.toolchain,
            "loaded": self.packages.listed,
            "entries": self.packages.entries,
            "unsafe": self.unsafe,
            "parent": os.getpid(),
            "uid": os.geteuid(),
            "with_thread": threading.current_thread() is threading.main_thread(),
            "file_bytes": FILE_BYTES,
            "temporary": tempfile.gettempdir(),
        }
        try:
            with theirs:
                self.zygote = self._spawn(settings)
            self.control.settimeout(START_SECONDS)
            while (reply := self._reply()) == "map":
                self.control.send(_map_users(self.zygote.pid).encode())
            self.facts = json.loads(reply.removeprefix("facts "))
        except (OSError, SandboxTrouble, ValueError) as error:
            self.close()
            raise SandboxUnavailable(message("sandbox", error, ACCEPTED, REMEDY)) from None

    def _spawn(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("zygote.py"))
        # The option -I would be shorter, but -I ignores PYTHONHASHSEED.
        options = ["-s", "-S", "-P", "-X", "utf8", "-W", "ignore"]
        return subprocess.Popen(
            [sys.executable, *options, program, json.dumps(settings)],
            pass_fds=(settings["control"],),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
        )

    def _probe(self) -> None:
        """Try to break the isolation from inside, once per worker process and set of packages."""
        key = (os.getpid(), os.geteuid(), self.packages)
        # The probe runs without the toolchain, because it would report the toolchain's folders as
        # visible files of the host.
        # The isolation of commands has tests of its own, which try to break the isolation.
        if self.unsafe or self.toolchain or key in _probed:
            return
        wrong = probe.isolation_faults(self.run(probe.program(), "", probe.LIMITS))
        if wrong:
            self.close()
            raise SandboxUnavailable(message("sandbox", wrong, ACCEPTED, REMEDY))
        # The probe takes a fraction of a second, so it is not repeated in the same process.
        _probed.add(key)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote and all processes that were forked from it."""
        # The zygote ends when it reads the end of this socket, and its pid namespace ends with it.
        self.control.close()
        if self.zygote is None:
            return
        try:
            self.zygote.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.zygote.kill()
            self.zygote.wait()
        if self.zygote.stderr is not None:
            self.zygote.stderr.close()

    def run(self, source: str, stdin: str, limits: Limits) -> Outcome:
        """Execute a script as ``__main__`` in a fresh process. `Outcome.stdout` has its output.

        A script that exits with code 0 has the status ``ok``, like a script that runs to its end.
        """
        session = self._session(limits, stdin.encode("utf-8", "surrogatepass"), None)
        with session:
            outcome = session.request(("run", self._settings(session, True), source))
            # The script called os._exit(0), so the process sent no reply.
            if outcome.status == "died" and session.wait_status == 0:
                return dataclasses.replace(outcome, status="ok", error="")
        return outcome

    def load(
        self,
        source: str,
        limits: Limits,
        *,
        on_call: OnCall | None = None,
        shared: Sequence[str] = (),
    ) -> Session:
        """Execute a module in a fresh process and keep the process for calls.

        on_call: function with the signature ``(verb, target, args, kwargs) -> value or Answer``.
            The process gets a built-in function ``call_out`` with these parameters; each call of
            ``call_out`` calls ``on_call``.
        shared: names of the module's classes whose objects are sent with their attributes.
        """
        session = self._session(limits, b"", on_call)
        settings = self._settings(session, False)
        asked = ("load", settings, source, on_call is not None, list(shared))
        session.loaded = session.request(asked)
        return session

    def _settings(self, session: Session, stdin: bool) -> dict[str, Any]:
        limits = session.limits
        return {
            "origin": session.origin,
            "stdin": stdin,
            "memory_mib": limits.memory_mib or MEMORY_MIB,
            "file_bytes": FILE_BYTES,
            "threads": limits.processes or PROCESSES,
            "total_cpu_seconds": session.total_cpu,
        }

    def _session(self, limits: Limits, stdin: bytes, on_call: OnCall | None) -> Session:
        process = self.fork(stdin)
        # RLIMIT_CPU ends the process if the worker is gone.
        # RLIMIT_CPU is only a last resort, because each request has a far lower limit of CPU time.
        total = int(max(60, 200 * (limits.cpu_seconds or CPU_SECONDS)))
        return Session(process, next(_origins), limits, total, self.reap, on_call)

    def fork(self, stdin: bytes, verb: bytes = b"fork") -> Process:
        """Return a new isolated process. Raises SandboxTrouble."""
        if self.broken:
            self.close()
            self._start()
            self.broken = False
        ours, theirs = socket.socketpair()
        output = (memory_file("stdout"), memory_file("stderr"))
        given = memory_file("stdin", stdin)
        try:
            socket.send_fds(self.control, [verb], [theirs.fileno(), given, *output])
            flags = socket.MSG_CMSG_CLOEXEC
            reply, descriptors, _, _ = socket.recv_fds(self.control, 64, 1, flags)
            number = int(reply.decode().removeprefix("pid "))
            return Process(number, descriptors[0], ours, output)
        except (OSError, ValueError, IndexError) as error:
            self.broken = True
            ours.close()
            for descriptor in output:
                os.close(descriptor)
            raise SandboxTrouble(f"the sandbox cannot fork: {error}") from None
        finally:
            theirs.close()
            os.close(given)

    def reap(self, process: Process) -> int:
        """Return the wait status of a process that has ended."""
        if not self.broken:
            with contextlib.suppress(OSError, SandboxTrouble, ValueError):
                self.control.send(f"reap {process.number}".encode())
                return int(self._reply().removeprefix("status "))
        # The zygote and its forked processes have ended.
        # After the end of a zygote, the next fork starts a new zygote.
        self.broken = True
        return signal.SIGKILL

    def _reply(self) -> str:
        try:
            reply = self.control.recv(65536).decode()
        except (TimeoutError, ConnectionResetError):
            reply = ""
        if not reply:
            raise SandboxTrouble(self._last_words())
        return reply

    def _last_words(self) -> str:
        assert self.zygote is not None
        try:
            _, errors = self.zygote.communicate(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.zygote.kill()
            _, errors = self.zygote.communicate()
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "its process ended"


def sandbox_report() -> list[tuple[str, bool, str]]:
    """Return rows (name, whether it works, detail) about the sandbox for ``assay doctor``."""
    started = time.perf_counter()
    try:
        with Sandbox() as sandbox:
            facts = dict(sandbox.facts)
            before = time.perf_counter()
            outcome = sandbox.run("print(1 + 1)", "", Limits(cpu_seconds=5.0))
            works = outcome.stdout == "2\n"
    except (SandboxUnavailable, SandboxTrouble) as error:
        return [("sandbox", False, f"{error}")]
    now = time.perf_counter()
    text = f"start {before - started:.2f} s, a program {1000 * (now - before):.1f} ms"
    rows = [("sandbox", works, f"{facts.pop('mode')}; {text}")]
    return rows + [(f"sandbox {name}", True, f"{value}") for name, value in facts.items()]


def _map_users(pid: int) -> str:
    """Map users into a process's user namespace.

    Root maps itself and "nobody". A user who is not root can map only their own id, as the user
    "nobody".
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with contextlib.suppress(OSError):
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{pid}/{name}").write_text("0 0 1\n65534 65534 1\n")
            return "many"
    # The kernel lets an ordinary user write gid_map only after setgroups is denied.
    Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text(f"65534 {user} 1\n")
    Path(f"/proc/{pid}/gid_map").write_text(f"65534 {group} 1\n")
    return "one"
