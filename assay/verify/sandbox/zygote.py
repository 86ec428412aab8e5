"""The process that submissions are forked from: ``python -s -S -P zygote.py SETTINGS``.

A fresh interpreter with one thread, started before any test exists. A forked process can read its
parent's memory, so the zygote must hold nothing secret. It imports modules that submissions
commonly use and then answers the worker over a socket:

    "map" (its only question)             -> which users its namespace has
    "facts {...}"                         when it is ready
    b"fork" + 4 descriptors (channel, stdin, stdout, stderr) -> b"pid N", with a descriptor of it
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
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

# Package name of the sibling files.
PACKAGE = "inside"
SIBLINGS = ("values", "codec", "kernel", "seccomp", "isolation", "agent")
# These modules need shared libraries of the host, which are not visible later.
LIBRARIES = ("zlib", "_bz2", "_lzma", "_hashlib", "_sqlite3", "_uuid")
# Descriptors from this number on are closed in a forked process.
FIRST_CLOSED = 4


def load(name: str) -> Any:
    """Import the sibling file ``name`` with its own copy of the built-in names."""
    full = f"{PACKAGE}.{name}"
    spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__builtins__"] = dict(vars(builtins))
    sys.modules[full] = module
    setattr(sys.modules[PACKAGE], name, module)
    spec.loader.exec_module(module)
    return module


def add_site_names() -> None:
    """Add exit() and quit(), which scripts call and which the module site defines."""
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()


def child(channel: int, streams: list[int], agent: Any, isolation: Any) -> None:
    """Become the process of one submission. Never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    confine = isolation.enter()
    for number, descriptor in enumerate([*streams, channel]):
        os.dup2(descriptor, number)
    os.closerange(FIRST_CLOSED, 1024)
    for name in (*(f"{PACKAGE}.{each}" for each in SIBLINGS), PACKAGE, "__main__"):
        del sys.modules[name]
    sys.argv[:] = ["main.py"]
    sys.orig_argv[:] = ["main.py"]
    agent.main(confine)


def serve(control: socket.socket, agent: Any, isolation: Any) -> None:
    """Answer the worker until it closes the socket."""
    folders: dict[int, str] = {}
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 4)
        verb, _, number = request.decode().partition(" ")
        if verb == "fork":
            isolation.before_fork()
            pid = os.fork()
            if pid == 0:
                try:
                    child(descriptors[0], descriptors[1:], agent, isolation)
                except BaseException as error:  # SystemExit too, raised in the forked interpreter
                    os.write(descriptors[3], f"{type(error).__name__}: {error}".encode())
                finally:
                    os._exit(71)
            for descriptor in descriptors:
                os.close(descriptor)
            folders[pid] = isolation.folder
            handle = os.pidfd_open(pid)
            socket.send_fds(control, [f"pid {pid}".encode()], [handle])
            os.close(handle)
        elif verb == "reap":
            _, status = os.waitpid(int(number), 0)
            isolation.after_reap(folders.pop(int(number)))
            control.send(f"status {status}".encode())
        else:
            break
    for pid, folder in folders.items():
        # Without isolation, nothing else removes the folder.
        if folder:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            isolation.after_reap(folder)


def main() -> None:
    """Create the namespaces, import modules, isolate, and serve."""
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=settings["control"])

    def ask(question: str) -> str:
        control.send(question.encode())
        return control.recv(4096).decode()

    sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
    modules = {name: load(name) for name in SIBLINGS}
    # The iteration order of sets of objects depends on their addresses.
    if modules["kernel"].same_addresses():
        os.execv(sys.executable, sys.orig_argv)
    isolation = modules["isolation"].Isolation(settings, ask)
    isolation.separate()
    # The worker decides which users are mapped.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    add_site_names()
    for name in settings["preload"]:
        importlib.import_module(name)
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    facts = isolation.prepare()
    gc.collect()
    # Forked processes then share these pages.
    gc.freeze()
    control.send(("facts " + json.dumps(facts)).encode())
    serve(control, modules["agent"], isolation)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # a module to preload can be third-party code
        # The worker reads this message.
        sys.exit(f"{type(error).__name__}: {error}")
