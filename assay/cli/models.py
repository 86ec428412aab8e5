"""Commands that run a model: evaluate, compare, sample, search, export, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.console import (
    READ,
    Json,
    Overrides,
    TrustRun,
    app,
    model_commands,
    show,
    show_path,
)
from assay.cli.sampling_options import (
    Adapter,
    MaxProblems,
    Model,
    Problems,
    Samples,
    Temperature,
    fail_where_none,
    samples,
)
from assay.errors import ConfigError, UserError, message
from assay.host.terminal import show_styled


@app.command(name="eval", rich_help_panel=READ)
@samples
def evaluate(
    model: Model,
    problems: Annotated[
        list[str] | None, typer.Option(help="Source of problems. Repeatable.")
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Published benchmarks, such as gsm8k,ifeval. Repeatable."
        ),
    ] = None,
    suite_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the suites' rows (NAME.jsonl) instead of the hub."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Completions a problem. Default: 1, or that of the suite."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0: greedy. Default: 0, or that of the suite."),
    ] = None,
    max_problems: MaxProblems = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write every completion: a JSONL file, or a folder for suites."),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Evaluate a model on problems or published benchmarks: pass@1 with its standard error."""
    if bool(problems) == bool(suite):
        accepted = "either --problems SOURCE or --suite NAMES"
        raise ConfigError(message("eval", "both" if problems else "neither", accepted))
    if suite_folder is not None and not suite:
        raise ConfigError(message("eval", "--suite-folder alone", "only with --suite NAMES"))
    how: dict[str, Any] = {"max_problems": max_problems, "out": out, "quiet": as_json, **options}
    if suite:
        from assay.evaluation.suites import evaluate_suites

        of_model = {"num_samples": samples, "temperature": temperature, "folder": suite_folder}
        results = evaluate_suites(model, suite, **of_model, **how)
        show(results, as_json)
        fail_where_none(results.num_judged, "--out DIR")
        return
    from assay.training import api

    result = api.evaluate(
        model, problems or (), num_samples=samples or 1, temperature=temperature or 0.0, **how
    )
    show(result, as_json)
    fail_where_none(result.num_problems, "--out FILE")


@app.command(rich_help_panel=READ)
@samples
def frontier(
    model: Model,
    problems: Problems,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Maximum thinking tokens, an effort, or none. Repeatable."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="Think mode: free, opened, empty or off. Repeatable."),
    ] = None,
    samples: Samples = 1,
    temperature: Temperature = 0.0,
    max_problems: MaxProblems = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the result as JSON and a figure as SVG.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Measure accuracy as a function of generated tokens, for each budget and think mode."""
    from assay.evaluation import frontier as of_model

    result = of_model.frontier(
        model,
        problems,
        budgets=budget or [],
        modes=mode or [],
        num_samples=samples,
        temperature=temperature,
        max_problems=max_problems,
        out=out,
        quiet=as_json,
        **options,
    )
    show(result, as_json)
    fail_where_none(
        all(point.accuracy is not None for point in result.points), "assay eval --out FILE"
    )


@app.command(rich_help_panel=READ)
@samples
def compare(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="Model A, or a file that `eval --out` wrote."),
    ],
    second: Annotated[
        str,
        typer.Argument(metavar="B", help="Model B, or such a file, tested against A."),
    ],
    problems: Annotated[
        list[str] | None,
        typer.Option(help="Source of problems. Repeatable; two files need none."),
    ] = None,
    out_of_domain: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help="Problems of another kind, to detect a loss."),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="Also compare by a judge: pairwise (both orders), or a verifier."),
    ] = None,
    samples: Samples = 1,
    temperature: Temperature = 0.0,
    max_problems: MaxProblems = None,
    flips: Annotated[int, typer.Option(min=0, help="Number of changed problems to show.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Also write completions as JSONL, usable as A and B.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Compare two models on the same problems: gain, changed problems, length.

    To compare recorded runs, use assay run compare.
    """
    from assay.evaluation.compare import compare as compare_models

    result = compare_models(
        first,
        second,
        problems or [],
        out_of_domain=out_of_domain or [],
        judge=judge,
        num_samples=samples,
        temperature=temperature,
        max_problems=max_problems,
        out=out,
        **options,
        quiet=as_json,
    )
    show(result if as_json else result.text(flips), as_json)
    fail_where_none(not result.found_nothing, "--out FILE")


