"""Commands that serve over HTTP: verdicts, and models behind a router."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from assay.cli.console import (
    Allow,
    Overrides,
    TrustRun,
    Unsafe,
    VerifierOptions,
    model_commands,
    verifier_commands,
    verifier_options,
)
from assay.errors import MissingExtra, UserError, message
from assay.host.terminal import say

# Clients may send any number of verifier expressions, and each open expression uses threads.
MAX_OPEN = 256
"""Maximum number of client expressions that a verdict server keeps open."""
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port.")]
TokenEnv = Annotated[str, typer.Option(help="Environment variable with the clients' token.")]


@verifier_commands.command(name="serve")
def serve_verifiers(
    verifier: Annotated[str, typer.Option(help="Verifier of rows without one.")] = "math",
    host: Host = "127.0.0.1",
    port: Port = 8765,
    token_env: TokenEnv = "ASSAY_VERIFIERS_TOKEN",
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds a completion.")] = 5.0,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Maximum waiting completions. More are rejected.")
    ] = 4096,
    overrides: VerifierOptions = None,
    allow: Allow = None,
    unsafe_no_sandbox: Unsafe = False,
) -> None:
    """Serve verdicts over HTTP, for trainers in other processes, languages and clusters."""
    from assay.scale.listening import address_of, bind, check_extra, run_server
    from assay.scale.serve import VerifierServer
    from assay.verify.service import VerifierService

    # The extra `serve` is checked before workers start: a missing package is reported at once.
    check_extra("verifier serve")
    # Every user of a machine can read command-line arguments, so the token is not an option.
    token = os.environ.get(token_env, "").strip() or None
    options = verifier_options(overrides, unsafe_no_sandbox)
    settings: dict[str, Any] = {"num_workers": workers, "deadline": deadline, "options": options}
    # The address is bound before workers start, so that a port in use is reported at once.
    with (
        bind(host, port, token) as listening,
        VerifierService(verifier, allow=allow or [], max_open=MAX_OPEN, **settings) as service,
    ):
        # The startup check loads the default verifier: its errors must precede the first request.
        service.check([None])
        say(f"verdicts of {verifier}: POST {address_of(listening)}/judge")
        with suppress(KeyboardInterrupt):
            run_server(VerifierServer(service, token, max_waiting), listening)


@model_commands.command()
def route(
    config: Annotated[
        Path, typer.Argument(help="TOML file with the tables route, cheap and strong.")
    ],
    host: Host = "127.0.0.1",
    port: Port = 8760,
    token_env: TokenEnv = "ASSAY_ROUTE_TOKEN",
) -> None:
    """Route easy requests to a cheap model and hard requests to a strong one, as an OpenAI
    server."""
    from assay.scale.listening import address_of, bind, check_extra, run_server
    from assay.scale.route import RouteServer
    from assay.scale.route_config import open_judge, read_config

    settings = read_config(config)
    # The HTTP client imports httpx2 at its first request, when the server is already running.
    if find_spec("httpx2") is None:
        raise MissingExtra.of("httpx2", "judge", "assay model route")
    check_extra("model route")
    token = os.environ.get(token_env, "").strip() or None
    with ExitStack() as stack:
        judge = open_judge(settings, str(config), stack)
        listening = stack.enter_context(bind(host, port, token))
        say(f"by {settings.route.by}: {address_of(listening)}/v1")
        with suppress(KeyboardInterrupt):
            run_server(RouteServer(settings, judge, token), listening)


@model_commands.command()
def serve(
    model: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="Run, checkpoint or model to serve.")
    ],
    reasoning: Annotated[
        str, typer.Option(help="hide, show, or summary: what a client gets of the reasoning.")
    ] = "hide",
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Serve MODEL of this OpenAI-compatible server instead."),
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(help="With --server: free, opened or off: how its replies hold reasoning."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Model name for clients.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8770,
    token_env: TokenEnv = "ASSAY_SERVE_TOKEN",
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Completions at once.")] = 8,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum completion tokens. Default: the run's.")
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Maximum requests at once. More are rejected.")
    ] = 64,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.")] = None,
    overrides: Overrides = None,
    trust_run: TrustRun = False,
) -> None:
    """Serve a model over OpenAI's chat API, with its reasoning withheld, shown or summarized."""
    from assay.scale.chat_server import REASONING, Reasoning, ReasoningServer
    from assay.scale.listening import address_of, bind, check_extra, run_server

    check_extra("model serve")
    _check_choice("--reasoning", reasoning, REASONING)
    if server is not None:
        _check_unused(max_tokens=max_tokens, device=device, set=overrides)
    token = os.environ.get(token_env, "").strip() or None
    with bind(host, port, token) as listening:
        backend: Any
        if server is not None:
            backend = _upstream(server, model, think, timeout)
        else:
            from assay.session.chat_model import open_chat_model

            options: Any = {"max_tokens": max_tokens, "device": device, "trust_run": trust_run}
            options["overrides"] = overrides or []
            backend, _ = open_chat_model(model, options, slots)
        limits: dict[str, Any] = {"max_waiting": max_waiting, "seconds": timeout}
        shown = cast("Reasoning", reasoning)
        app = ReasoningServer(backend, name or model, shown, token=token, **limits)
        say(f"{name or model}, reasoning {reasoning}: {address_of(listening)}/v1")
        with suppress(KeyboardInterrupt):
            run_server(app, listening)


def _upstream(url: str, model: str, think: str | None, seconds: float) -> Any:
    from assay.scale.chat_upstream import ChatUpstream
    from assay.types import ThinkFormat

    if find_spec("httpx2") is None:
        raise MissingExtra.of("httpx2", "judge", "assay model serve --server")
    # A wrong default would hand out the start of reasoning that is cut off: the option has none.
    if think is None:
        raise UserError(message("--think", "none", "free, opened or off, with --server"))
    modes: Any = _check_choice("--think", think, ("free", "opened", "off"))
    key = os.environ.get("ASSAY_SERVER_KEY", "").strip()
    return ChatUpstream(url, model, ThinkFormat(modes), key=key, seconds=seconds)


def _check_choice(option: str, value: str, accepted: Sequence[str]) -> str:
    if value not in accepted:
        raise UserError(message(option, value, ", ".join(accepted)))
    return value


def _check_unused(**given: object) -> None:
    """Raise UserError if an option of the local engine is combined with ``--server``."""
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise UserError(message(option, str(value), "none with --server", "remove it"))
