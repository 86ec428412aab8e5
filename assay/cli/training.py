"""Commands that train, and commands that plan a training run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import BEGIN, TRAIN, Json, Overrides, TrustRun, app, show
from assay.errors import INTERRUPTED, UserError, VerifierError, message
from assay.host.terminal import say
from assay.scale.launched import launch


@app.command(rich_help_panel=TRAIN)
def train(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file (docs/configuration.md).")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory to resume.")] = None,
    accept_changed_verifiers: Annotated[
        bool, typer.Option(help="Resume although the reward changed. Recorded in the run.")
    ] = False,
    trust_run: TrustRun = False,
    approved_by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Approver, required to resume after a severe stop."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Show one prompt, completion, verdict and the plan, then stop.")
    ] = False,
    max_minutes: Annotated[
        float | None,
        typer.Option(help="Stop after this many minutes, with a checkpoint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model as configured in CONFIG, or resume a run (--resume)."""
    # Of the processes that torchrun starts, only rank 0 runs the block and prints.
    with _leading():
        if (config is None) == (resume is None):
            raise UserError("assay train: give a CONFIG file, or --resume RUN, and not both")
        changes = list(overrides or [])
        if max_minutes is not None:
            changes.append(f"run.max_minutes={max_minutes}")
        if dry_run and config is None:
            raise UserError("assay train --dry-run: needs a CONFIG file")
        if config is not None:
            from assay.config import load

            # The configuration is checked before torch is imported, because the import takes
            # seconds.
            load(config, changes)
        from assay.training import api

        if dry_run:
            assert config is not None
            looked = api.dry_run(config, overrides=changes, quiet=as_json)
            show(looked, as_json)
            # The preview precedes the error, because its completion shows why the verifier failed.
            if looked.complaint:
                raise VerifierError(looked.complaint)
            return
        result = api.train(
            config,
            overrides=changes,
            resume=resume,
            accept_changed_verifiers=accept_changed_verifiers,
            trust_run=trust_run,
            approved_by=approved_by,
            quiet=as_json,
        )
        show(result, as_json)
        if result.ended == "interrupted":
            raise typer.Exit(INTERRUPTED)


def _leading() -> AbstractContextManager[None]:
    """Return the context in which processes that were started together work for rank 0."""
    # Importing `launched_ranks` loads torch, which takes seconds.
    # Only torchrun's processes import it here,
    # so that other commands check their configuration first.
    if launch() is None:
        return nullcontext()
    from assay.scale.launched_ranks import leading

    return leading()


