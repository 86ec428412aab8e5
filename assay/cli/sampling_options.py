"""Options of all commands that sample from a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from assay.cli.console import Allow, Device, Overrides, TrustRun
from assay.host.terminal import say

Model = Annotated[
    str, typer.Argument(help="Model folder, hub name, or a run: RUN, RUN@best, RUN@120.")
]
Problems = Annotated[list[str], typer.Option(help="Source of problems. Repeatable.")]
MaxProblems = Annotated[int | None, typer.Option(min=1, help="Maximum number of problems.")]
Samples = Annotated[int, typer.Option(min=1, help="Completions a problem.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0: greedy.")]


Adapter = Annotated[
    str | None,
    typer.Option(metavar="FOLDER|RUN", help="Folder of peft adapters, applied to the model."),
]

Server = Annotated[
    str | None,
    typer.Option(metavar="URL", help="OpenAI-compatible server that samples for the model."),
]


def _sampling_options(
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    think_budget: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of thinking before the answer.")
    ] = None,
    effort: Annotated[
        str | None, typer.Option(help="Effort of rows without one: a name of sampling.efforts.")
    ] = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of rows without one.")] = None,
    overrides: Overrides = None,
    allow: Allow = None,
    trust_run: TrustRun = False,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    adapter: Adapter = None,
    server: Server = None,
    actors: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that sample (extra ray).")
    ] = None,
) -> None:
    """Declare the options of all commands that sample from a model.

    The names are the keys of `assay.session.sampling.SamplingOptions`. The decorator `samples` adds
    the sampling options to a command.
    """


def samples(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `_sampling_options` to a command, which receives their values in
    ``**options``.
    """
    # typer needs a signature with real types, but annotations in this module are strings.
    shared = inspect.signature(_sampling_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters
    listed = {**{name: one for name, one in own.items() if name != "options"}, **shared}

    @wraps(command)
    def with_options(**given: Any) -> None:
        from assay.config import check_siblings
        from assay.run.names import check_place

        for name in {"model", "first", "second", "adapter"} & given.keys():
            # Verifier names are checked before torch is imported, because the import takes seconds.
            if given[name] is not None:
                check_place(given[name], given[name])
        # A benchmark suite has its own temperature, which decides on the number of samples.
        if given.get("samples") is not None and not given.get("suite"):
            check_siblings(given["samples"], given["temperature"] or 0.0)
        # Unset options are left out, because the run's own setting applies to a missing key.
        command(**{name: one for name, one in given.items() if one is not None})

    # --json is the last option in the help text of every command.
    ordered = sorted(listed.values(), key=lambda one: one.name == "as_json")
    # All parameters are keyword parameters, whose defaults may be in any order.
    # typer passes all arguments by name, so nothing changes for the command.
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in ordered]
    with_options.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in ordered}
    return with_options


def fail_where_none(judged: object, remedy: str) -> None:
    """Exit with code 1 if none of the completions was judged.

    remedy: command or option that the error message recommends.
    """
    # A script must not take an evaluation without any verdict for a success: the exit code is 1.
    if not judged:
        say(f"error: nothing was judged; see the reasons with {remedy}")
        raise typer.Exit(1)
