"""Verdicts over HTTP: an ASGI application around the verifier service, without a framework.

    GET  /health     whether verdicts can be had; needs no token
    GET  /metrics    counts, in the text format of Prometheus
    GET  /verifiers/NAME  version and hash of what judges under this name
    POST /judge      {"rows": [...], "seconds": 30}: rows as `assay verify` reads them; the reply
                     {"verdicts": [...]} has one verdict a row, in their order

What can wait is bounded: a request that finds no room is refused at once (503, Retry-After), so
that memory stays as it is. One that is not done in its seconds is given up (504), and so is one
whose client has gone.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from assay.data.completions import Record
from assay.errors import AssayError, DataError, MissingExtra, UserError, message
from assay.types import Group, Problem, Prompt
from assay.verify.service import VerifierService

MOST_BYTES = 32 * 2**20  # of a request
BODY_SECONDS = 60.0  # for the whole of a request to arrive
MOST_SECONDS = 1700.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Refused(Exception):
    """A request that is answered with a complaint. status: of HTTP."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class VerifierServer:
    """The application. token: what requests must carry; None: they need none.

    max_waiting: completions that are being judged, or wait for it, over all requests. seconds: of a
    request that names none.
    """

    def __init__(
        self,
        service: VerifierService,
        token: str | None = None,
        max_waiting: int = 4096,
        seconds: float = 300.0,
    ) -> None:
        self.service = service
        self.token = token
        self.max_waiting = max_waiting
        self.seconds = seconds
        self.waiting = 0
        self.answered: Counter[int] = Counter()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = [(b"content-type", b"application/json")]
        try:
            body = await self._answer(scope, receive)
            status = 200
        except Refused as refused:
            status, body = refused.status, {"error": str(refused)}
            headers += [(b"retry-after", b"1")] if status == 503 else []
        except ConnectionResetError:
            return  # nobody reads what we would say
        self.answered[status] += 1
        if isinstance(body, str):
            headers, raw = [(b"content-type", b"text/plain; version=0.0.4")], body.encode()
        else:
            raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        headers.append((b"content-length", str(len(raw)).encode()))
        with suppress(OSError):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": raw})

    async def _answer(self, scope: Mapping[str, Any], receive: Receive) -> Any:
        method, path = scope["method"], scope["path"].rstrip("/") or "/"
        if (method, path) == ("GET", "/health"):
            return self._health()
        self._check_token(scope)
        if (method, path) == ("GET", "/metrics"):
            return self._metrics()
        if method == "GET" and path.startswith("/verifiers/"):
            return self._facts(path.removeprefix("/verifiers/"))
        if (method, path) == ("POST", "/judge"):
            return await self._judge(await _body(receive), receive)
        raise Refused(
            404,
            f"found {method} {path}; accepted: POST /judge, GET /verifiers/NAME, /health, /metrics",
        )

    def _check_token(self, scope: Mapping[str, Any]) -> None:
        if self.token is None:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            raise Refused(401, "the header Authorization: Bearer TOKEN is missing, or wrong")

    def _health(self) -> dict[str, Any]:
        failure = self.service.engine.pool.failure
        if self.service.engine.closed or failure is not None:
            raise Refused(503, f"no verdicts: {failure or 'closed'}")
        return {"status": "ok", "waiting": self.waiting}

    def _facts(self, name: str) -> dict[str, Any]:
        try:
            self.service.check([name])
        except AssayError as error:
            raise Refused(404, str(error)) from error
        found = self.service.describe().get(name.partition("@")[0])
        if found is None:
            raise Refused(404, message("/verifiers", repr(name), "the name of one verifier"))
        return {key: found[key] for key in found if key != "source"}  # which is its owner's

    async def _judge(self, raw: bytes, receive: Receive) -> dict[str, Any]:
        groups, ids, seconds = self._read(raw)
        if self.waiting + len(groups) > self.max_waiting:
            said = f"{self.waiting} completions wait, of {self.max_waiting}; try again"
            raise Refused(503 if len(groups) <= self.max_waiting else 413, said)
        self.waiting += len(groups)
        judging = asyncio.ensure_future(self.service.judge_async(groups))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            waits = {judging, leaving}
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not judging.done():
                raise ConnectionResetError
            if not judging.done():
                raise Refused(504, f"not judged in {seconds:g} s")
            verdicts = [found[0] for found in judging.result()]
        except AssayError as error:
            raise Refused(500, str(error)) from error
        finally:
            for task in (judging, leaving):
                task.cancel()
            self.waiting -= len(groups)
        rows = [{"id": id, **one.as_dict()} for id, one in zip(ids, verdicts, strict=True)]
        return {"verdicts": rows}

    def _read(self, raw: bytes) -> tuple[list[Group], list[str], float]:
        """Return what is to be judged; raises Refused, whose words name the row and the key."""
        try:
            asked = json.loads(raw)
            rows, seconds = asked["rows"], asked.get("seconds", self.seconds)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            accepted = 'a JSON object {"rows": [...], "seconds": 30}'
            raise Refused(400, message("body", f"{type(error).__name__}", accepted)) from error
        in_range = type(seconds) in (int, float) and 0 < seconds <= MOST_SECONDS
        if not isinstance(rows, list) or not in_range:
            accepted = f"rows: a list; seconds: a number from 0 to {MOST_SECONDS:g}"
            raise Refused(400, message("body", "another form", accepted))
        try:
            pairs = [self._pair(row, number) for number, row in enumerate(rows)]
        except UserError as error:
            raise Refused(400, str(error)) from error
        groups = [
            Group(problem, Prompt(problem.question, one.tokens[:0], one.think), (one,))
            for problem, one in pairs
        ]
        return groups, [problem.id for problem, _ in pairs], float(seconds)

    def _pair(self, row: Any, number: int) -> tuple[Problem, Any]:
        if not isinstance(row, dict):
            raise DataError(message(f"rows:{number}", type(row).__name__, "a JSON object"))
        problem, completion = Record.read(row, f"rows:{number}", str(number)).to_judge()
        self.service.check_problem(problem)
        return problem, completion

    def _metrics(self) -> str:
        stats = self.service.stats
        lines = [
            "# TYPE assay_requests_total counter",
            *(f'assay_requests_total{{status="{k}"}} {n}' for k, n in self.answered.items()),
            "# TYPE assay_waiting gauge",
            f"assay_waiting {self.waiting}",
            "# TYPE assay_worker_losses_total counter",
            f"assay_worker_losses_total {stats['kills'] + stats['deaths']}",
            "# TYPE assay_verdicts_total counter",
        ]
        for name, one in stats["verifiers"].items():
            label = f'verifier="{name}"'
            missing = sum(one["not_judged"].values())
            lines.append(f'assay_verdicts_total{{{label},judged="yes"}} {one["count"] - missing}')
            lines.append(f'assay_verdicts_total{{{label},judged="no"}} {missing}')
            lines += [
                f'assay_seconds{{{label},quantile="0.{p}"}} {one[f"p{p}"]:g}' for p in (50, 95)
            ]
        return "\n".join(lines) + "\n"


