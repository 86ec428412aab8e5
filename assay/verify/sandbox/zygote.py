"""The process that submissions are forked from: ``python -s -S -P zygote.py SETTINGS``.

The zygote is a fresh interpreter with one thread, started before any test exists. A forked process
can read the memory that it shares with the zygote, so the zygote must have no secrets. The zygote
imports modules that submissions commonly use, and then answers the worker over a socket.

The zygote sends two messages by itself:

- ``map`` asks the worker to map users into the zygote's namespace. The worker's reply to ``map``
  lists the users of the namespace.
- ``facts {...}`` tells the worker that the zygote is ready, with facts about the isolation.

The worker sends the other requests:

- ``fork`` with four descriptors (channel, stdin, stdout, stderr) forks a process. The reply is
  ``pid N`` with a pidfd of the process.
- ``execute`` with four descriptors forks a process that executes a command (`commands`).
- ``reap N`` waits for the process N. The reply to ``reap N`` is ``status S``, the wait status of
process N.
- The end of the socket's stream ends the zygote and all processes forked from the zygote.
"""

from __future__ import annotations

import builtins
import gc
import importlib.machinery
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

# Name of the package under which the zygote loads its sibling files.
PACKAGE = "inside"
SIBLINGS = ("values", "codec", "arrays", "kernel", "seccomp", "isolation", "agent", "commands")
# Modules that need shared libraries of the host, which are missing in the sandbox's root.
LIBRARIES = ("zlib", "_bz2", "_lzma", "_hashlib", "_sqlite3", "_uuid")
# Shared libraries of the host with which packages may be linked (PEP 600).
# The zygote loads these libraries before the new root hides their files.
HOST_LIBRARIES = """
    libm.so.6 libdl.so.2 librt.so.1 libutil.so.1 libpthread.so.0 libresolv.so.2 libgcc_s.so.1
    libstdc++.so.6 libz.so.1 libgomp.so.1
"""
# Submodules that are loaded with a package at start-up, because many programs use them.
COMMON = {
    "numpy": ("numpy.random", "numpy.linalg", "numpy.testing"),
    "scipy": ("scipy.special", "scipy.linalg", "scipy.optimize", "scipy.stats"),
}
# A forked process closes all descriptors from this number on.
FIRST_CLOSED = 4


def load(name: str) -> Any:
    """Import the sibling file ``name``, with a copy of the built-in names for this file alone."""
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
    """Add exit() and quit(), which scripts call and which the module `site` defines."""
    import site

    # The interpreter runs with -S, so the module `site` has not run.
    site.setquit()
    site.setcopyright()
    site.sethelper()


def add_packages(settings: dict[str, Any], modules: dict[str, Any], folder: str) -> None:
    """Import the packages that submissions may use, so that forked processes have them loaded.

    folder: folder that contains only the importable packages. The empty string means that the
        packages are in site-packages.
    """
    if folder:
        # The folder is appended to the path, because a package must not replace a standard module.
        sys.path.append(folder)
    else:
        sys.meta_path.append(Listed(settings["packages"], settings["entries"]))
    for name in settings["loaded"]:
        importlib.import_module(name)
        for each in COMMON.get(name, ()):
            importlib.import_module(each)
    arrays = modules["arrays"]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        modules["agent"].take_numpy(numpy, arrays.use_numpy(numpy))
    if "sympy" in sys.modules:
        arrays.use_sympy(sys.modules["sympy"])


class Listed:
    """Importer that finds only the listed packages, even if their folders contain other
    packages."""

    def __init__(self, names: list[str], entries: list[str]) -> None:
        self.names = frozenset(names)
        self.folders = sorted({os.path.dirname(entry) for entry in entries})

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a listed package's module, or None for any other module."""
        if path is not None or name not in self.names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, self.folders, target)


def load_host_libraries() -> None:
    import ctypes

    for name in HOST_LIBRARIES.split():
        # If a package needs a missing shared library, the package's import fails later with a clear
        # message.
        with suppress(OSError):
            ctypes.CDLL(name)


def child(
    channel: int, streams: list[int], agent: Any, isolation: Any, commands: Any = None
) -> None:
    """Turn the forked child into the process of one submission. Never returns.

    streams: descriptors of stdin, stdout and stderr.
    agent, commands: the modules. commands is None unless this process is to execute a command.
    """
    if commands is None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    confine = isolation.enter(commands is not None)
    for number, descriptor in enumerate([*streams, channel]):
        os.dup2(descriptor, number)
    os.closerange(FIRST_CLOSED, 1024)
    # Hide the sandbox's modules from a submission that looks through sys.modules by name.
    for name in (*(f"{PACKAGE}.{each}" for each in SIBLINGS), PACKAGE, "__main__"):
        del sys.modules[name]
    sys.argv[:] = ["main.py"]
    sys.orig_argv[:] = ["main.py"]
    (agent if commands is None else commands).main(confine)


def serve(control: socket.socket, agent: Any, isolation: Any, commands: Any) -> None:
    """Answer the worker until it closes the socket."""
    folders: dict[int, str] = {}
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 4)
        verb, _, number = request.decode().partition(" ")
        if verb in ("fork", "execute"):
            isolation.before_fork()
            pid = os.fork()
            if pid == 0:
                try:
                    executes = commands if verb == "execute" else None
                    child(descriptors[0], descriptors[1:], agent, isolation, executes)
                except BaseException as error:  # The forked interpreter can raise any exception.
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
        # Without isolation, no namespace removes processes and files at its end.
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
    # Sets of objects are iterated in an order that depends on the objects' memory addresses.
    # For equal results, the zygote starts again with fixed memory addresses.
    if modules["kernel"].same_addresses():
        os.execv(sys.executable, sys.orig_argv)
    isolation = modules["isolation"].Isolation(settings, ask)
    isolation.separate()
    # Ctrl-C in a terminal must not end the zygote before its worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    add_site_names()
    for name in settings["preload"]:
        importlib.import_module(name)
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    if settings["packages"]:
        load_host_libraries()
    facts = isolation.prepare()
    if settings["packages"]:
        add_packages(settings, modules, isolation.packages)
    isolation.measure()
    gc.collect()
    # The garbage collector does not write to frozen objects, so forks share their memory pages.
    gc.freeze()
    control.send(("facts " + json.dumps(facts)).encode())
    serve(control, modules["agent"], isolation, modules["commands"])


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # Third-party modules can raise any exception.
        # The worker reads the last line of the zygote's standard error.
        sys.exit(f"{type(error).__name__}: {error}")
