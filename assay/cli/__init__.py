"""The command line: parse, one call, exit code. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

import typer

# isort: off
# Imported for the commands that they add, in the order of the help.
from assay.cli import training, models, verifiers, upkeep  # noqa: F401

# isort: on
from assay.cli.console import INTERRUPTED, app, leave_closed_pipe
from assay.errors import AssayError

# click's UsageError, wherever this typer has its click
_USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])


def main() -> None:
    """Run the command line; an Assay error is one line and its exit code, never a traceback.

    A user's ``my_rewards:reward`` is found in the working directory, after everything installed.
    """
    # Idle tensor threads spin for some microseconds, then sleep. OpenMP reads it once, when torch is
    # first imported. By default they spin for long, which makes steps several times slower on a
    # machine that does anything else at the same time; never to spin is slower on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except _USAGE_ERROR as error:
        sys.exit(_complain_of_usage(error))
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        leave_closed_pipe()


def _complain_of_usage(error: Any) -> int:
    """Say in one line what is wrong with the arguments; without any, show the help."""
    if error.ctx is None or "NoArgs" in type(error).__name__:
        error.show()
    else:
        where, text = error.ctx.command_path, error.format_message().rstrip(".")
        print(f"error: {where}: {text}; see {where} --help", file=sys.stderr)
    return error.exit_code