@app.command(rich_help_panel=READ)
@samples
def gate(
    model: Model,
    problems: Problems,
    against: Annotated[
        str | None, typer.Option(help="Baseline run or model. Default: the run's initial model.")
    ] = None,
    out_of_domain: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="Problems of another kind.")
    ] = None,
    canaries: Annotated[
        list[str] | None,
        typer.Option(help="mathematics, code, instructions or a file. Default: all three."),
    ] = None,
    strong: Annotated[
        str | None,
        typer.Option(
            metavar="VERIFIER", help="Stronger verifier that judges passed completions again."
        ),
    ] = None,
    thresholds: Annotated[Path | None, typer.Option(help="TOML file with the limits.")] = None,
    review: Annotated[Path | None, typer.Option(help="Human labels of completions.")] = None,
    samples: Samples = 1,
    temperature: Temperature = 0.0,
    max_problems: MaxProblems = None,
    out: Annotated[Path, typer.Option(help="File for all completions.")] = Path(
        "gate_completions.jsonl"
    ),
    as_json: Json = False,
    **options: Any,
) -> None:
    """Test a checkpoint against a baseline on problems outside its training and held-out data.

    Exit with code 1 if the checkpoint fails the gate.
    """
    from assay.evaluation import gate as of_gate

    result = of_gate.gate(
        model,
        problems,
        against=against,
        out_of_domain=out_of_domain or [],
        canaries=canaries or [*of_gate.CANARIES],
        strong=strong,
        thresholds=thresholds,
        review=review,
        num_samples=samples,
        temperature=temperature,
        max_problems=max_problems,
        out=out,
        **options,
        quiet=as_json,
    )
    show(result, as_json)
    if not result.passed:
        raise typer.Exit(1)


@app.command(rich_help_panel=READ)
@samples
def sample(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="The question to ask.")] = None,
    problems: Annotated[list[str] | None, typer.Option(help="Or a source of problems.")] = None,
    answer: Annotated[str | None, typer.Option(help="Expected answer of the prompt.")] = None,
    num: Annotated[int, typer.Option(min=1, help="Completions per prompt.")] = 4,
    max_problems: Annotated[int, typer.Option(min=1, help="Number of problems.")] = 1,
    temperature: Temperature = 1.0,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Sample and print completions of a prompt, with their verdicts."""
    from assay.training import api

    result = api.sample(
        model,
        prompt=prompt,
        problems=problems or [],
        answer=answer,
        num_samples=num,
        max_problems=max_problems,
        temperature=temperature,
        **options,
        quiet=as_json,
    )
    show(result, as_json)


@app.command(rich_help_panel=READ)
@samples
def search(
    model: Model,
    problems: Problems,
    budget: Annotated[
        list[int], typer.Option(min=1, help="Generated tokens per problem. Repeatable.")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="best_of_n, self_consistency, weighted_vote, beam, dvts, lookahead or mcts."
            " Repeatable. Default: best_of_n."
        ),
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(metavar="VERIFIER|MODEL", help="A verifier, or a reward model.")
    ] = None,
    step: Annotated[
        str | None, typer.Option(help="End of a step: newline, blank_line, or a text.")
    ] = None,
    expand: Annotated[int, typer.Option(min=1, help="Steps sampled per node.")] = 4,
    ahead: Annotated[int, typer.Option(min=1, help="Lookahead depth in steps.")] = 1,
    exploration: Annotated[
        float, typer.Option(min=0.0, help="Exploration constant of mcts.")
    ] = 1.0,
    reduce: Annotated[
        str | None, typer.Option(help="Of a process model's steps: min, product, last, mean.")
    ] = None,
    temperature: Temperature = 1.0,
    max_problems: MaxProblems = None,
    out: Annotated[Path | None, typer.Option(help="Also write the search trees as JSONL.")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Search for answers at test time, and compare methods at equal generated tokens."""
    from assay.evaluation.test_time.search import search as search_for

    result = search_for(
        model,
        problems,
        method or "best_of_n",
        budgets=budget,
        scorer=scorer,
        step=step,
        expand=expand,
        ahead=ahead,
        exploration=exploration,
        reduce=reduce,
        temperature=temperature,
        max_problems=max_problems,
        out=out,
        **options,
        quiet=as_json,
    )
    show(result, as_json)
    fail_where_none(any(row.accuracy is not None for row in result.rows), "assay eval --out FILE")