async def _body(receive: Receive) -> bytes:
    """Return a request's body; raises Refused for one that is too large, or does not arrive."""
    try:
        return await asyncio.wait_for(_whole_body(receive), BODY_SECONDS)
    except TimeoutError as error:
        raise Refused(408, f"the body did not arrive in {BODY_SECONDS:g} s") from error


async def _whole_body(receive: Receive) -> bytes:
    found = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ConnectionResetError
        found += event.get("body", b"")
        if len(found) > MOST_BYTES:
            raise Refused(413, f"a body of more than {MOST_BYTES} bytes; send fewer rows at a time")
        if not event.get("more_body"):
            return bytes(found)


async def _left(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """Return a socket that listens; raises UserError, also for an open one without a token."""
    if token is None and host not in LOOPBACK:
        found, accepted = f"{host} without a token", f"a token, or one of {', '.join(LOOPBACK)}"
        raise UserError(message("--host", found, accepted, "set the token's variable"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(1024)
    except (OSError, OverflowError) as error:
        found.close()
        where = f"--host {host} --port {port}"
        accepted = "an address of this machine that is free"
        raise UserError(message(where, str(error), accepted)) from error
    return found


def run_server(app: VerifierServer, listening: socket.socket) -> None:
    """Answer requests until a signal comes; those under way are answered first."""
    try:
        import uvicorn  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra.of("uvicorn", "serve", "assay serve-verifiers") from error
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=10,
    )
    uvicorn.Server(config).run(sockets=[listening])
