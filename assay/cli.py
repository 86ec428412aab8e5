"""The command line: parse, one call, exit code. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from assay.errors import AssayError, UserError

# click's UsageError, wherever this typer has its click
_USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])
INTERRUPTED = 130  # as shells have it: 128 + SIGINT

app = typer.Typer(
    name="assay",
    help="Train language models to reason from rewards that can be checked, and keep the evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of text.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: CUDA if any.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as rl.steps=20. Repeatable."),
]

VerifierOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME.KEY=VALUE", help="A verifier's option, as judge.url=... Repeatable."
    ),
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox", help="Run programs without isolation where none can be had."
    ),
]


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file (docs/configuration.md).")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory to go on with.")] = None,
    accept_changed_verifiers: Annotated[
        bool, typer.Option(help="Resume although a verifier's code changed; it is recorded.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Show one prompt, completion and verdict, and the plan; then stop.")
    ] = False,
    max_minutes: Annotated[
        float | None, typer.Option(help="Stop cleanly, with a checkpoint, after this long.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model as CONFIG says, or go on with a run (--resume)."""
    from assay.train import api

    if (config is None) == (resume is None):
        raise UserError("assay train: give a CONFIG file, or --resume RUN, and not both")
    changes = [*(overrides or []), *([f"run.max_minutes={max_minutes}"] if max_minutes else [])]
    if dry_run:
        if config is None:
            raise UserError("assay train --dry-run: needs a CONFIG file")
        _print(api.dry_run(config, overrides=changes), as_json)
        return
    result = api.train(
        config,
        overrides=changes,
        resume=resume,
        accept_changed_verifiers=accept_changed_verifiers,
        quiet=as_json,
    )
    _print(result, as_json)
    if result.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)


