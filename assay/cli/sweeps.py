"""`assay sweep` and `assay ablate`: experiments with several arms and seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import TRAIN, Json, Overrides, TrustRun, app, show
from assay.errors import INTERRUPTED, UserError, message
from assay.host.terminal import say

COMMAND = (sys.executable, "-P", "-m", "assay.cli")
"""Command of a run. With -P, modules in the working directory cannot shadow installed packages."""

Directory = Annotated[Path, typer.Option(help="Folder for sweeps.")]
Parallel = Annotated[int, typer.Option(min=1, max=1024, help="Number of runs at a time.")]
OtherSeeds = Annotated[
    bool, typer.Option("--other-seeds", help="Also repeat the sweep with other seeds.")
]
Ladder = Annotated[
    bool,
    typer.Option("--ladder", help="Arms are model sizes: fit accuracy against compute."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check every arm and plan the time, then stop.")
]


@app.command(rich_help_panel=TRAIN)
def sweep(
    file: Annotated[Path, typer.Argument(help="TOML file of the sweep (docs/sweeps.md).")],
    parallel: Parallel = 1,
    other_seeds: OtherSeeds = False,
    ladder: Ladder = False,
    directory: Directory = Path("sweeps"),
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train every arm of FILE with every seed, and compare the arms; the same command resumes."""
    if ladder:
        if other_seeds:
            where, accepted = "--other-seeds", "no --ladder: give the seeds in the file"
            raise UserError(message(where, "--ladder", accepted))
        _ladder(file, parallel, directory, dry_run, as_json)
        return
    _sweep(file, parallel, other_seeds, directory, dry_run, as_json)


@app.command(rich_help_panel=TRAIN)
def ablate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    terms: Annotated[bool, typer.Option("--terms", help="Switch off each reward term.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds.")] = 8,
    overrides: Overrides = None,
    report: Annotated[
        list[str] | None, typer.Option(help="Source of report problems. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The sweep file. Default: ablate_RUN.toml.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the file.")] = False,
    trust_run: TrustRun = False,
    parallel: Parallel = 1,
    other_seeds: OtherSeeds = False,
    directory: Directory = Path("sweeps"),
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Write and run a sweep that retrains RUN without each term of its reward."""
    if not terms:
        raise UserError(message("assay ablate", "nothing to switch off", "--terms"))
    from assay.sweep.ablate import write_ablation

    file = write_ablation(
        run,
        num_seeds=seeds,
        overrides=overrides or [],
        report=report or [],
        out=out,
        overwrite=overwrite,
        trust_run=trust_run,
    )
    say(f"wrote {file}; continue with: assay sweep {file}")
    _sweep(file, parallel, other_seeds, directory, dry_run, as_json)


def _ladder(file: Path, parallel: int, directory: Path, dry_run: bool, as_json: bool) -> None:
    from assay.sweep.ladder import check_ladder, run_ladder

    if dry_run:
        check_ladder(file)
        _sweep(file, parallel, False, directory, True, as_json)
        return
    from assay.sweep.run import Interrupted, Runner

    try:
        result = run_ladder(file, Runner(COMMAND, parallel, say), directory=directory)
    except Interrupted:
        say(f"interrupted; continue with: assay sweep {file} --ladder")
        raise typer.Exit(INTERRUPTED) from None
    show(result, as_json)


def _sweep(
    file: Path, parallel: int, other_seeds: bool, directory: Path, dry_run: bool, as_json: bool
) -> None:
    if dry_run:
        from assay.sweep.plan import plan_sweep

        show(plan_sweep(file, parallel, other_seeds), as_json)
        return
    from assay.sweep.run import Interrupted, Runner, run_sweep

    runner = Runner(COMMAND, parallel, say)
    try:
        result = run_sweep(file, runner, directory=directory, other_seeds=other_seeds)
    except Interrupted:
        say(f"interrupted; continue with: assay sweep {file}")
        raise typer.Exit(INTERRUPTED) from None
    show(result, as_json)
    if not result.is_complete:
        raise typer.Exit(1)
