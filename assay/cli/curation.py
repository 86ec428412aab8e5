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
        str | None,
        typer.Argument(help="Data transform to run, or inspect. Default: list them."),
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
    heldout: Annotated[
        list[str] | None,
        typer.Option(help="For inspect: a source of held-out rows. Repeatable."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For inspect: the model whose tokenizer counts tokens.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a data set: `assay data` lists the transforms, `assay data STAGE` their settings.

    `assay data inspect SOURCE` describes rows without writing anything.
    """
    from assay.curation import base

    if stage == "inspect":
        _inspect(inputs or [], overrides or [], heldout or [], model, out, as_json)
        return
    if heldout or model:
        option = "--heldout" if heldout else "--model"
        raise UserError(f"assay data {stage or ''}: {option} is an option of `assay data inspect`")
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


def _inspect(
    inputs: list[str],
    overrides: list[str],
    heldout: list[str],
    model: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from assay.curation.base import described
    from assay.curation.inspection import InspectSettings, inspect_rows, settings_of

    if out is not None:
        raise UserError("assay data inspect: writes nothing; leave out --out")
    if not inputs and not overrides:
        show_text(described(InspectSettings))
        return
    given = {"inputs": inputs, "heldout": heldout, "model": model}
    settings = settings_of({key: value for key, value in given.items() if value}, overrides)
    show(inspect_rows(settings), as_json)
