"""Connections of servers: late headers, too many of them, web pages, slow checks, failing requests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import until
from typer.testing import CliRunner

uvicorn = pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "assay-rl[serve]"')

from server_calls import ROWS, call  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import Response  # noqa: E402

from assay.cli.command import app as command_line  # noqa: E402
from assay.errors import UserError, VerifierError  # noqa: E402
from assay.scale import http_server, listening  # noqa: E402
from assay.scale.http_server import Server  # noqa: E402
from assay.scale.listening import bind, server  # noqa: E402
from assay.scale.serve import VerifierServer  # noqa: E402
from assay.types import Problem  # noqa: E402
from assay.verify.answers.json_answers import read_schema  # noqa: E402
from assay.verify.expression import MOST_CHARACTERS, parse_expression  # noqa: E402
from assay.verify.service import VerifierService  # noqa: E402

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Echo(Server):
    """A server that answers with the body."""

    def endpoints(self) -> Any:
        return {("POST", "/judge"): self.echo}

    async def echo(self, request: Request) -> Response:
        async with self.body(request) as raw:
            if raw == b"fail":
                raise ZeroDivisionError("\x1b[2J\nforged")
            return Response(raw, media_type="application/json")


@contextmanager
def running(app: Any, most: int = 100) -> Iterator[tuple[str, int]]:
    with bind("127.0.0.1", 0, None) as open_socket:
        found = server(app, most, timeout_graceful_shutdown=1)
        thread = threading.Thread(target=found.run, args=([open_socket],))
        thread.start()
        try:
            yield open_socket.getsockname()
        finally:
            found.should_exit = True
            thread.join()


def asked(address: tuple[str, int], raw: bytes) -> bytes:
    with socket.create_connection(address, timeout=30) as one:
        one.sendall(raw)
        return reply_of(one)


def reply_of(one: socket.socket) -> bytes:
    """Return a reply whose body is a JSON object, or of an error of uvicorn's."""
    found = b""
    while part := one.recv(65536):
        found += part
        if found.endswith((b"}", b"received.")):
            break
    return found


def is_closed(one: socket.socket) -> bool:
    one.settimeout(30)
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
@pytest.mark.parametrize("command", ["verifier serve", "model route", "model serve"])
def test_a_server_without_its_extra_is_told_before_anything_starts(
    command: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("httpx2")
    hidden = lambda name: None if name == package else find_spec(name)  # noqa: E731
    monkeypatch.setattr(listening, "find_spec", hidden)
    monkeypatch.setattr(listening, "bind", None)
    config = tmp_path / "route.toml"
    model = '[{0}]\nurl = "http://localhost:9"\nmodel = "m"\n'
    rule = '[route]\nby = "length"\nthreshold = 1\n'
    config.write_text(rule + model.format("cheap") + model.format("strong"))
    arguments = {"model route": [str(config)], "model serve": ["m"]}.get(command, [])
    result = CliRunner().invoke(command_line, [*command.split(), *arguments])
    assert isinstance(result.exception, UserError) and result.exception.exit_code == 2
    install = 'install it with  pip install "assay-rl[serve]"'
    assert str(result.exception) == f"assay {command} needs {package}: {install}"


def test_a_path_that_nobody_serves_names_those_that_are() -> None:
    app: Any = Echo("secret", 4)
    head = {"authorization": "Bearer secret"}
    for method, path in (("GET", "/judge"), ("POST", "/health"), ("PUT", "/nothing/")):
        status, said = call(app, method, path, {}, **head)
        found = f"found {method} {path.rstrip('/')}; accepted: "
        assert status == 404 and said["error"].startswith(found)
        assert call(app, method, path, {})[0] == 401, "what there is, is not told without a token"
    assert call(app, "GET", "/health/")[0] == 200, "as /health"
    assert 'status="401"} 3' in call(app, "GET", "/metrics", **head)[1]


@pytest.mark.parametrize(
    "said", [b"", b"GET /health HTTP/1.1\r\nhost: lo", GET + b"GET /health HT"]
)
def test_a_connection_without_whole_headers_is_closed(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEADER_SECONDS", 0.2)
    with running(Echo(None, 4)) as address, socket.create_connection(address) as one:
        one.sendall(said)
        if said.startswith(GET):
            assert reply_of(one).startswith(b"HTTP/1.1 200")
        assert is_closed(one)


def test_a_kept_connection_is_not_closed_for_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEADER_SECONDS", 0.1)
    with running(Echo(None, 4)) as address, socket.create_connection(address, timeout=30) as one:
        for pause in (0.3, 0.3, 0.0):
            one.sendall(GET)
            assert reply_of(one).startswith(b"HTTP/1.1 200")
            threading.Event().wait(pause)


def test_half_open_connections_give_way_to_new_ones() -> None:
    with running(Echo(None, 4), most=20) as address, ExitStack() as stack:
        half = [stack.enter_context(socket.create_connection(address)) for _ in range(60)]
        for one in half[-3:]:
            one.sendall(b"GET /hea")
        assert asked(address, GET).startswith(b"HTTP/1.1 200")
        assert is_closed(half[0])


def test_a_request_that_is_not_http_leaves_no_log_line(capfd: pytest.CaptureFixture[str]) -> None:
    with running(Echo(None, 4)) as address:
        assert b"400" in asked(address, b"\x16\x03\x01 nonsense\r\n\r\n")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ({"host": "localhost:8765"}, None, 200),
        ({"host": "127.0.0.1"}, None, 200),
        ({"host": "[::1]:8765"}, None, 200),
        ({"host": "evil.example:8765"}, None, 403),
        ({"host": "localhost.evil.example"}, None, 403),
        ({"host": "[::1"}, None, 403),
        ({"host": "verifiers.example"}, "secret", 200),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, None, 200),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, None, 403),
        ({"host": "localhost:1", "origin": "https://evil.example"}, None, 403),
        ({"host": "localhost:1", "origin": "null"}, None, 403),
        ({"host": "localhost:1", "origin": "http://[::1"}, None, 403),
        ({"host": "localhost:1", "content-type": "text/plain"}, None, 415),
        ({"host": "localhost:1", "content-type": ""}, None, 415),
        ({"host": "localhost:1", "content-type": "Application/JSON; charset=utf-8"}, None, 200),
    ],
)
def test_requests_of_web_pages_are_refused(
    headers: dict[str, str], token: str | None, status: int
) -> None:
    more = {"authorization": f"Bearer {token}"} if token else {}
    app: Any = Echo(token, 4)
    found, said = call(app, "POST", "/judge", {"x": 1}, **headers, **more)
    assert found == status and (status != 200 or said == {"x": 1})