@app.command()
def demo(
    directory: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    seed: Annotated[int, typer.Option(help="Seed of the whole demo.")] = 0,
    as_json: Json = False,
) -> None:
    """The R1 recipe in miniature: make a model, cold-start it, reinforce it, prove it. Minutes on a CPU."""
    from assay.train import recipes

    _print(recipes.demo(directory, seed=seed, quiet=as_json), as_json)


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="Model folder, hub name, checkpoint or run.")],
    problems: Annotated[list[str], typer.Option(help="Source of problems. Repeatable.")],
    samples: Annotated[int, typer.Option(min=1, help="Completions a problem.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    max_problems: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of rows that name none.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Also write every completion, as JSONL.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a model on problems: pass@1 with its standard error, pass@k, majority@k."""
    from assay.train import api

    result = api.evaluate_model(
        model,
        problems,
        num_samples=samples,
        temperature=temperature,
        max_tokens=max_tokens,
        max_problems=max_problems,
        verifier=verifier,
        overrides=overrides or [],
        out=out,
        seed=seed,
        device=device,
    )
    _print(result, as_json)


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="Model folder, hub name, checkpoint or run.")],
    prompt: Annotated[str | None, typer.Option(help="The question to ask.")] = None,
    problems: Annotated[list[str] | None, typer.Option(help="Or a source of problems.")] = None,
    answer: Annotated[
        str | None, typer.Option(help="The prompt's answer, to be judged by.")
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="Completions of each prompt.")] = 4,
    max_problems: Annotated[int, typer.Option(min=1, help="Problems to show.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Read completions of a prompt, with their verdicts."""
    from assay.train import api

    result = api.sample(
        model,
        prompt=prompt,
        problems=problems or [],
        answer=answer,
        num_samples=num,
        max_problems=max_problems,
        temperature=temperature,
        max_tokens=max_tokens,
        overrides=overrides or [],
        seed=seed,
        device=device,
    )
    _print(result, as_json)


@app.command()
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="Rows of id, completion and a spec such as answer.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="Verifier of rows that name none. Default: math.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write verdicts here. Default: print.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds a completion.")] = 5.0,
    rescore: Annotated[
        Path | None, typer.Option(help="Judge a run's recorded completions again, and compare.")
    ] = None,
    self_test: Annotated[
        bool, typer.Option(help="Measure the verifiers on their labelled sets.")
    ] = False,
    overrides: VerifierOptions = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Judge the completions in a JSONL file: one verdict a row, in order."""
    options = _options(overrides, unsafe_no_sandbox)
    if [file is not None, rescore is not None, self_test].count(True) != 1:
        raise UserError("assay verify: give one of FILE, --rescore RUN and --self-test")
    say = _say_progress if sys.stderr.isatty() else None
    if rescore is not None:
        from assay.train.rescore import rescore as judge_again

        result = judge_again(
            rescore, verifier, out=out, num_workers=workers, deadline=deadline, say=say
        )
        _print(result, as_json)
        return
    if self_test:
        raise typer.Exit(_self_test(verifier, workers, deadline, options, as_json))
    assert file is not None
    from assay.verify import batch

    try:
        summary = batch.verify_file(
            file,
            verifier=verifier or "math",
            out=out,
            num_workers=workers,
            deadline=deadline,
            options=options,
            say=say if out is not None else None,
            warn=_warn,
        )
    except BrokenPipeError:
        _leave_closed_pipe()
    facts = (f"{key.replace('_', ' ')} {value}" for key, value in summary.items() if value)
    text = json.dumps(summary) if as_json else ", ".join(facts)
    print(text, file=sys.stdout if as_json and out is not None else sys.stderr)
    if summary["rows"] == summary["not_judged"]:
        raise typer.Exit(1)  # the checker did no work at all


def _self_test(
    verifier: str | None, workers: int | None, deadline: float, options: Any, as_json: bool
) -> int:
    """Print how each verifier does on its labelled set; 1 where one gives a wrong verdict."""
    from assay.verify import selftest

    names = None if verifier is None else [verifier]
    num_wrong = 0
    settings: dict[str, Any] = {"num_workers": workers, "deadline": deadline, "options": options}
    for result in selftest.self_test(names, **settings):
        print(json.dumps(result.as_dict()) if as_json else result, flush=True)
        num_wrong += len(result.wrong)
    return 1 if num_wrong else 0


@app.command()
def redteam(
    verifier: Annotated[
        str | None,
        typer.Option(help="A name, package.module:function or a sum. Default: all built in."),
    ] = None,
    problems: Annotated[
        str | None, typer.Option(help="Rows of yours to attack. Default: the suite's own.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Attacks to use. Default: those that fit the verifier.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds a completion.")] = 10.0,
    overrides: VerifierOptions = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Try known reward hacks on a verifier; exit 1 where it pays for one."""
    from assay.verify.redteam import team as red

    if verifier is None and (problems or suite):
        raise UserError("assay redteam: --problems and --suite need --verifier")
    settings: dict[str, Any] = {"num_workers": workers, "deadline": deadline}
    settings["options"] = _options(overrides, unsafe_no_sandbox)
    results = (
        red.red_team_all(**settings)
        if verifier is None
        else [red.red_team(verifier, problems, suite=suite, **settings)]
    )
    held = True
    for warning in red.warnings(verifier, settings["options"]) if verifier else ():
        _warn(warning)
    for result in results:
        _print(result, as_json)
        held = held and result.held
    raise typer.Exit(0 if held else 1)


@app.command(name="label-steps")
def label_steps(
    model: Annotated[str, typer.Argument(help="Model folder, hub name, checkpoint or run.")],
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
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Label each step of completions by rolling out from it (Math-Shepherd), for process models."""
    from assay.train import step_labels

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
        seed=seed,
        device=device,
        say=_say,
    )
    _print(result, as_json)


@app.command()
def plan(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file; without one, facts are given or asked for.")
    ] = None,
    facts: Annotated[
        list[str] | None,
        typer.Option("--fact", metavar="NAME=VALUE", help="A fact, as reward=answer. Repeatable."),
    ] = None,
    measure: Annotated[
        int | None, typer.Option(min=0, help="Problems to measure with; 0: none. Default: a few.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Default: decision.md beside CONFIG.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Also over a file that is not ours.")] = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Recommend a method and why not the others, a narrow pilot, memory and time; train nothing."""
    from assay.plan import api

    result = api.plan(
        config,
        overrides=overrides or [],
        given=facts or [],
        num_problems=measure,
        out=out,
        overwrite=overwrite,
        ask=typer.prompt,
        say=_say,
    )
    _print(result, as_json)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    as_json: Json = False,
) -> None:
    """Write report.html of a run: one self-contained page."""
    from assay.run.report import write_report

    try:
        path = write_report(run)
    except PermissionError as error:
        raise UserError(f"{run}: the report cannot be written ({error.strerror})") from error
    print(json.dumps({"report": str(path)}) if as_json else path)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="Run directory or checkpoint.")],
    out: Annotated[Path, typer.Argument(help="New folder for the merged model.")],
    as_json: Json = False,
) -> None:
    """Write a run's model, adapters merged, as a plain Hugging Face folder for serving."""
    from assay.train import api

    path = api.export(model, out)
    print(json.dumps({"model": str(path)}) if as_json else path)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine can do, and whether the install is sound."""
    from assay import doctor as clinic

    raise typer.Exit(clinic.report(as_json=as_json))


def _options(overrides: list[str] | None, unsafe_no_sandbox: bool) -> dict[str, dict[str, Any]]:
    """Return the options of verifiers that ``--set NAME.KEY=VALUE`` gives, as a run's file would."""
    from assay import config

    changes = [*(overrides or []), *(["code.unsafe_no_sandbox=true"] if unsafe_no_sandbox else [])]
    tree = {"model": {"path": "none"}, "data": {"train": ["none"]}, "rl": {}}
    prefixed = [f"verification.options.{change}" for change in changes]
    return config.build(tree, prefixed).verification.options


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _say_progress(text: str) -> None:
    """Show how far a long command is, on one line of the terminal."""
    print(f"\r{text}", end="", file=sys.stderr, flush=True)


def _print(result: Any, as_json: bool) -> None:
    """Print a result: its ``as_dict`` as one line of JSON, or its text."""
    print(json.dumps(result.as_dict(), allow_nan=False) if as_json else result)


def main() -> None:
    """Run the command line; an Assay error is one line and its exit code, never a traceback.

    A user's ``my_rewards:reward`` is found in the working directory, after everything installed.
    """
    # Idle tensor threads spin for some microseconds, then sleep. OpenMP reads it once, when torch is
    # first imported. By default they spin for long, which makes steps several times slower on a
    # machine that does anything else at the same time; never to spin is slower on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except _USAGE_ERROR as error:
        sys.exit(_complain_of_usage(error))
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _leave_closed_pipe()


def _complain_of_usage(error: Any) -> int:
    """Say in one line what is wrong with the arguments; without any, show the help."""
    if error.ctx is None or "NoArgs" in type(error).__name__:
        error.show()
    else:
        where, text = error.ctx.command_path, error.format_message().rstrip(".")
        print(f"error: {where}: {text}; see {where} --help", file=sys.stderr)
    return error.exit_code


def _leave_closed_pipe() -> NoReturn:
    """End in peace: whoever read what we print, such as ``head``, has had enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


if __name__ == "__main__":
    main()
