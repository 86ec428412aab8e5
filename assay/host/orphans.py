"""Cleanup after killed workers: orphaned processes and temporary files.

All descendants of a worker inherit a mark in their environment, even in another process group or
session. On Linux, /proc shows the environment of each process, and thereby the marked processes.
The name of a worker's temporary folder contains the parent's process number, so that a later run
can delete the folders of a killed parent.

If the parent of the workers is killed, a small watcher process in its own session (`watch`) cleans
up. The marks of a pool's workers have a common prefix, which the watcher knows.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from assay.host.removal import remove_temporary

VARIABLE = "ASSAY_WORKER"
UNKNOWN = "x"
# Number of scans of /proc.
# Repeated scans find processes that fork during an earlier scan.
ROUNDS = 5
# Seconds between two checks of the parent.
WATCH_SECONDS = 1.0
# The watcher imports `assay` from its folder, because loading site-packages is slow.
_WATCH = """import sys
sys.path.insert(0, sys.argv[1])
from assay.host.orphans import watch
watch(sys.argv[2], int(sys.argv[3]))
"""
_ROOT = str(Path(__file__).resolve().parents[2])


def new_family() -> str:
    """Return a new prefix for the marks of a pool's workers."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class WorkerMark:
    """Environment mark and temporary folder of one worker, which identify its orphans."""

    family: str
    number: str = field(default_factory=lambda: secrets.token_hex(8))
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix=_prefix(os.getpid())))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the worker, in addition to the parent's."""
        return {VARIABLE: f"{self.family}-{self.number}", "TMPDIR": self.folder}


def end_orphans(marks: Collection[WorkerMark]) -> None:
    """Kill the marked processes and delete the folders of dead workers."""
    _end_marked(tuple(f"{VARIABLE}={each.family}-{each.number}" for each in marks))
    for each in marks:
        remove_temporary(Path(each.folder))


def start_watcher(family: str) -> subprocess.Popen[bytes]:
    """Start the process that cleans up if this process is killed."""
    return subprocess.Popen(
        # -I ignores variables such as PYTHONPATH, which could change the watcher's imports.
        [sys.executable, "-I", "-S", "-c", _WATCH, _ROOT, family, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # The watcher gets its own session, so that it survives signals to this process's group.
        start_new_session=True,
    )


@contextmanager
def watched(mark: WorkerMark) -> Generator[None]:
    """When the ``with`` block ends or this process dies, kill all processes whose environment has
    the mark."""
    watcher = start_watcher(mark.family)
    try:
        yield
    finally:
        end_orphans([mark])
        watcher.kill()
        watcher.wait()


def watch(family: str, parent: int) -> None:
    """Wait for the end of the parent, then kill its orphaned processes and delete their folders."""
    # After the parent's death, the kernel gives this process another parent.
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    _end_marked((f"{VARIABLE}={family}-",))
    clear_of_dead_parents()


def clear_of_dead_parents() -> None:
    """Delete the folders of workers whose parent process, in this process namespace, is dead."""
    if _namespace() == UNKNOWN:
        return
    mine = re.compile(rf"assay-worker-{_namespace()}-(\d+)-")
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).iterdir():
            found = mine.match(folder.name)
            if found and not Path(f"/proc/{found[1]}").exists():
                remove_temporary(folder)


def _end_marked(marks: tuple[str, ...]) -> None:
    """Kill every process with an environment entry that starts with one of the marks."""
    wanted = tuple(mark.encode() for mark in marks)
    was_empty = False
    for _ in range(ROUNDS):
        found = [
            pid for pid in _processes() if any(e.startswith(wanted) for e in _environment(pid))
        ]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # Two empty scans in a row, because one scan can miss a process that starts a program.
        if was_empty and not found:
            break
        was_empty = not found
        # A process has no readable environment for a moment while it starts a program.
        time.sleep(0.005 if was_empty else 0.0)


def _prefix(pid: int) -> str:
    return f"assay-worker-{_namespace()}-{pid}-"


@cache
def _namespace() -> str:
    """Return the identifier of the process namespace.

    Two containers that share a temporary folder may have equal process numbers.
    """
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        # Not Linux.
        return UNKNOWN


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        # On systems without /proc, only the worker's process group can be killed.
        return []


def _environment(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        # The process has ended, or belongs to another user.
        return set()
