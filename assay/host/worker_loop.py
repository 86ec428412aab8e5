"""Request loop inside a worker process. `worker_process` is the parent's side of the connection.

Standard output and standard error are discarded, so the code of a worker may print. The process and
its process group end when the socket closes, or when a watching thread sees that the parent died.
If foreign code blocks the watching thread, the watcher process of `orphans` ends the worker.
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
    """Request loop of a worker process. Subclasses implement `handle`."""

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
        """Handle a request. Call `answer` once for each reply that the parent process expects."""
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
    """End this process as soon as the parent process is dead."""
    # The socket can stay open after the parent's death, if a fork of the parent holds it.
    # After the parent's death, the kernel gives this process another parent.
    while os.getppid() == parent:
        time.sleep(1.0)
    end_with_children()


def run_worker(kind: type[WorkerLoop]) -> None:
    """Run a request loop until its socket closes.

    The process arguments are the socket's file descriptor and the parent's process number.
    """
    descriptor, parent = map(int, sys.argv[1:])
    # Programs started by foreign code must not keep the socket open.
    os.set_inheritable(descriptor, False)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        # The score makes the kernel kill a worker before the trainer when memory runs out.
        file.write("1000")
    threading.Thread(target=watch, args=(parent,), daemon=True).start()
    loop = kind(socket.socket(fileno=descriptor))
    with open(os.devnull, "wb") as nowhere:
        # Standard error is closed only here, because the parent reads errors of the worker's start.
        os.dup2(nowhere.fileno(), 2)
    with suppress(OSError):
        loop.run()
    end_with_children()
