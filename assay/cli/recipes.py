"""`assay recipe`: chains of training stages and data transforms in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import TRAIN, Json, app, show
from assay.errors import INTERRUPTED
from assay.host.terminal import say, show_json, show_text

recipe = typer.Typer(
    no_args_is_help=True, help="Run a chain of stages, such as a published pipeline."
)
app.add_typer(recipe, name="recipe", rich_help_panel=TRAIN)

Name = Annotated[str, typer.Argument(help="Name from `assay recipe list`, or a TOML file.")]
Scale = Annotated[
    str | None, typer.Option(help="Scale of the recipe, such as small. Default: tiny.")
]


@recipe.command(name="list")
def list_recipes(as_json: Json = False) -> None:
    """List the built-in recipes with a short description."""
    from assay.recipes.file import built_in, read_recipe

    found = [read_recipe(path) for path in built_in().values()]
    if as_json:
        rows = [{"name": one.name, "about": one.about, "paper": one.paper} for one in found]
        show_json({"recipes": rows})
        return
    for one in found:
        show_text(f"{one.name:<18}{one.about}")


@recipe.command(name="show")
def show_recipe(name: Name) -> None:
    """Print a recipe's file, to read it or to modify a copy."""
    from assay.recipes.file import find_recipe, read_recipe

    path = find_recipe(name)
    # Reading validates the recipe file, so an invalid file is an error and is not printed.
    read_recipe(path)
    show_text(path.read_text(encoding="utf-8"), end="")


@recipe.command(name="run")
def run(
    name: Annotated[
        str | None, typer.Argument(help="Name from `assay recipe list`, or a TOML file.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STAGE.KEY=VALUE", help="Override a key. Repeatable."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Last stage to run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Directory of a recipe's run to resume.")
    ] = None,
    accept_changed_verifiers: Annotated[
        bool, typer.Option(help="Resume a stage although its reward changed. Recorded in its run.")
    ] = False,
    scale: Scale = None,
    directory: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option(help="Check every stage with available inputs, then stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a recipe's stages in order, or resume them (--resume)."""
    from assay.recipes import run as recipes

    how = {"overrides": overrides or [], "until": until, "resume": resume, "scale": scale}
    if dry_run:
        looks = recipes.dry_run(name, **how, directory=directory, quiet=as_json)
        for one in looks:
            show(one, as_json)
        return
    accept = accept_changed_verifiers
    shown = {"quiet": as_json, "say": say}
    result = recipes.run_recipe(
        name, **how, accept_changed_verifiers=accept, directory=directory, **shown
    )
    show(result, as_json)
    # Like any command, a recipe exits with 130 after Ctrl-C, so that a calling script also stops.
    if result.ended.startswith("interrupted"):
        raise typer.Exit(INTERRUPTED)
