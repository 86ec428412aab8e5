"""Commands that read run directories: rollouts, lists of runs, comparisons of runs."""

from __future__ import annotations

import getpass
import os
import pydoc
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.console import (
    Json,
    run_commands,
    show,
)
from assay.errors import UserError, message
from assay.host.terminal import escaped, say


@run_commands.command()
def rollouts(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    count: Annotated[int, typer.Argument(min=1, help="Number of rollouts to show.")] = 5,
    worst: Annotated[bool, typer.Option("--worst", help="Lowest rewards first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Highest rewards first.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed rollouts.")] = False,
    not_judged: Annotated[
        bool, typer.Option("--not-judged", help="Only rollouts that were not judged.")
    ] = False,
    longest: Annotated[bool, typer.Option("--longest", help="Longest first.")] = False,
    flipped: Annotated[
        bool,
        typer.Option("--flipped", help="Problems with the largest change of pass rate."),
    ] = False,
    step: Annotated[int | None, typer.Option(help="Only this step. Default: all.")] = None,
    problem: Annotated[str | None, typer.Option(help="Only this problem, by id.")] = None,
    terms: Annotated[
        bool, typer.Option("--terms", help="Contribution of each reward term to the advantages.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print rollouts of a run: prompts, completions and verdicts. Default: the newest five."""
    from assay.report.loaded import load_run
    from assay.report.rollouts import read_rollouts

    asked = {
        "worst": worst,
        "best": best,
        "failed": failed,
        "not_judged": not_judged,
        "longest": longest,
        "flipped": flipped,
        "terms": terms,
    }
    kinds = [name for name, is_asked in asked.items() if is_asked]
    if len(kinds) > 1:
        found = " and ".join(f"--{name.replace('_', '-')}" for name in kinds)
        raise UserError(message("assay run rollouts", found, "at most one of them"))
    if terms:
        from assay.evaluation.reward_terms import term_table

        show_paged(term_table(run, step), as_json)
        return
    kind: Any = kinds[0] if kinds else None
    show_paged(read_rollouts(load_run(run), kind, count, step, problem), as_json)


@run_commands.command(name="list")
def runs(
    asked: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD|KEY=VALUE]...", help="As: demo rl.steps=60 state=finished"),
    ] = None,
    directory: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    side_by_side: Annotated[
        bool, typer.Option("--compare", help="Compare the listed runs, like assay run compare.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List runs, or search them by words or settings. Shows each run's state, steps, best accuracy
    and cost."""
    from assay.report.listing import list_runs

    listed = list_runs(directory, asked or [])
    if side_by_side:
        compare([one.path for one in listed.runs], as_json=as_json)
    else:
        show_paged(listed, as_json)


@run_commands.command()
def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS]...", help="Run directories, or folders of runs."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port. 0: any free port.")] = 0,
    guide: Annotated[
        Path | None, typer.Option(help="Let a person label completions by this written guide.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Name of the person. Default: the user name.")
    ] = None,
    overlap: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the items that everyone labels.")
    ] = 0.2,
    adjudicate: Annotated[
        bool, typer.Option("--adjudicate", help="Decide the disagreements of other people.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of the items and their order.")] = 0,
) -> None:
    """Read runs in a browser: curves, rollouts, tokens. Only browsers on this machine can open the
    page."""
    from assay.report.viewer.labelling import Labelling
    from assay.report.viewer.view_server import serve_view

    labelling = None
    if guide is not None:
        labelling = Labelling(guide, _user() if by is None else by, overlap, seed, adjudicate)
    elif by is not None or adjudicate:
        option = "--by" if by is not None else "--adjudicate"
        raise UserError(f"assay run view: found {option} without --guide; accepted: --guide FILE")
    serve_view(runs or [Path("runs")], port, labelling)


@run_commands.command()
def watch(run: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Follow a run in the terminal until it ends. The run is not disturbed."""
    from assay.report.viewer.watch import watch as follow

    # Ctrl-C is the usual end of this command, and the run continues.
    with suppress(KeyboardInterrupt):
        say(f"{run}: {follow(run)}")


@run_commands.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="A B [C]...", help="RUN, RUN@best, or RUN@STEP.")
    ],
    flips: Annotated[
        int, typer.Option(min=0, help="Number of changed held-out problems to show.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Compare the records of runs: settings, curves, speed. Unlike assay compare, this command runs
    no model."""
    from assay.report.compare_runs import compare_runs
    from assay.report.loaded import load_run_at

    show_paged(compare_runs([*map(load_run_at, runs)], flips), as_json)


def _user() -> str:
    """Return the name of the user of this process. Raises UserError."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        # A container may run under a number without a name.
        found = "a user without a name"
        raise UserError(message("assay run view --by", found, "--by NAME")) from error


def show_paged(result: Any, as_json: bool) -> None:
    """Print a result. Text that is longer than the terminal is shown by ``PAGER``, or by
    ``less``."""
    # If the output goes to a pipe or a file, a pager would wait for keys that nobody presses.
    if as_json or not sys.stdout.isatty():
        show(result, as_json)
        return
    # The option -F ends less at once if the text fits the screen, and -R keeps colors.
    # With the option -X, the text stays on the screen after less ends.
    os.environ.setdefault("LESS", "-FRX")
    pydoc.pager(escaped(str(result)))
