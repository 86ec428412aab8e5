"""Commands that look at a run, or at this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import BEGIN, READ, Json, app


@app.command(rich_help_panel=READ)
def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    as_json: Json = False,
) -> None:
    """Write report.html of a run: one self-contained page."""
    from assay.run.report import write_report

    path = write_report(run)
    print(json.dumps({"report": str(path)}) if as_json else path)


@app.command(rich_help_panel=BEGIN)
def doctor(as_json: Json = False) -> None:
    """Say what this machine can do, and whether the install is sound."""
    from assay import doctor as clinic

    raise typer.Exit(clinic.report(as_json=as_json))
