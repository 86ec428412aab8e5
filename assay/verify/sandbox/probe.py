"""Test the isolation from inside, as the first program of a sandbox.

The probe is needed because kernel versions and capabilities do not show what a host really allows.
The program `PROGRAM` tries to break each isolation measure, and prints the names of the broken
measures.
"""

from __future__ import annotations

from assay.verify.base import Limits
from assay.verify.sandbox.outcome import Outcome

MEMORY_MIB = 64
LIMITS = Limits(cpu_seconds=10.0, memory_mib=MEMORY_MIB, output_kib=16, processes=4)

# The dict `tries` maps each isolation measure to an attempt to break it.
# An isolation measure counts as unbroken if the attempt to break it raises or returns a false
# value.
PROGRAM = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
    return True
def system(number):
    if libc.syscall(number, 0, 0, 0, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), number)
    return True
def socket():
    import socket as module
    module.socket()
    return True
def fork():
    if os.fork() == 0:
        os._exit(0)
    return True
def threads():
    import threading, time
    threading.stack_size(1 << 16)
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return True
def unreadable():
    os.close(os.open("unreadable", os.O_CREAT, 0))
    return open("unreadable")
def folders():
    allowed = {"dev", "tmp"} | {path.split(os.sep)[1] for path in sys.path}
    return set(os.listdir("/")) - allowed
tries = {
    "files of the host": lambda: folders() or any(map(os.path.exists, ("/etc/passwd", "/proc/1"))),
    "read-only files": lambda: open("/intruder", "w"),
    "read-only library": lambda: open(os.path.dirname(os.__file__) + "/intruder", "w"),
    "environment": lambda: {"USER", "LOGNAME", "PWD"} & set(os.environ),
    "user": lambda: 0 in (*os.getresuid(), *os.getresgid()),
    "capabilities": unreadable,
    "process namespace": lambda: os.getpid() != 1 or os.getppid() != 0,
    "network": socket,
    "processes": fork,
    "programs": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
    "tracing": lambda: call("ptrace", 0, 0, 0, 0),
    "namespaces": lambda: call("unshare", 0x10000000),
    "mounts": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "death signal": lambda: call("prctl", 1, 0, 0, 0, 0),
    "unknown system calls": lambda: system(600),
    "clone3": lambda: system(435),
    "io_uring": lambda: system(425),
    "memory": lambda: bytearray(MEMORY << 21),
    "disk": lambda: [open(str(i), "wb", 0).write(bytes(1 << 20)) for i in range(64)],
    "threads": threads,
}
for name, attempt in tries.items():
    try:
        if attempt():
            print(name)
    except (OSError, MemoryError, RuntimeError):
        pass
import colorsys
"""


def program() -> str:
    """Return the probe's source."""
    return f"MEMORY = {MEMORY_MIB}\n{PROGRAM}"


def isolation_faults(outcome: Outcome) -> str:
    """Return the isolation measures that the probe broke, or "" if all measures hold."""
    if outcome.status != "ok":
        return f"the probe ended with {outcome.status}: {outcome.error} {outcome.stderr[-300:]}"
    names = outcome.stdout.split("\n")[:-1]
    return f"broken isolation measures: {', '.join(names)}" if names else ""