@app.command(rich_help_panel=BEGIN)
def demo(
    directory: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Run the R1 recipe in miniature on a CPU: create, cold-start, train and evaluate a model."""
    from assay.recipes.demo import demo as run_demo

    show(run_demo(directory, seed=seed, quiet=as_json), as_json)


@app.command(rich_help_panel=TRAIN)
def plan(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file. Without it, facts are asked for.")
    ] = None,
    facts: Annotated[
        list[str] | None,
        typer.Option("--fact", metavar="NAME=VALUE", help="A fact, as reward=answer. Repeatable."),
    ] = None,
    measure: Annotated[
        int | None, typer.Option(min=0, help="Problems for a measurement. 0: none. Default: a few.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Decision file. Default: decision.md next to CONFIG.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option(help="Overwrite a file that assay plan did not write.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Estimate memory, seconds and settings on a GPU such as H100 or RTX4090, without"
            " the GPU and without weights. Nothing is measured or written.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERxGPU",
            help="Simulate a run on several GPUs, as 64xH100: placement, seconds, cost. --out is"
            " then the figure. Default: devices.svg next to CONFIG.",
        ),
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option(help="With --devices: a short run, for its lengths.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --device(s) and without CONFIG: the model to train.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --device(s): tokens of a prompt. Default: 512.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="With --device(s): price of a GPU for one hour.")
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Recommend a training method with reasons, a pilot, memory and time, without training."""
    unused = {"--fact": facts, "--measure": measure}
    if devices is not None:
        about = config, model, overrides or [], {**unused, "--device": device}
        show(_plan_on_devices(devices, pilot, prompt_tokens, price, out, overwrite, about), as_json)
        return
    if device is not None:
        unused |= {"--out": out, "--overwrite": overwrite, "--pilot": pilot}
        show(_plan_on(device, config, model, prompt_tokens, price, overrides, unused), as_json)
        return
    # An option without effect is an error: the user would think that the plan uses the option.
    only = {"--model": model, "--prompt-tokens": prompt_tokens, "--price": price, "--pilot": pilot}
    for option, value in only.items():
        if value is not None:
            raise UserError(message(option, "no --device", "a GPU to estimate, as --device H100"))
    from assay.plan.measured import plan as start

    result = start.plan(
        config,
        overrides=overrides or [],
        given=facts or [],
        num_problems=measure,
        out=out,
        overwrite=overwrite,
        ask=typer.prompt,
        say=say,
    )
    show(result, as_json)


def _plan_on(
    device: str,
    path: Path | None,
    model: str | None,
    prompt_tokens: int | None,
    price: float | None,
    overrides: list[str] | None,
    unused: dict[str, object],
) -> object:
    """Estimate a run on a named GPU. unused: options of `plan` that are not supported together with
    `--device`.
    """
    from assay import config as configuration
    from assay.plan.devices import default_config, find_gpu

    gpu = find_gpu(device)
    _check_estimate("--device", path, model, unused)
    # The module below is imported after the checks, because it imports torch, which takes seconds.
    from assay.plan.measured.on_device import PROMPT_TOKENS, plan_on

    if path is None:
        settings = default_config(str(model), overrides or [])
    else:
        settings = configuration.load(path, overrides or [])
    with configuration.naming_lines(path, overrides or []):
        return plan_on(gpu, settings, prompt_tokens or PROMPT_TOKENS, price)


def _check_estimate(
    option: str, path: Path | None, model: str | None, unused: dict[str, object]
) -> None:
    """Raise UserError for options that an estimate does not support, or without a model."""
    for other, value in unused.items():
        # Compared by identity, because --measure 0 is given and 0 == False.
        if value is not None and value is not False:
            found, accepted = f"given with {option}", "no option that measures or writes"
            raise UserError(message(other, found, accepted, "leave one of the two out"))
    if (path is None) == (model is None):
        found = "both" if path else "neither"
        raise UserError(message(f"assay plan {option}", found, "a CONFIG file or --model NAME"))


def _plan_on_devices(
    devices: str,
    pilot: Path | None,
    prompt_tokens: int | None,
    price: float | None,
    out: Path | None,
    overwrite: bool,
    about: tuple[Path | None, str | None, list[str], dict[str, object]],
) -> object:
    """Simulate a run on several GPUs. about: CONFIG, the model, overrides, unused options."""
    from assay import config as configuration
    from assay.plan.cluster import check_placement
    from assay.plan.devices import default_config, parse_devices

    path, model, overrides, unused = about
    count, gpu = parse_devices(devices)
    _check_estimate("--devices", path, model, unused)
    with configuration.naming_lines(path, overrides):
        if path is None:
            settings = default_config(str(model), overrides)
        else:
            settings = configuration.load(path, overrides)
        check_placement(settings, count)
        # The module below is imported after the checks,
        # because it imports torch, which takes seconds.
        from assay.plan.measured.on_devices import plan_on_devices
        from assay.plan.measured.pilot_facts import read_pilot

        facts = None if pilot is None else read_pilot(pilot)
        found = plan_on_devices(gpu, count, settings, prompt_tokens, price, facts)
    place = out or (path.parent if path is not None else Path()) / "devices.svg"
    return found.with_figure(place, path.name if path is not None else str(model), overwrite)
