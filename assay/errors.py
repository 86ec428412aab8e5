"""The tree of Assay's exceptions, with the exit code of each.

    AssayError                      exit 1
    |-- UserError                   exit 2  the input is wrong; the message says what to do
    |   |-- ConfigError (ValueError)        a configuration file or an override
    |   |-- DataError (ValueError)          a row, a file of rows, or two sets that overlap
    |   |-- ModelError (ValueError)         a model or tokenizer that cannot be loaded or used
    |   |-- RunError (ValueError)           a run directory that cannot be created, resumed or read
    |   |-- VerifierError (ValueError)      a verifier expression, a spec, or a verifier that fails
    |   `-- MissingExtra (ImportError)      an optional package; the message says how to install it
    |-- OutOfMemory (MemoryError)   exit 1  the message names the setting to lower
    |-- DiskFull (OSError)          exit 1  the last checkpoint is still usable
    |-- WorkerDied (RuntimeError)   exit 1  a worker process that could not be restarted
    `-- RunStopped (RuntimeError)   exit 1  a guard stopped the run; everything so far is saved

A message has one form: ``where: found X; accepted: Y; do Z``. `message` builds it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended: 128 + SIGINT, as in shells."""
FAILURES = (Exception, SystemExit)
"""Exceptions that user code may raise. Its SystemExit is a failure and must not end the command."""
_OBJECT = "package.module:object"


class AssayError(Exception):
    """Base of every error that Assay raises on purpose."""

    exit_code = 1

    # IPython calls a method with this name, if it exists, to format an uncaught exception.
    def _render_traceback_(self) -> list[str]:
        """Return the traceback that a notebook shows: only the message."""
        return [f"{type(self).__name__}: {self}"]


class UserError(AssayError):
    """The user's input is wrong."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """Raised for a wrong configuration file, or a wrong override of one of its keys."""

    lines: tuple[str, ...] = ()
    """One message per line, if there are several."""

    @classmethod
    def of(cls, complaints: Sequence[str]) -> ConfigError:
        """Create one error from several messages, each on its own line."""
        # Line breaks are escaped: a break in a quoted value would look like a second message.
        lines = tuple(line.replace("\n", r"\n") for line in complaints)
        error = cls("\n".join(lines))
        error.lines = lines
        return error


class DataError(UserError, ValueError):
    """Raised for a wrong row, file of rows or pair of sets."""


class ModelError(UserError, ValueError):
    """Raised if a model or tokenizer cannot be loaded, or does not support the requested use."""


class RunError(UserError, ValueError):
    """Raised if a run directory cannot be created, resumed or read."""


class VerifierError(UserError, ValueError):
    """Raised for a wrong verifier expression or spec, and if a verifier fails on every
    completion."""


class MissingExtra(UserError, ImportError):
    """Raised if a required optional package is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtra:
        """Create the error, which names the install command of ``extra``."""
        return cls(f'{purpose} needs {package}: install it with  pip install "assay-rl[{extra}]"')


class OutOfMemory(AssayError, MemoryError):
    """Raised if memory runs out. The error message names the setting to lower."""


class DiskFull(AssayError, OSError):
    """Raised if the disk is full. After a full disk, the last checkpoint is still usable."""


class WorkerDied(AssayError, RuntimeError):
    """Raised if a worker process died and could not be restarted."""


class RunStopped(AssayError, RuntimeError):
    """Raised if a guard stopped the run. Everything so far is saved."""


def message(where: str, found: object, accepted: str, remedy: str = "") -> str:
    """Format an error about user input as one line."""
    text = f"{where}: found {found}; accepted: {accepted}"
    text = f"{text}; {remedy}" if remedy else text
    # File names and texts of rows may contain line breaks, which would split the message.
    # Command-line bytes that are not UTF-8 are surrogates in Python, which cannot be encoded.
    return text.replace("\n", r"\n").encode(errors="backslashreplace").decode()


