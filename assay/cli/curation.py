"""The command `assay data`: one data transform per call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import CURATE, Json, app, show
from assay.errors import UserError
from assay.host.terminal import show_text


@app.command(rich_help_panel=CURATE)
def data(
    stage: Annotated[
        str | None, typer.Argument(help="Data transform to run. Default: list them.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Sources of rows, or folders that a data transform wrote."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the rows and the manifest.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, as k=2. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a data set: `assay data` lists the transforms, `assay data STAGE` their settings."""
    from assay.curation import base

    if stage is None:
        show_text(base.describe_stages())
        return
    if not inputs and not overrides and out is None:
        show_text(base.describe_settings(stage))
        return
    settings = base.settings_of(stage, inputs or [], overrides or [])
    if out is None:
        raise UserError(f"assay data {stage}: give --out, a new folder for the rows")
    show(base.run_stage(stage, settings, out), as_json)
