"""Commands that run verifiers: judge rows, self-test, compare versions, red team."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from assay.cli.console import (
    JUDGE,
    Allow,
    Device,
    Json,
    TrustRun,
    Unsafe,
    VerifierOptions,
    app,
    leave_closed_pipe,
    show,
    verifier_commands,
    verifier_options,
)
from assay.cli.sampling_options import Server, Temperature
from assay.errors import UserError
from assay.host.terminal import say, say_progress, show_json, warn


@app.command(rich_help_panel=JUDGE)
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="JSONL rows with id, completion and spec keys.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="Verifier of rows without one. Default: math.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the verdicts. Default: print them.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds a completion.")] = 5.0,
    rescore: Annotated[
        Path | None, typer.Option(help="Judge a run's completions again and compare.")
    ] = None,
    overrides: VerifierOptions = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    unsafe_no_sandbox: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Judge the completions in a JSONL file: one verdict per row, in order."""
    options = verifier_options(overrides, unsafe_no_sandbox)
    if (file is None) == (rescore is None):
        raise UserError("assay verify: give one of FILE and --rescore RUN")
    how_far = say_progress if sys.stderr.isatty() else None
    if rescore is not None:
        from assay.evaluation.rejudge import rescore as judge_again

        result = judge_again(
            rescore,
            verifier,
            out=out,
            num_workers=workers,
            deadline=deadline,
            options=options,
            allow=allow or [],
            trust_run=trust_run,
            say=how_far,
        )
        show(result, as_json)
        # A partial rescore is an error, because a script would treat it as a complete rescore.
        if result.unreadable:
            say(f"error: {rescore}: not all that it recorded could be read")
            raise typer.Exit(1)
        return
    assert file is not None
    from assay.cli import rows

    try:
        summary = rows.verify_file(
            file,
            verifier=verifier or "math",
            out=out,
            num_workers=workers,
            deadline=deadline,
            options=options,
            allow=allow or [],
            # Without --out, the verdicts go to standard output, one JSON row per line.
            say=how_far if out is not None else None,
            warn=warn,
        )
    # A program that reads the verdicts, such as head, may close the pipe early without an error.
    except BrokenPipeError:
        leave_closed_pipe()
    facts = (f"{key.replace('_', ' ')} {value}" for key, value in summary.items() if value)
    if as_json and out is not None:
        show_json(summary)
    # In this mode, the verdicts are on standard output and the summary is on standard error.
    else:
        say(json.dumps(summary) if as_json else ", ".join(facts))
    if summary["rows"] == summary["not_judged"]:
        # If no row was judged, the verifier itself has failed, so the command exits with an error.
        raise typer.Exit(1)


@verifier_commands.command(name="self-test")
def self_test(
    verifier: Annotated[
        str | None, typer.Option(help="Verifier to test. Default: all, each on its own set.")
    ] = None,
    labelled: Annotated[
        Path | None, typer.Option(help="Your own labelled file to test on.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds a completion.")] = 5.0,
    overrides: VerifierOptions = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Test verifiers on their labelled sets. Exit with code 1 if a verdict is wrong, unless the
    verifier is a detector."""
    from assay.verify import selftest

    options = verifier_options(overrides, unsafe_no_sandbox)
    names = None if verifier is None else [verifier]
    num_wrong = 0
    settings: dict[str, Any] = {"num_workers": workers, "deadline": deadline, "options": options}
    if labelled is not None:
        found = [selftest.self_test_on(labelled, verifier or "math", **settings)]
    else:
        found = selftest.self_test(names, **settings)
    for result in found:
        show(result, as_json)
        # Detectors have known error rates, so their wrong verdicts do not fail the self-test.
        num_wrong += 0 if result.fallible else len(result.wrong)
    if num_wrong:
        raise typer.Exit(1)


@verifier_commands.command()
def drift(
    files: Annotated[
        list[Path], typer.Argument(help="Verdicts of the same completions, one file per version.")
    ],
    as_json: Json = False,
) -> None:
    """Compare the scores of verifier or reward model versions on the same completions."""
    from assay.evaluation.drift import drift as compare_versions

    show(compare_versions(files), as_json)


@app.command(rich_help_panel=JUDGE)
def redteam(
    verifier: Annotated[
        str | None,
        typer.Option(help="A name, package.module:function or a sum. Default: all built in."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Attack this model or run by jailbreaks instead."),
    ] = None,
    problems: Annotated[
        str | None, typer.Option(help="Your rows to attack. Default: the suite's own.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Attack suite. Default: the one that fits the verifier.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Key of the expected answer in your rows. Default: answer."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Completions a jailbreak.")] = 1,
    temperature: Temperature = 0.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest completion of a jailbreak.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the completions of jailbreaks.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds a completion.")] = 10.0,
    overrides: VerifierOptions = None,
    trust_run: TrustRun = False,
    device: Device = None,
    server: Server = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Try known reward hacks on a verifier, or jailbreaks on a policy model (--policy).

    Exit with code 1 if the verifier does not hold against the hacks, or the policy against the
    jailbreaks.

    A verifier holds if it judges every hack, accepts none, and passes at least one honest answer
    (control). The last lines of the red team's output name the condition that failed. Other honest
    answers (controls) may fail: a reward can require one form of an answer.

    A policy holds if it complies with no jailbreak. The table also shows how many harmless requests
    in similar words the policy refuses.
    """
    if policy is not None:
        if verifier or suite or key:
            raise UserError("assay redteam: --policy takes no --verifier, --suite and --key")
        changes = [f"verification.deadline={deadline}"]
        changes += [] if workers is None else [f"verification.num_workers={workers}"]
        changes += [f"verification.options.{one}" for one in overrides or ()]
        how = {"num_samples": samples, "temperature": temperature, "max_tokens": max_tokens}
        how |= {"trust_run": trust_run, "device": device, "server": server, "quiet": as_json}
        _redteam_policy(policy, problems, overrides=changes, out=out, as_json=as_json, **how)
    if any([samples > 1, temperature, max_tokens, out, trust_run, device, server]):
        names = "--samples, --temperature, --max-tokens, --out, --trust-run, --device and --server"
        raise UserError(f"assay redteam: {names} need --policy")
    if verifier is None and (problems or suite):
        raise UserError("assay redteam: --problems and --suite need --verifier")
    settings: dict[str, Any] = {"num_workers": workers, "deadline": deadline}
    settings["options"] = verifier_options(overrides, unsafe_no_sandbox)
    _redteam_verifiers(verifier, problems, suite, key or "answer", as_json, settings)


def _redteam_verifiers(
    verifier: str | None,
    problems: str | None,
    suite: str | None,
    key: str,
    as_json: bool,
    settings: dict[str, Any],
) -> NoReturn:
    from assay.session import judging
    from assay.verify.redteam import team as red

    results = (
        red.red_team_all(**settings)
        if verifier is None
        else [judging.redteam(verifier, problems, suite=suite, key=key, **settings)]
    )
    held = True
    for warning in red.warnings(verifier, settings["options"]) if verifier else ():
        warn(warning)
    for result in results:
        show(result, as_json)
        held = held and result.held
    raise typer.Exit(0 if held else 1)


def _redteam_policy(model: str, problems: str | None, *, as_json: bool, **options: Any) -> NoReturn:
    from assay.config import check_siblings
    from assay.evaluation.policy_redteam import SUITE, red_team_policy
    from assay.run.names import check_place

    check_place(model, model)
    check_siblings(options["num_samples"], options["temperature"])
    found = red_team_policy(model, SUITE if problems is None else [problems], **options)
    show(found, as_json)
    raise typer.Exit(0 if found.held else 1)