def test_a_defect_is_one_line_and_the_server_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    app: Any = Echo(None, 4)
    status, said = call(app, "POST", "/judge", b"fail")
    assert status == 500 and "failed" in said["error"]
    assert capsys.readouterr().err.splitlines() == [
        r"warning: a request failed: ZeroDivisionError: \u001b[2J"
    ]
    assert call(app, "POST", "/judge", {"x": 1})[0] == 200 and app.held == 0


def test_bodies_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_HELD", 10)
    app: Any = Echo(None, 4)
    assert call(app, "POST", "/judge", b"x" * 11)[0] == 503
    assert app.held == 0 and call(app, "POST", "/judge", b"1")[0] == 200
    app.held = 5
    assert call(app, "POST", "/judge", b"123456")[0] == 503


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SEND_SECONDS", 0.01)
    begun, taken = list[str](), list[str]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"1"}

    async def send(event: Any) -> None:
        begun.append(event["type"])
        await asyncio.sleep(60)
        taken.append(event["type"])

    scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    asyncio.run(Echo(None, 4)(scope, receive, send))
    assert begun[0] == "http.response.start" and not taken


def test_long_expressions_and_schemas_are_refused() -> None:
    text = "exact" + " + exact" * (MOST_CHARACTERS // 8)
    with pytest.raises(VerifierError, match=r"verifier: found 4,005 characters; accepted: at most"):
        parse_expression(text)
    pytest.importorskip("jsonschema")
    schema = {"enum": ["x" * 100] * 2000}
    with pytest.raises(VerifierError, match="schema: found 208,"):
        read_schema(Problem("p", "?", {"schema": schema}))


def test_health_is_answered_while_rows_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checking, go_on = threading.Event(), threading.Event()

    def check(problem: Problem) -> None:
        checking.set()
        assert go_on.wait(60)

    raw = json.dumps({"rows": ROWS}).encode()
    head = "POST /judge HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    asking = f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw
    with VerifierService("exact", num_workers=1) as service:
        monkeypatch.setattr(service, "check_problem", check)
        app = VerifierServer(service)
        with running(app) as address, socket.create_connection(address, timeout=60) as one:
            one.sendall(asking)
            assert checking.wait(60)
            assert asked(address, GET).startswith(b"HTTP/1.1 200"), "the loop is free"
            go_on.set()
            assert b'"passed"' in reply_of(one)
        assert until(lambda: app.waiting == 0 and app.held == 0)
