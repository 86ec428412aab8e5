"""Commands that look at a run, or at this machine."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import BEGIN, READ, TRAIN, Json, app, show


@app.command(rich_help_panel=READ)
def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    as_json: Json = False,
) -> None:
    """Write report.html of a run: one self-contained page."""
    from assay.run.report import write_report

    path = write_report(run)
    print(json.dumps({"report": str(path)}) if as_json else path)


@app.command(rich_help_panel=TRAIN)
def rollback(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    to: Annotated[int, typer.Option(min=1, help="Step of a checkpoint.")],
    why: Annotated[str, typer.Option(help="The reason; it is written down.")] = "",
    by: Annotated[str | None, typer.Option(help="Who. Default: the user's name here.")] = None,
    as_json: Json = False,
) -> None:
    """Go back to an earlier checkpoint of a run; what came after it is set aside, not removed."""
    from assay.run.rollback import roll_back

    show(roll_back(run, to, who=by or getpass.getuser(), why=why), as_json)


@app.command(rich_help_panel=BEGIN)
def doctor(as_json: Json = False) -> None:
    """Say what this machine can do, and whether the install is sound."""
    from assay import doctor as clinic

    raise typer.Exit(clinic.report(as_json=as_json))
