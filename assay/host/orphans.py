"""What a killed worker leaves behind: processes that left its group, temporary files.

Whatever a worker starts inherits a mark in its environment, however often it forks and whatever
session it moves to; where /proc tells (Linux), that finds it. The name of its temporary folder says
whose it is, so that a later run clears those of one that was killed itself.

Where the parent of the workers is killed, nobody is left to look. So a small process of its own
session waits for that (`watch`), which knows the mark that all workers of a pool share.
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
ROUNDS = 5  # a process may fork while we look
WATCH_SECONDS = 1.0  # between two looks at the parent
# Without site-packages, which take a while: this package alone, from where it lies.
_WATCH = """import sys
sys.path.insert(0, sys.argv[1])
from assay.host.orphans import watch
watch(sys.argv[2], int(sys.argv[3]))
"""
_ROOT = str(Path(__file__).resolve().parents[2])


def new_family() -> str:
    """Return what the marks of a pool's workers begin with."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Remains:
    """The mark and the temporary folder of one worker."""

    family: str
    number: str = field(default_factory=lambda: secrets.token_hex(8))
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix=_prefix(os.getpid())))

    @property
    def environment(self) -> dict[str, str]:
        """What the worker's environment says besides ours."""
        return {VARIABLE: f"{self.family}-{self.number}", "TMPDIR": self.folder}


def clear(remains: Collection[Remains]) -> None:
    """Kill the marked processes and delete the folders of workers that are dead."""
    _end_marked(tuple(f"{VARIABLE}={each.family}-{each.number}" for each in remains))
    for each in remains:
        remove_temporary(Path(each.folder))


def start_watcher(family: str) -> subprocess.Popen[bytes]:
    """Start the process that clears up after this one, should it be killed."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, _ROOT, family, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


@contextmanager
def watched(remains: Remains) -> Generator[None]:
    """End what is marked when this ends, or when this process is killed."""
    watcher = start_watcher(remains.family)
    try:
        yield
    finally:
        clear([remains])
        watcher.kill()
        watcher.wait()


def watch(family: str, parent: int) -> None:
    """Wait for the end of the parent, then kill what its workers left and delete their folders."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    _end_marked((f"{VARIABLE}={family}-",))
    clear_of_dead_parents()


def clear_of_dead_parents() -> None:
    """Delete the folders of workers whose parent, in our namespace of processes, is no more."""
    if _namespace() == UNKNOWN:
        return
    mine = re.compile(rf"assay-worker-{_namespace()}-(\d+)-")
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).iterdir():
            found = mine.match(folder.name)
            if found and not Path(f"/proc/{found[1]}").exists():
                remove_temporary(folder)


def _end_marked(marks: tuple[str, ...]) -> None:
    """Kill every process whose environment has an entry that begins with one of these."""
    wanted = tuple(mark.encode() for mark in marks)
    was_empty = False
    for _ in range(ROUNDS):
        found = [
            pid for pid in _processes() if any(e.startswith(wanted) for e in _environment(pid))
        ]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if was_empty and not found:
            break
        was_empty = not found
        time.sleep(0.005 if was_empty else 0.0)  # one that begins a program has no environment


def _prefix(pid: int) -> str:
    return f"assay-worker-{_namespace()}-{pid}-"


@cache
def _namespace() -> str:
    """What tells equal process numbers of two containers apart that share a temporary folder."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # another system
        return UNKNOWN


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # another system: the process group must do
        return []


def _environment(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:  # it ended, or is another user's
        return set()
