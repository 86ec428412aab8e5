"""Execution of programs as a user runs them, with their peak memory.

Linux counts the memory of a parent process at a start as the peak of its child. A small launcher
process therefore starts each program and waits for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS_BETWEEN_LOOKS = 0.5
LINES_OF_LOG = 30
MIB = 2**20


LAUNCHER = """
import ctypes, os, sys
end_with_the_parent = lambda: ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
end_with_the_parent()
pid = os.fork()
if not pid:
    end_with_the_parent()
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as report:
    report.write(f"{os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}")
"""


@dataclass(frozen=True)
class Finished:
    """A program that ended successfully.

    peak_mib: peak memory of the process. helpers_mib: peak of the sum over all its child processes,
    in which shared pages are divided among their users.
    """

    seconds: float
    peak_mib: float
    helpers_mib: float


def run(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Run a program to its end, with its output in ``log``.

    Raises RuntimeError with the end of the log if the program fails. PYTHONPATH contains the root
    of the project.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    report = log.with_suffix(".usage")
    launch = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(report)]
    started = time.perf_counter()
    with log.open("wb") as output:
        launcher = subprocess.Popen(
            launch + [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=variables,
            cwd=folder,
        )
        watch = _HelperWatch(launcher.pid)
        try:
            launcher.wait()
        except BaseException:
            launcher.kill()
            raise
        finally:
            watch.stop()
    seconds = time.perf_counter() - started
    exit_code, peak_kib = map(int, report.read_text(encoding="utf-8").split())
    if exit_code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES_OF_LOG:]
        shown = " ".join(map(str, command))
        raise RuntimeError("\n".join([f"exit code {exit_code} of: {shown}", *lines]))
    return Finished(seconds, peak_kib / 1024, watch.peak_bytes / MIB)


def run_for_json(
    command: Sequence[str | Path],
    folder: Path,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> tuple[Any, Finished]:
    """Run a program whose last argument is a JSON file that it writes. Return the contents of
    the file."""
    result = folder / f"{name}.json"
    result.unlink(missing_ok=True)
    finished = run([*command, result], folder / f"{name}.log", environment, folder)
    return json.loads(result.read_text(encoding="utf-8")), finished


class _HelperWatch:
    """Samples the memory of the child processes of a launched program."""

    def __init__(self, launcher: int) -> None:
        self.peak_bytes = 0
        self._launcher = launcher
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            helpers = [one for pid in _children(self._launcher) for one in _descendants(pid)]
            total = sum(map(_shared_out_bytes, helpers))
            self.peak_bytes = max(self.peak_bytes, total)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(text) for text in children.read_text().split()]
        except OSError:  # the thread ended meanwhile
            continue
    return found


def _descendants(pid: int) -> list[int]:
    return [one for child in _children(pid) for one in [child, *_descendants(child)]]


def _shared_out_bytes(pid: int) -> int:
    """Return a process's proportional set size; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
