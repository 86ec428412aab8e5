"""Base class of Assay's HTTP servers: Starlette's router with authentication and limits.

    GET /health    whether the server can answer; needs no token
    GET /metrics   counters, in the text format of Prometheus

The number of waiting requests is limited, so that memory is bounded. If the maximum number of
requests waits, the server refuses further requests at once (503, Retry-After). If a client
disconnects, the work for its request is canceled. Host, Origin and content type are checked, so
that web pages cannot use a server on localhost.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from assay.errors import cause
from assay.host.terminal import warn
from assay.scale.listening import LOOPBACK

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    # An endpoint function returns a response, or an ASGI application that sends the response.
    Endpoint = Callable[[Request], Awaitable[ASGIApp]]

# Maximum size of a request body, in bytes.
MOST_BYTES = 32 * 2**20
# Maximum size of all request bodies that are in memory at the same time, in bytes.
MOST_HELD = 8 * MOST_BYTES
# Seconds within which a complete request body must arrive.
BODY_SECONDS = 60.0
# Seconds within which a client must read one chunk of a response.
SEND_SECONDS = 60.0

Found = TypeVar("Found")


class Refused(Exception):
    """A refused request. status: HTTP status code of the error response."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Encode a value as a response with JSON."""
    from starlette.responses import Response

    # UTF-8 cannot encode unpaired surrogates, so they become question marks.
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return Response(raw, status, headers, "application/json")


