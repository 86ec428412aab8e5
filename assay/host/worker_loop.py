"""The side of a worker process that handles requests. `worker_process` is the other side.

Standard output and errors are discarded, so the code that runs here may print. The process ends
with its process group when the socket closes, or when a watching thread sees a new parent. If
foreign code blocks that thread, the watcher in `orphans` ends the process.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from assay.host.imports import on_slow_import


class WorkerLoop:
    """The loop of a worker process. Subclasses handle its requests."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.num_answered = 0

    def run(self) -> None:
        """Handle requests until the parent closes the socket."""
        stream = self.channel.makefile("rb")
        on_slow_import(lambda on: self.send("loading", on))
        self.send("hello")
        with suppress(EOFError):
            while request := pickle.load(stream):
                self.handle(*request)

    def handle(self, kind: str, *rest: Any) -> None:
        """Handle a request. Calls `answer` once for each reply that the owner expects."""
        raise NotImplementedError

    def answer(self, data: Any) -> None:
        """Send the next answer."""
        self.send("reply", self.num_answered, data)
        self.num_answered += 1

    def send(self, kind: str, *rest: Any) -> None:
        """Send a message with the current time. Raises ValueError for NaN and infinities."""
        message = [kind, time.monotonic(), *rest]
        line = json.dumps(message, allow_nan=False, separators=(",", ":"))
        self.channel.sendall(line.encode() + b"\n")


def end_with_children() -> None:
    """End this process and its group."""
    with suppress(OSError):
        # Children of foreign code, such as a compiler, belong to the group.
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def watch(parent: int) -> None:
    """Wait for the end of the parent. A fork of the parent can keep the socket open."""
    # A dead parent is replaced by another process, so its number changes.
    while os.getppid() == parent:
        time.sleep(1.0)
    end_with_children()


def run_worker(kind: type[WorkerLoop]) -> None:
    """Run a loop until its socket closes. The arguments of the process: socket and parent."""
    descriptor, parent = map(int, sys.argv[1:])
    # Programs started by foreign code must not keep the socket open.
    os.set_inheritable(descriptor, False)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        # When memory runs out, the kernel should kill a worker before the trainer.
        file.write("1000")
    threading.Thread(target=watch, args=(parent,), daemon=True).start()
    loop = kind(socket.socket(fileno=descriptor))
    with open(os.devnull, "wb") as nowhere:
        # Errors at the start are reported to the parent.
        os.dup2(nowhere.fileno(), 2)
    with suppress(OSError):
        loop.run()
    end_with_children()