def cause(error: BaseException) -> str:
    """Format an error as its type and first line, for use inside another message."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # The `__str__` of a foreign exception may raise, too.
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def nearest(found: str, known: Iterable[str], cutoff: float = 0.6, most: int = 1) -> list[str]:
    """Return up to ``most`` known names that resemble ``found``, nearest first; [] if there are
    none.

    Names are ranked by the number of edits, then by the difference in length, so ``gpro`` suggests
    ``grpo`` and not ``gspo``. Case is ignored.
    """
    names, lower = list(known), found.lower()
    # difflib only preselects names, because it rates grpo and gspo as equally similar to gpro.
    near = difflib.get_close_matches(lower, [name.lower() for name in names], 8, cutoff)
    found_near = [name for name in dict.fromkeys(names) if name.lower() in near]

    def distance(name: str) -> tuple[int, bool]:
        return edits(lower, name.lower()), len(name) != len(found)

    return sorted(found_near, key=distance)[:most]


def did_you_mean(found: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``did you mean grpo?``, or an empty string if no known name is near."""
    return "".join(f"did you mean {name}?" for name in nearest(found, known, cutoff))


def slip_of(key: str, known: Iterable[str]) -> str:
    """Return the known name that ``key`` misspells, or "" if no name is near enough.

    A misspelling may differ from the known name by one edit per six letters.
    """
    near = nearest(key, known, 0.7)
    return near[0] if near and edits(key.lower(), near[0].lower()) <= len(near[0]) // 6 else ""


def edits(one: str, other: str) -> int:
    """Return the edit distance: insertions, deletions, substitutions and swaps of neighbors."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != wanted)))
            # Two swapped letters are the commonest typo, so a swap costs one edit and not two.
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def find_object(name: str, where: str, error: type[AssayError]) -> Any:
    """Import the object named ``package.module:object``; raise ``error`` if the import fails.

    where: location of the name, for the message.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # The working directory goes to the end of ``sys.path``,
        # so that no file in it hides a library.
        sys.path.append(here)
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            if not hasattr(found, part):
                meant = did_you_mean(part, _public(dir(found)))
                raise error(message(where, f"no {part!r} in {module_name}", _OBJECT, meant))
            found = getattr(found, part)
    # Errors raised by this function are complete; only failures of the user's module are described.
    except error:
        raise
    except FAILURES as failure:
        raise error(_complaint_of_import(where, module_name, failure)) from failure
    return found


def _complaint_of_import(where: str, module: str, failure: BaseException) -> str:
    """Describe a failed import: the missing module or the failing line, and a remedy."""
    missing = failure.name if isinstance(failure, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        meant = did_you_mean(missing, _public(path.stem for path in Path().glob("*.py")))
        remedy = meant or f"start in the folder of {missing}.py, or install {missing}"
        return message(where, f"no module {missing!r}", _OBJECT, remedy)
    line = line_of(failure, __file__)
    found = f"an import that fails ({cause(failure)}{line and f' in {line}'})"
    remedy = f"install {missing}, or remove its import" if missing else "fix it"
    return message(where, found, "a module that can be imported", remedy)


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def line_of(error: BaseException, *ours: str) -> str:
    """Return ``file.py:12``: the file and line of foreign code where an error was raised.

    ours: files to skip. Frames in Assay's own files are skipped, unless the traceback has no other
    file. Returns an empty string if the line of the error is unknown.
    """
    from traceback import walk_tb

    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    passed = (*ours, importlib.__file__)
    package = f"{Path(__file__).parent}{os.sep}"
    # Frames of Python's import system ("<frozen ...>") are skipped: they show no line of the user.
    theirs = [one for one in frames if one[0] not in passed and "<frozen " not in one[0]]
    theirs = [one for one in theirs if not one[0].startswith(package)] or theirs
    lines = [line for name, line in theirs if name == theirs[0][0]]
    return f"{Path(theirs[0][0]).name}:{lines[-1]}" if lines else ""
