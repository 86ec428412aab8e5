"""The typer application, and options and output functions that several commands share."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from assay import __version__
from assay.host import terminal

app = typer.Typer(
    name="assay",
    help="Train language models to reason from rewards that can be checked, and keep the evidence.",
    no_args_is_help=True,
    # `guarded_python` prints tracebacks, because typer does not escape control characters.
    pretty_exceptions_enable=False,
    # typer reads square brackets in a help text as markup, so help texts contain none.
    rich_markup_mode="rich",
)

# Panels of ``assay --help``: the commands and groups of each panel, in display order.
TASKS = BEGIN, TRAIN, CURATE, READ, JUDGE = (
    "Begin",
    "Train",
    "Make data sets",
    "Measure, inspect and release a model",
    "Judge completions",
)


def _group(name: str, task: str, help: str) -> typer.Typer:
    made = typer.Typer(no_args_is_help=True, help=help, rich_markup_mode="rich")
    app.add_typer(made, name=name, rich_help_panel=task)
    return made


run_commands = _group(
    "run",
    READ,
    "Runs: list, view, report, rollouts, behaviors, calibration, compare, replay, rollback, audit.",
)
model_commands = _group("model", READ, "Check a template; export, merge, route.")
verifier_commands = _group("verifier", JUDGE, "Verifiers: self-test, serve, drift.")

MOVED = {
    "runs": "run list",
    "compare-runs": "run compare",
    **{name: f"run {name}" for name in ("report", "rollouts", "replay", "rollback", "audit")},
    **{name: f"model {name}" for name in ("export", "merge", "route")},
    "serve-verifiers": "verifier serve",
    "drift": "verifier drift",
    "label-steps": "data label_steps",
}
"""Current command for each former name. A former name gets an error that names the current one."""


def _print_version(asked: bool) -> None:
    if asked:
        terminal.show_text(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def before_a_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
        # The option --version must work without a command, so it is evaluated eagerly.
    ] = False,
) -> None:
    """Declare the options that come before a command, such as ``--version``."""


Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of text.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: CUDA if any.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as rl.steps=20. Repeatable."),
]

VerifierOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME.KEY=VALUE", help="A verifier's option, as judge.url=... Repeatable."
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="MODULE", help="Python module that rows may use as verifier. Repeatable."
    ),
]
TrustRun = Annotated[
    bool,
    typer.Option("--trust-run", help="Import Python code that a run's configuration names."),
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox", help="Run programs without isolation if none is available."
    ),
]


def verifier_options(
    overrides: list[str] | None, unsafe_no_sandbox: bool
) -> dict[str, dict[str, Any]]:
    """Return the verifier options that ``--set NAME.KEY=VALUE`` sets."""
    from assay import config

    changes = [*(overrides or []), *(["code.unsafe_no_sandbox=true"] if unsafe_no_sandbox else [])]
    # `--set` values are parsed like a configuration file, so both give the same errors.
    tree = {"model": {"path": "none"}, "data": {"train": ["none"]}, "rl": {}}
    prefixed = [f"verification.options.{change}" for change in changes]
    return config.build(tree, prefixed).verification.options


def show(result: Any, as_json: bool) -> None:
    """Print a result as one line of JSON (its ``as_dict``), or as text with escaped control
    characters.
    """
    if as_json:
        terminal.show_json(result.as_dict())
    else:
        terminal.show_text(str(result))


def show_path(name: str, place: Any, as_json: bool) -> None:
    """Print the path of a written file, or one line of JSON with the path under ``name``."""
    if as_json:
        terminal.show_json({name: str(place)})
    else:
        terminal.show_text(terminal.one_line(str(place)))


def leave_closed_pipe() -> NoReturn:
    """Exit without an error if the reader of the output, such as ``head``, has closed the pipe."""
    # At exit, Python would flush standard output, which prints a second error for a closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