class Server:
    """Base class of a server, which is an ASGI application.

    token: bearer token that requests must have; None means no authentication. max_waiting: maximum
    number of waiting units (see `room`), beyond which requests are refused. accepted: methods and
    paths of the subclass, which error messages list. most_bytes: maximum size of a request body in
    bytes. body_type: content type of request bodies.
    """

    accepted = ""
    most_bytes = MOST_BYTES
    body_type = "application/json"

    def __init__(self, token: str | None, max_waiting: int) -> None:
        from starlette.routing import Route, Router

        self.token = token
        self.max_waiting = max_waiting
        self.waiting = 0
        # Total size of all request bodies that are being read or processed, in bytes.
        self.held = 0
        self.answered: Counter[int] = Counter()
        own = {("GET", "/health"): self._health, ("GET", "/metrics"): self._metrics}
        routes = [
            Route(path, endpoint, methods=[method])
            for (method, path), endpoint in (own | dict(self.endpoints())).items()
        ]
        # Starlette's application class would log a traceback for each failure; its router does not.
        self._router = Router(routes, redirect_slashes=False, lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the start and end events (lifespan) of the server."""
        from starlette.exceptions import HTTPException

        scope["app"], begun = self, False

        async def patient(event: Message) -> None:
            nonlocal begun
            if event["type"] == "http.response.start":
                begun = True
                self.answered[event["status"]] += 1
            # A client that stops reading must not occupy a connection forever.
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await send(event)
            except TimeoutError:
                raise ConnectionResetError from None

        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        try:
            self._check(scope)
            await self._router(scope, receive, patient)
            return
        except ConnectionResetError:
            # The client has disconnected, so no response is needed.
            return
        except HTTPException:
            # No endpoint has the path and method of the request.
            found = f"found {scope['method']} {scope['path']}"
            said = f"{found}; accepted: {self.accepted}, /health, /metrics"
            response = json_response(self.complaint(said), 404)
        except Refused as refused:
            again = {"retry-after": "1"} if refused.status == 503 else {}
            response = json_response(self.complaint(str(refused)), refused.status, again)
        except Exception as error:  # a defect that one request reveals must not stop the server
            warn(f"a request failed: {cause(error)}")
            said = "this request failed; see the server's log"
            response = json_response(self.complaint(said), 500)
        if not begun:
            with suppress(OSError):
                await response(scope, receive, patient)

    def endpoints(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the endpoints of the subclass, by method and path. An endpoint may raise
        Refused."""
        raise NotImplementedError

    def health(self) -> dict[str, Any]:
        """Return the body of /health. Raises Refused if the server cannot process requests."""
        return {"status": "ok", "waiting": self.waiting}

    def counts(self) -> Iterator[str]:
        """Yield the lines of /metrics that are specific to the subclass."""
        yield from ()

    def complaint(self, said: str) -> dict[str, Any]:
        """Format the body of an error response in the server's API."""
        return {"error": said}

    async def close(self) -> None:
        """Release resources when the server stops."""

    @contextmanager
    def room(self, count: int, what: str) -> Iterator[None]:
        """Reserve capacity for ``count`` units of work inside a ``with`` block. Raises Refused if
        full.
        """
        if self.waiting + count > self.max_waiting:
            said = f"{self.waiting} {what} wait, of {self.max_waiting}; try again"
            # Even an idle server has too little capacity, so a retry is useless: the status is 413.
            raise Refused(503 if count <= self.max_waiting else 413, said)
        self.waiting += count
        try:
            yield
        finally:
            self.waiting -= count

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Read a request body, whose size counts in `held` during the ``with`` block."""
        from starlette.requests import ClientDisconnect

        found = bytearray()
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS), aclosing(request.stream()) as parts:
                    async for part in parts:
                        if self.held + len(part) > MOST_HELD:
                            raise Refused(503, f"{self.held} bytes of requests are held; try again")
                        self.held += len(part)
                        found += part
                        if len(found) > self.most_bytes:
                            most = f"a body of more than {self.most_bytes} bytes"
                            raise Refused(413, f"{most}; send less at a time")
            except ClientDisconnect as error:
                raise ConnectionResetError from error
            except TimeoutError as error:
                raise Refused(408, f"the body did not arrive in {BODY_SECONDS:g} s") from error
            yield bytes(found)
        finally:
            self.held -= len(found)

    def _check(self, scope: Scope) -> None:
        """Refuse requests that lack the token, and requests that a browser sends for a web page.

        For the content types of HTML forms, a web page may send a cross-origin POST without a
        preflight request. With DNS rebinding, a web page could even read the response.
        """
        # Starlette's TrustedHostMiddleware supports neither IPv6 addresses nor tokens.
        from starlette.datastructures import Headers as RequestHeaders

        scope["path"] = scope["path"].rstrip("/") or "/"
        headers = RequestHeaders(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        # A web page cannot know the token, so with a token any Host header is accepted.
        # Without a token, the Host header must name this machine.
        if self.token is None and host is not None and _name_of(host) not in LOOPBACK:
            raise Refused(403, f"Host: accepted: {', '.join(LOOPBACK)}, without a token")
        if origin is not None and (host is None or _netloc(origin) != host):
            raise Refused(403, "Origin: accepted: none, or that of this server")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != self.body_type:
            raise Refused(415, f"Content-Type: accepted: {self.body_type}")
        self.authorize(scope, headers)

    def authorize(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request that does not have the token."""
        if self.token is not None and (scope["method"], scope["path"]) != ("GET", "/health"):
            given = headers.get("authorization", "").encode("latin-1")
            # The time of a comparison by == would reveal how many leading bytes are right.
            if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                raise Refused(401, "the header Authorization: Bearer TOKEN is missing, or wrong")

    async def _health(self, request: Request) -> Response:
        return json_response(self.health())

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        lines = ["# TYPE assay_requests_total counter"]
        for status, number in self.answered.items():
            lines.append(f'assay_requests_total{{status="{status}"}} {number}')
        lines += ["# TYPE assay_waiting gauge", f"assay_waiting {self.waiting}", *self.counts()]
        text = "".join(f"{line}\n" for line in lines)
        return Response(text, headers={"content-type": "text/plain; version=0.0.4"})

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()


def _name_of(host: str) -> str:
    """Return the name or address in a Host header without the port; "" if malformed."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def _netloc(origin: str) -> str | None:
    """Return host and port of an Origin header; None for a malformed header."""
    with suppress(ValueError):
        return urlsplit(origin).netloc
    return None


async def while_there(
    receive: Receive, work: Coroutine[Any, Any, Found], seconds: float | None = None
) -> Found:
    """Await ``work`` as long as the client is connected, and return the result.

    Cancels the work and raises ConnectionResetError if the client disconnects; raises TimeoutError
    after ``seconds``.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=first)
        if working.done():
            return working.result()
        raise ConnectionResetError if leaving.done() else TimeoutError
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            # The canceled task is awaited, so that it closes its resources before the request ends.
            await asyncio.wait([working])


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
