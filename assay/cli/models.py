"""Commands that ask a model: measure it, read it, label with it, hand it on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import (
    JUDGE,
    READ,
    Allow,
    Device,
    Json,
    Overrides,
    TrustRun,
    app,
    say_line,
    show,
)
from assay.errors import UserError


@app.command(name="eval", rich_help_panel=READ)
def evaluate(
    model: Annotated[
        str, typer.Argument(help="Model folder, hub name, or a run: RUN, RUN@best, RUN@120.")
    ],
    problems: Annotated[list[str], typer.Option(help="Source of problems. Repeatable.")],
    samples: Annotated[int, typer.Option(min=1, help="Completions a problem.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    max_problems: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of rows that name none.")] = None,
    overrides: Overrides = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    out: Annotated[Path | None, typer.Option(help="Also write every completion, as JSONL.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a model on problems: pass@1 with its standard error, pass@k, majority@k."""
    from assay.config import check_siblings

    check_siblings(samples, temperature)  # before torch is imported, which takes long
    from assay.training import api

    result = api.evaluate_model(
        model,
        problems,
        num_samples=samples,
        temperature=temperature,
        max_tokens=max_tokens,
        max_problems=max_problems,
        verifier=verifier,
        overrides=overrides or [],
        allow=allow or [],
        trust_run=trust_run,
        out=out,
        seed=seed,
        device=device,
        quiet=as_json,
    )
    show(result, as_json)
    if not result.num_problems:
        say_line("error: nothing was judged; see the reasons with --out FILE")
        raise typer.Exit(1)


@app.command(rich_help_panel=READ)
def sample(
    model: Annotated[
        str, typer.Argument(help="Model folder, hub name, or a run: RUN, RUN@best, RUN@120.")
    ],
    prompt: Annotated[str | None, typer.Option(help="The question to ask.")] = None,
    problems: Annotated[list[str] | None, typer.Option(help="Or a source of problems.")] = None,
    answer: Annotated[
        str | None, typer.Option(help="The prompt's answer, to be judged by.")
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="Completions of each prompt.")] = 4,
    max_problems: Annotated[int, typer.Option(min=1, help="Problems to show.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of rows that name none.")] = None,
    overrides: Overrides = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Read completions of a prompt, with their verdicts."""
    from assay.training import api

    result = api.sample(
        model,
        prompt=prompt,
        problems=problems or [],
        answer=answer,
        num_samples=num,
        max_problems=max_problems,
        temperature=temperature,
        max_tokens=max_tokens,
        verifier=verifier,
        overrides=overrides or [],
        allow=allow or [],
        trust_run=trust_run,
        seed=seed,
        device=device,
        quiet=as_json,
    )
    show(result, as_json)


@app.command(name="label-steps", rich_help_panel=JUDGE)
def label_steps(
    model: Annotated[
        str, typer.Argument(help="Model folder, hub name, or a run: RUN, RUN@best, RUN@120.")
    ],
    completions: Annotated[
        list[str], typer.Argument(help="Rows as `assay verify` reads them, or run directories.")
    ],
    out: Annotated[Path, typer.Option(help="JSONL that gets the labelled rows; goes on with it.")],
    rollouts: Annotated[int, typer.Option(min=1, help="Continuations from each step.")] = 8,
    soft: Annotated[
        bool, typer.Option("--soft", help="Label by the share that is right, not by any.")
    ] = False,
    split: Annotated[str, typer.Option(help="What ends a step: newline, blank_line, text.")] = (
        "newline"
    ),
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the continuations.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest continuation.")] = None,
    max_completions: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of rows that name none.")] = None,
    overrides: Overrides = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Label each step of completions by rolling out from it (Math-Shepherd), for process models."""
    from assay.training import step_labels

    result = step_labels.label_steps(
        model,
        completions,
        out,
        num_rollouts=rollouts,
        estimate="soft" if soft else "hard",
        split=split,
        temperature=temperature,
        max_tokens=max_tokens,
        max_completions=max_completions,
        verifier=verifier,
        overrides=overrides or [],
        allow=allow or [],
        trust_run=trust_run,
        seed=seed,
        device=device,
        say=say_line,
    )
    show(result, as_json)


@app.command(rich_help_panel=READ)
def export(
    model: Annotated[str, typer.Argument(help="RUN, RUN@best, RUN@last, RUN@120 or a checkpoint.")],
    out: Annotated[
        Path | None, typer.Argument(help="New folder for the merged model.", show_default=False)
    ] = None,
    push: Annotated[
        str, typer.Option(metavar="NAME", help="Upload it to the hub, as OWNER/NAME.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="A new repository is public.")] = False,
    as_json: Json = False,
) -> None:
    """Write a run's model, adapters merged, as a plain Hugging Face folder with a model card."""
    if out is None and not push:
        raise UserError("assay export: give a new folder, --push NAME, or both")
    from assay.training import api, publish

    if push:
        place = publish.publish(model, push, out, public=public)
    else:
        assert out is not None
        place = api.export(model, out)
    print(json.dumps({"model": str(place)}) if as_json else place)
