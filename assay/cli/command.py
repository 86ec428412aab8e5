"""Run one command and return its exit code; print an error as one line."""

from __future__ import annotations

import errno
from typing import Any, cast

import typer

# isort: off
# These imports register the commands, in the order in which the help lists them.
from assay.cli import start, training, recipes, sweeps, curation, models, reading  # noqa: F401
from assay.cli import verifiers, serving, upkeep  # noqa: F401

# isort: on
from assay.cli.console import MOVED, app, leave_closed_pipe
from assay.errors import AssayError
from assay.host.terminal import lined, one_line, say

# Newer versions of typer contain a copy of click, whose UsageError is a different class.
_USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])
# Failures of the machine (full disk, I/O error, no memory) exit with 1: the input is not at fault.
_NOT_OF_THE_INPUT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE}


def run_command() -> int:
    """Run the command that the arguments name, and return its exit code."""
    try:
        # Typer's standalone mode is off, because it prints errors in boxes and ends the process
        # itself.
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except _USAGE_ERROR as error:
        return _complain_of_usage(error)
    except AssayError as error:
        # Only a configuration error can have several lines, because it may combine several errors.
        return _complain(lined(getattr(error, "lines", ()) or [str(error)]), error.exit_code)
    except typer.Abort:
        return _complain("a question was left without an answer", 2)
    except BrokenPipeError:
        leave_closed_pipe()
    except OSError as error:
        of_machine = error.errno in _NOT_OF_THE_INPUT
        if error.strerror is None or (error.filename is None and not of_machine):
            # An OSError without a file name is a defect of Assay, so its traceback is printed.
            raise
        where, reason = one_line(str(error.filename or "writing")), error.strerror
        return _complain(f"{where}: {reason[:1].lower()}{reason[1:]}", 1 if of_machine else 2)


def _complain(text: str, code: int) -> int:
    say(f"error: {text}")
    return code


def _complain_of_usage(error: Any) -> int:
    """Print one line about invalid command-line arguments. Without arguments, print the help."""
    # click 8.2 raises NoArgsIsHelpError for a group without arguments; its show() prints the help.
    if error.ctx is None or "NoArgs" in type(error).__name__:
        error.show()
        return error.exit_code
    where, text = error.ctx.command_path, error.format_message().rstrip(".")
    name = text.partition("'")[2].partition("'")[0]
    if text.startswith("No such command") and where == "assay" and name in MOVED:
        return _complain(f"assay {name}: the command is now `assay {MOVED[name]}`", 2)
    return _complain(f"{where}: {text}; see {where} --help", error.exit_code)
