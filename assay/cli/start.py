"""The command `assay init`: write a first configuration for the user's rows and model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import BEGIN, Json, app, show
from assay.host.terminal import say


@app.command(rich_help_panel=BEGIN)
def init(
    kind: Annotated[str, typer.Argument(help="grpo, code, judge, dpo, sft or reward_model.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="Source of rows. Repeatable. Default: five example rows."),
    ] = None,
    heldout: Annotated[
        list[str] | None, typer.Option(help="Source of held-out rows. Repeatable.")
    ] = None,
    heldout_share: Annotated[
        float | None, typer.Option(help="Share of the rows to hold out instead, such as 0.1.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder, hub name or run. Default: a tiny new model.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="Verifier. Default: one that fits the rows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file. Default: KIND.toml.")] = None,
    overwrite: Annotated[
        bool,
        typer.Option(help="Overwrite a configuration and a tiny model made by init."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a commented configuration for your rows and model, and missing example files."""
    from assay.init import configuration as start

    result = start.init(
        kind,
        data=data or [],
        heldout=heldout or [],
        heldout_share=heldout_share,
        model=model,
        verifier=verifier,
        out=out,
        overwrite=overwrite,
        say=say,
    )
    show(result, as_json)
