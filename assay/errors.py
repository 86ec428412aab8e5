"""Every error that Assay raises on purpose, and the exit code that each one ends a command with.

    AssayError                      exit 1
    |-- UserError                   exit 2  the input is wrong; the message says what to do
    |   |-- ConfigError (ValueError)        a configuration file or an override
    |   |-- DataError (ValueError)          a row, a file of rows, or two sets that overlap
    |   |-- ModelError (ValueError)         a model or tokenizer that cannot be used as asked
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

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C or SIGTERM ended, as shells have it: 128 + SIGINT."""


class AssayError(Exception):
    """Base of every error that Assay raises on purpose."""

    exit_code = 1


class UserError(AssayError):
    """The user's input is wrong."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A configuration file, or an override of one of its keys, is wrong."""


class DataError(UserError, ValueError):
    """A row, a file of rows or a pair of sets is wrong."""


class ModelError(UserError, ValueError):
    """A model or tokenizer cannot be loaded, or cannot be used as asked."""


class RunError(UserError, ValueError):
    """A run directory cannot be created, resumed or read."""


class VerifierError(UserError, ValueError):
    """A verifier expression or a problem's spec is wrong, or a verifier fails on everything."""


class MissingExtra(UserError, ImportError):
    """An optional package is needed and absent."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtra:
        """Return the error that names the install command of ``extra``."""
        return cls(f'{purpose} needs {package}: install it with  pip install "assay-rl[{extra}]"')


class OutOfMemory(AssayError, MemoryError):
    """Memory ran out; the message names the setting to lower."""


class DiskFull(AssayError, OSError):
    """The disk is full; the last checkpoint is still usable."""


class WorkerDied(AssayError, RuntimeError):
    """A worker process died and could not be restarted."""


class RunStopped(AssayError, RuntimeError):
    """A guard stopped the run; everything so far is saved."""


def message(where: str, found: object, accepted: str, remedy: str = "") -> str:
    """Return the one-line form of a complaint about user input."""
    text = f"{where}: found {found}; accepted: {accepted}"
    return f"{text}; {remedy}" if remedy else text


def cause(error: BaseException) -> str:
    """Return an error's type and the first line of its text, to stand inside another message."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # the methods of a foreign error may raise
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
