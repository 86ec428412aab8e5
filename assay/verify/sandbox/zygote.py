"""The process that submissions are forked from: ``python -I -S zygote.py CONTROL``, started by `Sandbox`.

A fresh interpreter with one thread, started before any test exists: a forked process can read everything
that its parent held, so this one holds nothing. It loads the modules that submissions commonly use, and
then answers the worker over the socket CONTROL:

    b"fork" + 4 descriptors (channel, stdin, stdout, stderr) -> b"pid N"
    b"reap N" -> b"status S"      the exit status, as of wait; N has ended, or is about to
    end of file -> this process ends, and with it everything forked from it
"""

from __future__ import annotations

import builtins
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
SPARE_DESCRIPTOR = 4  # everything from here on is closed in a forked process


def load(name: str) -> Any:
    """Import the sibling file ``name`` with built-in names of its own."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__builtins__"] = dict(vars(builtins))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def add_site_names() -> None:
    """Scripts call exit() and quit(), which the module site makes."""
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()


def child(channel: int, streams: list[int], agent: Any, isolation: Any) -> None:
    """Become one submission's process; never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate([*streams, channel]):
        os.dup2(descriptor, number)
    os.closerange(SPARE_DESCRIPTOR, 1024)
    for name in ("codec", "agent", "isolation", "seccomp", "__main__"):
        sys.modules.pop(name, None)
    sys.argv[:] = ["main.py"]
    agent.main(isolation.enter())


def serve(control: socket.socket, agent: Any, isolation: Any) -> None:
    """Answer the worker until it closes the socket."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 4)
        verb, _, number = request.decode().partition(" ")
        if verb == "fork":
            isolation.before_fork()
            pid = os.fork()
            if pid == 0:
                try:
                    child(descriptors[0], descriptors[1:], agent, isolation)
                finally:
                    os._exit(71)
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(f"pid {pid}".encode())
        elif verb == "reap":
            _, status = os.waitpid(int(number), 0)
            control.send(f"status {status}".encode())
        else:
            return


def main() -> None:
    """Load, isolate, serve."""
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=settings["control"])
    add_site_names()
    for name in settings["preload"]:
        importlib.import_module(name)
    load("codec")
    agent = load("agent")
    load("seccomp")
    isolation = load("isolation").Isolation(settings, control)
    facts = isolation.prepare()
    gc.collect()
    gc.freeze()  # forked processes then share these pages
    control.send(json.dumps(facts).encode())
    serve(control, agent, isolation)


if __name__ == "__main__":
    main()
