"""Nodes of Ray that a test starts and kills, each as on a machine of its own.

A node is what ``ray start`` starts. All that it starts inherits a mark in its environment, by which
it is found: whatever part of it was killed, and by whom.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "ASSAY_TEST_NODE"
PLAIN = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}  # of nodes, and of who joins them
CPUS = 4
STORE = 128 * 2**20  # bytes, of the object store
START_SECONDS = 120.0  # on a busy machine


def processes(mark: str, words: bytes = b"") -> list[int]:
    """Return the processes whose environment holds a mark, and whose command holds some words."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                if words in command and command:
                    found.append(int(folder.name))
    return found


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def gone_soon(find: Callable[[], Sequence[object]], seconds: float = 30.0) -> list[object]:
    """Return what is still found after some seconds."""
    until = time.monotonic() + seconds
    while (left := [*find()]) and time.monotonic() < until:
        time.sleep(0.1)
    return left


class Nodes:
    """A cluster of nodes on this machine. prefix: of the command that starts one, by its number."""

    def __init__(
        self, host: str = "127.0.0.1", prefix: Callable[[int], Sequence[str]] = lambda number: ()
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-nodes-", dir="/tmp"))
        self.address = f"{host}:{free_port()}"
        self._prefix, self._name = prefix, self.folder.name

    def start(self, number: int, host: str = "127.0.0.1", more: Sequence[str] = ()) -> None:
        """Start a node; number 0 is the head. Raises RuntimeError in its own words.

        more: options of ``ray start``.
        """
        own = ["--address", self.address]
        if number == 0:
            own = ["--head", "--port", self.address.rpartition(":")[2]]
            own += ["--include-dashboard", "false", "--temp-dir", str(self.folder)]
        command = [
            *self._prefix(number),
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *own),
            *("--node-ip-address", host, "--num-cpus", str(CPUS), "--disable-usage-stats"),
            *("--object-store-memory", str(STORE)),
            *more,
        ]
        environment = {**os.environ, **PLAIN, MARK: self.mark(number).partition("=")[2]}
        environment.pop("RAY_ADDRESS", None)
        said = self.folder / f"said-{number}"
        with said.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
            try:
                code = process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
        if code:
            raise RuntimeError(said.read_text(encoding="utf-8")[-2000:])

    def mark(self, number: int) -> str:
        """Return what all processes of a node have in their environment."""
        return f"{MARK}={self._name}-{number}"

    def kill(self, number: int) -> None:
        """Kill all that a node has started, as where its machine goes down."""
        for _ in range(3):  # one may start another meanwhile
            for pid in processes(self.mark(number)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self, numbers: Sequence[int]) -> None:
        """Kill all nodes, and delete their files."""
        for number in numbers:
            self.kill(number)
        shutil.rmtree(self.folder, ignore_errors=True)
