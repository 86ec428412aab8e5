"""The isolated process that executes one command: a compiler, or a compiled program.

This process is the first of its pid namespace, so its end kills all processes that the command has
started. The isolated process reads a request from the worker and executes the command in a confined
child process. After the command ends, the isolated process reports the kernel's wait status. The
command has no access to the channel and cannot trace this process, and the kernel delivers no
signal from the command to this process.

The zygote loads this file without the package, so it imports the standard library only.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import struct
from collections.abc import Callable
from typing import Any

# File descriptor of the socket to the worker.
CHANNEL = 3
SIZE = struct.Struct("<I")
# Report on a command: wait status, CPU seconds, KiB of the largest process, and number of bytes of
# the files that follow.
REPORT = struct.Struct("<idQI")
# Maximum number of bytes of all returned files together.
MAX_KEPT = 48 * 2**20
NOT_EXECUTED = 126


def main(confine: Callable[[dict[str, Any]], None]) -> None:
    """Execute one command. Never returns."""
    try:
        _serve(confine)
    except BaseException as error:  # Any exception is caught, because the worker reads the message.
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(70)


def _serve(confine: Callable[[dict[str, Any]], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = marshal.loads(_exactly(SIZE.unpack(_exactly(SIZE.size))[0]))
    for name, data in request["files"].items():
        path = os.path.join(os.getcwd(), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, 0o700)
    command = os.fork()
    if command == 0:
        _execute(request, confine)
    status = 0
    ended = 0
    # As the first process of its pid namespace, this process also reaps the command's orphans.
    while ended != command:
        ended, status = os.wait()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    kept = marshal.dumps(_files(request["kept"]))
    seconds = usage.ru_utime + usage.ru_stime
    data = REPORT.pack(status, seconds, usage.ru_maxrss, len(kept)) + kept
    while data:
        data = data[os.write(CHANNEL, data) :]
    os._exit(0)


def _execute(request: dict[str, Any], confine: Callable[[dict[str, Any]], None]) -> None:
    try:
        os.close(CHANNEL)
        confine(request["limits"])
        os.execve(request["command"][0], request["command"], request["environment"])
    except BaseException as error:  # An exception of any kind: this process must not continue.
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(NOT_EXECUTED)


def _files(suffixes: tuple[str, ...]) -> dict[str, bytes]:
    """Return the files of the working folder whose names end in one of ``suffixes``."""
    found: dict[str, bytes] = {}
    left = MAX_KEPT
    for folder, _, names in os.walk("."):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name))
            if suffixes and path.endswith(suffixes) and not os.path.islink(path):
                with open(path, "rb") as file:
                    found[path] = file.read(left)
                left -= len(found[path])
    return found


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(CHANNEL, min(size - len(data), 1 << 20))
        if not chunk:
            # The worker process has closed the socket or has ended.
            os._exit(0)
        data += chunk
    return data