@model_commands.command()
def export(
    model: Annotated[
        str, typer.Argument(help="RUN, RUN@best, RUN@120, a checkpoint, or --adapter's base.")
    ],
    out: Annotated[
        Path | None,
        typer.Argument(help="New folder, or new file for GGUF.", show_default=False),
    ] = None,
    format: Annotated[
        str, typer.Option(help="hf: Hugging Face folder; gguf: file for llama.cpp, Ollama.")
    ] = "hf",
    push: Annotated[
        str, typer.Option(metavar="NAME", help="Upload to the hub as OWNER/NAME.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    adapter: Adapter = None,
    as_json: Json = False,
) -> None:
    """Export a run's model, adapters merged: a Hugging Face folder with a model card, or GGUF."""
    if out is None and not push:
        raise UserError("assay model export: give a new folder, --push NAME, or both")
    # An upload needs a folder with a model card, so a single GGUF file cannot be uploaded.
    if push and format != "hf":
        raise UserError(message("--format", f"{format} with --push", "--push of a folder (hf)"))
    if push and adapter is not None:
        raise UserError(message("--adapter", f"{adapter} with --push", "--push of a run alone"))
    from assay.release import export as exporting
    from assay.release import publish

    if push:
        place = publish.publish(model, push, out, public=public)
    else:
        assert out is not None
        place = exporting.export(model, out, format=format, adapter=adapter)  # pyright: ignore[reportArgumentType]
    show_path("model", place, as_json)


@model_commands.command()
def merge(
    models: Annotated[list[str], typer.Argument(help="Folders, hub names, or runs: RUN@best.")],
    out: Annotated[Path, typer.Option(help="New folder for the merged model.")],
    method: Annotated[str, typer.Option(help="linear, task_arithmetic or slerp.")] = "linear",
    weight: Annotated[
        list[float] | None,
        typer.Option(help="Weight of a model. Repeat for each model. Default: 1."),
    ] = None,
    base: Annotated[str | None, typer.Option(help="Base model of task_arithmetic.")] = None,
    problems: Annotated[
        list[str] | None, typer.Option(help="Problems to evaluate all models and the merged one.")
    ] = None,
    max_problems: MaxProblems = None,
    as_json: Json = False,
) -> None:
    """Merge models of the same shape: a mean, a sum of changes, or an interpolation."""
    from assay.release import merge

    result = merge.merge(
        models,
        out,
        method=method,
        weights=weight or [],
        base=base,
        problems=problems or [],
        max_problems=max_problems,
        quiet=as_json,
    )
    show(result, as_json)


@model_commands.command(name="check-template")
def check_template(
    model: Annotated[
        str, typer.Argument(help="Model folder, hub name, run, or a folder with a tokenizer.")
    ],
    overrides: Overrides = None,
    trust_run: TrustRun = False,
    as_json: Json = False,
) -> None:
    """Show how training tokenizes and masks a chat template, and check the result.

    Exit code 1 if a check fails.
    """
    from assay.evaluation.template_check.command import check_template as check

    result = check(model, overrides=overrides or [], trust_run=trust_run)
    if as_json:
        show(result, as_json)
    else:
        show_styled(result.styled())
    if not result.passed:
        raise typer.Exit(1)
