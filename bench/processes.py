"""Programs run as a user runs them, with the memory that they took.

Linux hands a parent's own peak on to the children that it starts, so what calls these functions
stays small: heavy libraries are loaded in children only.
"""

from __future__ import annotations

import json
import os
import subprocess
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


@dataclass(frozen=True)
class Finished:
    """A program that ended well. peak_mib: of the process; helpers_mib: of all that it started, at
    their largest together, shared pages shared out."""

    seconds: float
    peak_mib: float
    helpers_mib: float


def run(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Run a program to its end, its output in ``log``; RuntimeError with the log's end where it failed.

    The project's root is on its PYTHONPATH.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    started = time.perf_counter()
    with log.open("wb") as output:
        program = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=variables,
            cwd=folder,
        )
        watch = _HelperWatch(program.pid)
        try:
            _, status, usage = os.wait4(program.pid, 0)
        except BaseException:
            program.kill()
            raise
        finally:
            watch.stop()
    program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES_OF_LOG:]
        shown = " ".join(map(str, command))
        raise RuntimeError("\n".join([f"exit code {program.returncode} of: {shown}", *lines]))
    seconds = time.perf_counter() - started
    return Finished(seconds, usage.ru_maxrss / 1024, watch.peak_bytes / MIB)


def run_for_json(
    command: Sequence[str | Path],
    folder: Path,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> tuple[Any, Finished]:
    """Run a program whose last argument is the file that it writes JSON to; returns what it wrote."""
    result = folder / f"{name}.json"
    result.unlink(missing_ok=True)
    finished = run([*command, result], folder / f"{name}.log", environment, folder)
    return json.loads(result.read_text(encoding="utf-8")), finished


class _HelperWatch:
    """Looks now and then at the processes that a program started."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            total = sum(map(_shared_out_bytes, _descendants(self._pid)))
            self.peak_bytes = max(self.peak_bytes, total)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(text) for text in children.read_text().split()]
        except OSError:  # the thread ended meanwhile
            continue
        for child in pids:
            found += [child, *_descendants(child)]
    return found


def _shared_out_bytes(pid: int) -> int:
    """Return a process's proportional set size; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
