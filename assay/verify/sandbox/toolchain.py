"""The worker's side of commands: execute a compiler or a compiled program in the sandbox.

Commands have the same limits as Python programs. The CPU time of all processes of a command is
added up. Idle time, in which the processes neither run nor wait for a processor, is limited too.
The machine's load therefore does not change the result of a command. The memory limit applies to
the writable data of each process.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assay.verify.base import Limits
from assay.verify.sandbox.commands import REPORT
from assay.verify.sandbox.outcome import SandboxTrouble
from assay.verify.sandbox.process import POLL_SECONDS, Process
from assay.verify.sandbox.sandbox import FILE_BYTES, Sandbox

CPU_SECONDS = 4.0
IDLE_SECONDS = 5.0
# Seconds to isolate the process.
START_SECONDS = 30.0
# Ticks per second in /proc/PID/stat.
TICK = os.sysconf("SC_CLK_TCK")
FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives")
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}


@dataclass(frozen=True)
class Command:
    """A command and its files, which appear in its working folder.

    kept: suffixes of the files to return.
    processes: whether the command may start other processes.
    """

    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    kept: tuple[str, ...] = ()
    processes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command.

    status: ``ok``, ``failed`` (exit code or signal in `error`), ``timeout``, ``memory`` or
        ``output``.
    files: contents of the returned files, by name.
    """

    status: str
    error: str = ""
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def execute(sandbox: Sandbox, command: Command, stdin: str, limits: Limits) -> Ran:
    """Execute a command in a fresh isolated process. Raises SandboxTrouble."""
    process = sandbox.fork(stdin.encode("utf-8", "surrogatepass"), b"execute")
    cpu = limits.cpu_seconds or CPU_SECONDS
    process.output_limit = 1024 * (limits.output_kib or 1024)
    request = {
        "command": command.arguments,
        "files": dict(command.files),
        "kept": command.kept,
        "environment": ENVIRONMENT | dict(command.environment),
        "limits": {
            "executes": int(command.processes),
            "stdin": False,
            "memory_mib": limits.memory_mib or 512,
            "file_bytes": FILE_BYTES,
            "threads": limits.processes or 64,
            "total_cpu_seconds": int(cpu) + 2,
        },
    }
    try:
        data = marshal.dumps(request)
        process.begin(START_SECONDS, START_SECONDS, process.output_limit)
        process.send(data)
        report, why = _wait(process, cpu, limits.seconds or IDLE_SECONDS)
        process.kill()
        stdout, stderr = process.take_output()
        too_much = _writes_too_much(process)
    finally:
        process.kill()
        sandbox.reap(process)
        process.close()
    ran = _ran(report, why, cpu, limits.memory_mib or 512, stderr)
    status = "output" if too_much else ran.status
    return Ran(status, ran.error, stdout, stderr, ran.cpu_seconds, ran.files)


def _wait(process: Process, cpu_limit: float, idle_limit: float) -> tuple[bytes, str]:
    """Return (report of the process, ""), or (b"", why the process must be stopped)."""
    data = bytearray()
    poller = select.poll()
    poller.register(process.channel, select.POLLIN)
    poller.register(process.pidfd, select.POLLIN)
    idle, mark = 0.0, (time.monotonic(), 0.0, 0.0)
    while True:
        ready = dict(poller.poll(1000 * POLL_SECONDS))
        if ready:
            try:
                chunk = process.channel.recv(1 << 20)
            except BlockingIOError:
                chunk = b""
            data += chunk
            if len(data) >= REPORT.size:
                wanted = REPORT.size + REPORT.unpack_from(data)[3]
                if len(data) >= wanted:
                    return bytes(data), ""
            if not chunk:
                words = process.take_output()[1][:300]
                raise SandboxTrouble(f"the sandbox did not execute a command: {words}")
            continue
        now, used, waited = time.monotonic(), *_times(process.pid)
        quiet = (now - mark[0]) - max(0.0, used - mark[1]) - max(0.0, waited - mark[2])
        idle += min(max(0.0, quiet), 2 * POLL_SECONDS)
        mark = now, used, waited
        if _writes_too_much(process):
            return b"", "wrote too much"
        if used > cpu_limit:
            return b"", f"more than {cpu_limit:g} s of CPU time"
        if idle > idle_limit:
            return b"", f"did nothing for {idle_limit:g} s"


def _writes_too_much(process: Process) -> bool:
    return any(os.fstat(each).st_size > process.output_limit for each in process.output)


def _times(pid: int) -> tuple[float, float]:
    """Return (CPU seconds, seconds of waiting for a processor) of a process's descendants."""
    used = waited = 0.0
    for child in _children(pid):
        try:
            stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            # utime, stime, cutime, cstime of proc(5).
            # cutime and cstime count the children that have been reaped.
            used += sum(map(int, stat[11:15])) / TICK
            for thread in os.listdir(f"/proc/{child}/task"):
                delay = Path(f"/proc/{child}/task/{thread}/schedstat").read_text().split()[1]
                waited += int(delay) * 1e-9
        except (OSError, ValueError, IndexError):
            # The process has ended in the meantime, and the final report includes its CPU seconds.
            continue
        more = _times(child)
        used, waited = used + more[0], waited + more[1]
    return used, waited


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (OSError, ValueError):
        return []


def _ran(report: bytes, why: str, cpu_limit: float, memory_mib: int, stderr: str) -> Ran:
    if not report:
        return Ran("timeout", why)
    status, seconds, peak_kib, _ = REPORT.unpack_from(report)
    # Unmarshalling is safe: `commands` wrote the data, and the command cannot access the channel.
    files = marshal.loads(report[REPORT.size :])
    if seconds > cpu_limit:
        return Ran("timeout", f"more than {cpu_limit:g} s of CPU time", cpu_seconds=seconds)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return Ran("ok", cpu_seconds=seconds, files=files)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXFSZ:
            return Ran("output", "wrote more than a file may hold", cpu_seconds=seconds)
        known = number in set(signal.Signals)
        error = f"ended by {signal.Signals(number).name if known else number}"
    else:
        error = f"exit code {os.WEXITSTATUS(status)}"
    low = any(words in stderr for words in OUT_OF_MEMORY)
    if low or peak_kib > 0.9 * 1024 * memory_mib:
        return Ran("memory", error, cpu_seconds=seconds)
    return Ran("failed", error, cpu_seconds=seconds)


# Messages that language run-time systems write to standard error after a failed allocation.
OUT_OF_MEMORY = (
    "std::bad_alloc",
    "java.lang.OutOfMemoryError",
    "JavaScript heap out of memory",
    "out of memory",
    "memory allocation of",
    "cannot allocate memory",
    "Cannot allocate memory",
)
