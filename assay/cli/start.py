"""The first command of a newcomer: what a run needs, written for the rows and the model at hand."""

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
        list[str] | None, typer.Option(help="Source of rows. Repeatable. Default: five are made.")
    ] = None,
    heldout: Annotated[
        list[str] | None, typer.Option(help="Source of rows to measure on. Repeatable.")
    ] = None,
    heldout_share: Annotated[
        float | None, typer.Option(help="Share of the rows to hold out instead, as 0.1.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder, hub name or run. Default: a tiny one is made.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="What judges. Default: what fits the rows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file. Default: KIND.toml.")] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            help="Also over a configuration that is there, and a tiny model that init made."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a commented configuration for the rows and the model at hand, and what it lacks."""
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
