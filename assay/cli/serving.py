"""Commands that serve over HTTP: verdicts, and models behind a router."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.console import (
    Allow,
    Unsafe,
    VerifierOptions,
    model_commands,
    verifier_commands,
    verifier_options,
)
from assay.errors import MissingExtra
from assay.host.terminal import say

# Clients may send any number of expressions, and every open expression holds threads.
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

    # Checked before workers start: a missing package of the extra `serve` is reported at once.
    check_extra("verifier serve")
    # The token is no option: every user of a machine can read the arguments of a command.
    token = os.environ.get(token_env, "").strip() or None
    options = verifier_options(overrides, unsafe_no_sandbox)
    settings: dict[str, Any] = {"num_workers": workers, "deadline": deadline, "options": options}
    # The address is bound before workers start, so that a used port is reported at once.
    with (
        bind(host, port, token) as listening,
        VerifierService(verifier, allow=allow or [], max_open=MAX_OPEN, **settings) as service,
    ):
        # The check loads the default verifier, whose errors must appear before the first request.
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
    """Route easy requests to a cheap model and hard ones to a strong one, as an OpenAI server."""
    from assay.scale.listening import address_of, bind, check_extra, run_server
    from assay.scale.route import RouteServer
    from assay.scale.route_config import open_judge, read_config

    settings = read_config(config)
    # The client imports httpx2 at its first request, when the server already answers.
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
