"""Commands for finished and running runs, and for this machine."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import (
    BEGIN,
    Allow,
    Json,
    TrustRun,
    VerifierOptions,
    app,
    run_commands,
    show,
    show_path,
    verifier_options,
)
from assay.errors import UserError
from assay.host.terminal import escaped, say, say_progress


@run_commands.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    as_json: Json = False,
) -> None:
    """Write report.html and decision_record.md of a run."""
    from assay.report.decision_record import write_record
    from assay.report.report import write_report

    path = write_report(run)
    write_record(run)
    show_path("report", path, as_json)


@run_commands.command()
def rollback(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    to: Annotated[int, typer.Option(min=1, help="Step of the checkpoint.")],
    why: Annotated[str, typer.Option(help="The reason, which is recorded.")] = "",
    by: Annotated[
        str | None, typer.Option(help="Name of the person. Default: the user name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Return to an earlier checkpoint of a run.

    Data after the checkpoint is set aside, not deleted.
    """
    from assay.run.rollback import roll_back

    show(roll_back(run, to, who=by or getpass.getuser(), why=why), as_json)


@run_commands.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    step: Annotated[int, typer.Option(min=1, help="A finished step.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="model.trust_remote_code=true, alone."),
    ] = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    as_json: Json = False,
) -> None:
    """Judge and train a recorded step again from the rollout log.

    Exit with code 1 if the replayed step differs from the recorded step.
    """
    from assay.evaluation.replay import replay as take_again

    trust = {"overrides": overrides or [], "allow": allow or [], "trust_run": trust_run}
    result = take_again(run, step, **trust)
    show(result, as_json)
    if not result.agrees:
        raise typer.Exit(1)


@run_commands.command()
def audit(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    second: Annotated[
        str | None,
        typer.Option(metavar="VERIFIER", help="Second verifier. Disagreements enter the queue."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="VERIFIER", help="Verifier of the steps of passed completions."),
    ] = None,
    monitor: Annotated[
        bool, typer.Option("--monitor", help="Passed completions with a finding in the trace.")
    ] = False,
    label: Annotated[
        bool, typer.Option("--label", help="Show the queue and enter labels.")
    ] = False,
    count: Annotated[int, typer.Option(min=2, help="Maximum number of new rows.")] = 50,
    among: Annotated[
        int, typer.Option(min=1, help="Approximate number of completions to judge.")
    ] = 2000,
    at: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Training step for --steps. Default: first, middle, last."),
    ] = None,
    passes: Annotated[
        int, typer.Option(min=1, help="Passed completions per training step, for --steps.")
    ] = 50,
    below: Annotated[float, typer.Option(help="Lower limit of the score of a correct step.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    by: Annotated[
        str | None, typer.Option(help="Name of the person. Default: the user name.")
    ] = None,
    overrides: VerifierOptions = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    as_json: Json = False,
) -> None:
    """Collect human labels of completions on which a second verifier disagrees.

    The labelled rows of a run form a set for `assay verifier self-test --labelled`.
    """
    from assay.evaluation import audit as of_audit

    if at and steps is None:
        raise UserError("assay run audit --at: found no --steps; accepted: with --steps VERIFIER")
    if label and (second is not None or steps is not None or monitor):
        raise UserError("assay run audit: give --second, --steps and --monitor, or --label")
    if label:
        # The prompt for a label is on standard error: --json writes to standard output.
        ask = lambda text: str(typer.prompt(escaped(text), err=True))  # noqa: E731
        show(of_audit.label(run, ask, say, by or getpass.getuser()), as_json)
        return
    trust = {"allow": allow or [], "trust_run": trust_run}
    options = verifier_options(overrides, False)
    sizes = {"count": count, "among": among, "seed": seed}
    sizes |= {"at": at or [], "passes": passes, "below": below}
    show(
        of_audit.audit(
            run, second, steps=steps, monitor=monitor, **sizes, options=options, **trust
        ),
        as_json,
    )


@run_commands.command()
def behaviors(
    run: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="Run, or rows of completions.")],
    among: Annotated[
        int, typer.Option(min=1, help="Approximate number of completions to read.")
    ] = 5000,
    seed: Annotated[int, typer.Option(help="Random seed of the draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure behaviors such as self-verification and backtracking, with their uncertainty."""
    from assay.evaluation.behavior_rates import behavior_rates

    # A progress line overwrites itself with carriage returns, which make one long line in a log.
    how_far = say_progress if sys.stderr.isatty() else None
    show(behavior_rates(run, among=among, seed=seed, say=how_far), as_json)


@run_commands.command()
def calibration(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    among: Annotated[
        int, typer.Option(min=1, help="Approximate number of completions to read.")
    ] = 5000,
    seed: Annotated[int, typer.Option(help="Random seed of the draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Compare confidence with correctness, and measure diversity: pass@k, distinct answers."""
    from assay.evaluation.answer_confidence import calibration as calibrate_run

    show(calibrate_run(run, among=among, seed=seed), as_json)


@app.command(rich_help_panel=BEGIN)
def doctor(as_json: Json = False) -> None:
    """Check the machine and the installation."""
    from assay import doctor as clinic

    # The exit code is 1 if a required component is broken, so that scripts can depend on it.
    raise typer.Exit(clinic.report(as_json=as_json))
