"""Python that users name, as ``package.module:object``: imported in one way, whatever it does.

A module may raise, exit or hang: each is told in one line, and never ends the process unsaid.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

from assay.errors import AssayError, cause, message, nearest

IMPORT_SECONDS = 60.0
NOTICE_SECONDS = 10.0
OBJECT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
ACCEPTED = "package.module:object"
FAILURES = (Exception, SystemExit)
"""What foreign code may raise: its exit is its failure, and not the end of the command."""


def import_object(name: str, where: str, error: type[AssayError]) -> Any:
    """Return the object that ``package.module:object`` names; raises ``error`` in one line.

    where: of the name, as ``guard.rules my_rules:stop``. The working directory is searched last,
    while `python -m` searches it first: a file beside the configuration is found, and none can
    shadow an installed package.
    """
    if not OBJECT_NAME.fullmatch(name):
        raise error(message(where, repr(name), ACCEPTED))
    with deadline(IMPORT_SECONDS, f"importing {name.partition(':')[0]}"):
        return find_object(name, where, error)


def find_object(name: str, where: str, error: type[AssayError]) -> Any:
    """Do as `import_object`, in a process that somebody else watches."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            if not hasattr(found, part):
                meant = _did_you_mean(part, dir(found))
                raise error(message(where, f"no {part!r} in {module_name}", ACCEPTED, meant))
            found = getattr(found, part)
    except error:
        raise
    except FAILURES as failure:
        raise error(_complaint_of_import(where, module_name, failure)) from failure
    return found


def _complaint_of_import(where: str, module: str, failure: BaseException) -> str:
    """Say which module is missing, or at which of its lines it failed, and what to do."""
    missing = failure.name if isinstance(failure, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        meant = _did_you_mean(missing, (path.stem for path in Path().glob("*.py")))
        remedy = meant or f"start in the folder of {missing}.py, or install {missing}"
        return message(where, f"no module {missing!r}", ACCEPTED, remedy)
    line = line_of(failure, __file__)
    found = f"what cannot be imported ({cause(failure)}{line and f' in {line}'})"
    remedy = f"install {missing}, or leave out its import" if missing else "mend it"
    return message(where, found, "a module that can be imported", remedy)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = nearest(name, (one for one in known if not one.startswith("_")))
    return f"did you mean {near[0]}?" if near else ""


def line_of(error: BaseException, *ours: str) -> str:
    """Return ``file.py:12``: the line of the foreign file that raised, or led to what did.

    ours: files that are on the way and are not the foreign one. An empty string: it is not known.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    passed = (*ours, importlib.__file__)
    theirs = [one for one in frames if one[0] not in passed and "<frozen " not in one[0]]
    lines = [line for name, line in theirs if name == theirs[0][0]]
    return f"{Path(theirs[0][0]).name}:{lines[-1]}" if lines else ""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Raise TimeoutError inside once ``seconds`` are over, and say before that what is waited for.

    In the main thread, where Python delivers signals; in another one it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    started = time.monotonic()
    every = min(seconds, NOTICE_SECONDS)
    told = False

    def ring(number: int, frame: object) -> None:
        nonlocal told
        if time.monotonic() - started >= 0.99 * seconds:
            raise TimeoutError(f"not done after {seconds:g} s")
        if not told:
            told = True
            os.write(2, f"{what}: not done yet; given up after {seconds:g} s\n".encode())

    handler = signal.signal(signal.SIGALRM, ring)
    outer, interval = signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            left = max(0.001, outer - (time.monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, left, interval)
