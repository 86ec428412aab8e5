"""Workers of Ray as forks of one process, for tests of runs that have actors.

An actor is a fresh interpreter, whose imports (Ray, torch, Transformers, Assay) take five seconds of
processor time; a run of two actors does nothing else for most of its time. Here the first worker of a
cluster starts a process that imports all of it, and each worker is a fork of that process. Ray starts,
addresses and kills them as it does others: it knows a worker by the process that registers.
Real ones start in the slow tests, on nodes of their own.

Ray runs this file in place of its ``setup_worker.py``; see `install`.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

FOLDER = "ASSAY_TEST_RAY_TEMPLATE"
LONGEST_REQUEST = 1 << 20
SECONDS = 0.5  # between two looks whether the cluster is still there


def install(folder: Path) -> None:
    """Let the next cluster of this process start its workers here. folder: of the socket."""
    from ray._private import ray_constants

    os.environ[FOLDER] = str(folder)
    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).resolve())  # joined to Ray's folder


def ask(arguments: list[str]) -> None:
    """Ask the template for a worker; the first who asks starts the template."""
    folder = Path(os.environ[FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            start(folder)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
        template.connect(str(folder / "socket"))
        socket.send_fds(template, [json.dumps(request).encode()], [0, 1, 2])


def start(folder: Path) -> None:
    """Listen, and leave the socket to a process that has what the cluster's processes have."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(folder / "socket"))
    listening.listen(64)
    with listening, (folder / "said").open("wb") as said:
        command = [sys.executable, __file__, "--serve", str(listening.fileno())]
        kept = [listening.fileno()]
        subprocess.Popen(command, stdout=said, stderr=said, pass_fds=kept, start_new_session=True)


def serve(listening: socket.socket) -> None:
    """Fork a worker for each request, until the cluster ends."""
    import_all()
    cluster = int(os.environ["RAY_RAYLET_PID"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening.settimeout(SECONDS)
    while Path(f"/proc/{cluster}").exists():
        with suppress(TimeoutError):
            connection, _ = listening.accept()
            with connection:
                request, given, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
            if request and not os.fork():
                listening.close()
                become_worker(json.loads(request), given)
            for descriptor in given:
                os.close(descriptor)


def import_all() -> None:
    """Import what actors import, without a thread: a fork has only the one that forks."""
    import pytest  # noqa: F401
    import ray._private.workers.default_worker  # noqa: F401
    import torch

    import assay.scale.rollout_actor
    import assay.scale.teacher
    import assay.scale.verifying
    import assay.training.api  # noqa: F401

    torch.set_num_threads(1)


def become_worker(request: dict[str, Any], given: list[int]) -> NoReturn:
    """Do what a fresh interpreter would do from its start on."""
    import random
    import runpy

    code: Any = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(given):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        random.seed()
        tempfile.tempdir = None
        sys.argv = request["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        atexit._run_exitfuncs()
        os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[2])))
    else:  # as setup_worker.py, which keeps two options for itself and runs what is left
        own = ("--language=", "--serialized-runtime-env-context=")
        ask([argument for argument in sys.argv[1:] if not argument.startswith(own)])
