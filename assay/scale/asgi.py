"""Base of Assay's HTTP servers: an ASGI application without a framework, its limits, its socket.

    GET /health    whether the server can answer; needs no token
    GET /metrics   counters, in the text format of Prometheus

The number of waiting requests is bounded. A full server refuses requests at once (503,
Retry-After), so its memory stays bounded. The work for a disconnected client is canceled. Web pages
cannot use a server on localhost, because Host, Origin and the content type are checked.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from assay.errors import UserError, cause, message
from assay.host.terminal import warn

# Maximum size of a request body, in bytes.
MOST_BYTES = 32 * 2**20
# Maximum size of all request bodies in progress together, in bytes.
MOST_HELD = 8 * MOST_BYTES
# Time limit for a complete request to arrive.
BODY_SECONDS = 60.0
# Time limit for a client to read one part of a response.
SEND_SECONDS = 60.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Found = TypeVar("Found")
Headers = tuple[tuple[bytes, bytes], ...]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON: Headers = ((b"content-type", b"application/json"),)
TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4"),)


class Refused(Exception):
    """A refused request. status: HTTP status of the error response."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """A response. headers: all headers except the content length."""

    raw: bytes
    headers: Headers = JSON
    status: int = 200

    @classmethod
    def of(cls, value: Any, status: int = 200, *more: tuple[bytes, bytes]) -> Answer:
        """Encode a value as a JSON response with additional headers."""
        raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return cls(raw, (*JSON, *more), status)


class Server:
    """Base class of an ASGI application with authentication and limits. Subclasses respond.

    token: bearer token that requests must carry; None: no authentication. max_waiting: limit of
    the units that `room` counts.
    """

    def __init__(self, token: str | None, max_waiting: int) -> None:
        self.token = token
        self.max_waiting = max_waiting
        self.waiting = 0
        # Total size of the request bodies in progress, in bytes.
        self.held = 0
        self.answered: Counter[int] = Counter()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan events of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        if scope["type"] != "http":
            return
        send = _patient(send)
        try:
            answer = await self._answer(scope, receive, send)
        except Refused as refused:
            again = ((b"retry-after", b"1"),) if refused.status == 503 else ()
            answer = Answer.of(self.complaint(str(refused)), refused.status, *again)
        except ConnectionResetError:
            # The client has disconnected, so there is no reader for a response.
            return
        except Exception as error:  # a defect in one request must not stop the server
            warn(f"a request failed: {cause(error)}")
            answer = Answer.of(self.complaint("this request failed; see the server's log"), 500)
        self.answered[answer.status if answer else 200] += 1
        if answer is not None:
            length = (b"content-length", str(len(answer.raw)).encode())
            headers = [*answer.headers, length]
            start = {"type": "http.response.start", "status": answer.status, "headers": headers}
            with suppress(OSError):
                await send(start)
                await send({"type": "http.response.body", "body": answer.raw})

    async def respond(
        self, method: str, path: str, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> Answer | None:
        """Handle a request. Returns None if the response was already sent. Raises Refused."""
        raise NotImplementedError

    def health(self) -> dict[str, Any]:
        """Return the body of /health. Raises Refused if the server cannot answer."""
        return {"status": "ok", "waiting": self.waiting}

    def counts(self) -> Iterator[str]:
        """Yield the server-specific lines of /metrics."""
        yield from ()

    def complaint(self, said: str) -> dict[str, Any]:
        """Format the body of an error response."""
        return {"error": said}

    async def close(self) -> None:
        """Release resources when the server stops."""

    @contextmanager
    def room(self, count: int, what: str) -> Iterator[None]:
        """Reserve capacity for ``count`` units inside a ``with`` block. Raises Refused if full."""
        if self.waiting + count > self.max_waiting:
            said = f"{self.waiting} {what} wait, of {self.max_waiting}; try again"
            raise Refused(503 if count <= self.max_waiting else 413, said)
        self.waiting += count
        try:
            yield
        finally:
            self.waiting -= count

    async def _answer(
        self, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> Answer | None:
        method, path = scope["method"], scope["path"].rstrip("/") or "/"
        self._check_page(method, dict(scope["headers"]))
        if (method, path) == ("GET", "/health"):
            return Answer.of(self.health())
        self._check_token(scope)
        if (method, path) == ("GET", "/metrics"):
            return Answer("".join(f"{line}\n" for line in self._metrics()).encode(), TEXT)
        return await self.respond(method, path, scope, receive, send)

    def _check_page(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse requests that a browser sends for a web page.

        A page may send a cross-origin POST without a preflight request if the content type is that
        of a form. With DNS rebinding, it could even read the response.
        """
        host, origin = headers.get(b"host"), headers.get(b"origin")
        # No page knows the token. Without a token, only names of this machine are accepted.
        if self.token is None and host is not None and _name_of(host) not in LOOPBACK:
            raise Refused(403, f"Host: accepted: {', '.join(LOOPBACK)}, where there is no token")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refused(403, "Origin: accepted: none, or that of this server")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            raise Refused(415, "Content-Type: accepted: application/json")

    @asynccontextmanager
    async def body(self, receive: Receive) -> AsyncIterator[bytes]:
        """Read a request body, counted in `held` inside the ``with`` block. Raises Refused."""
        size = 0

        def hold(more: int) -> None:
            nonlocal size
            if self.held + more > MOST_HELD:
                raise Refused(503, f"{self.held} bytes of requests are held; try again")
            size += more
            self.held += more

        try:
            yield await whole_body(receive, hold)
        finally:
            self.held -= size

    def _check_token(self, scope: Mapping[str, Any]) -> None:
        if self.token is None:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            raise Refused(401, "the header Authorization: Bearer TOKEN is missing, or wrong")

    def _metrics(self) -> Iterator[str]:
        yield "# TYPE assay_requests_total counter"
        for status, number in self.answered.items():
            yield f'assay_requests_total{{status="{status}"}} {number}'
        yield "# TYPE assay_waiting gauge"
        yield f"assay_waiting {self.waiting}"
        yield from self.counts()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return


def _name_of(host: bytes) -> str:
    """Extract the name or address from a Host header, without the port; "" if it has none."""
    with suppress(ValueError):
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    return ""


def _patient(send: Send) -> Send:
    """Wrap ``send`` with a timeout. A client that does not read raises ConnectionResetError."""

    async def sent(event: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await send(event)
        except TimeoutError:
            raise ConnectionResetError from None

    return sent


async def whole_body(receive: Receive, hold: Callable[[int], None] = lambda more: None) -> bytes:
    """Read a request body. Raises Refused if it is too large or does not arrive in time.

    hold: callback for the size of each part in bytes; may raise Refused.
    """
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise ConnectionResetError
                part = event.get("body", b"")
                hold(len(part))
                found += part
                if len(found) > MOST_BYTES:
                    said = f"a body of more than {MOST_BYTES} bytes; send less at a time"
                    raise Refused(413, said)
                if not event.get("more_body"):
                    return bytes(found)
    except TimeoutError as error:
        raise Refused(408, f"the body did not arrive in {BODY_SECONDS:g} s") from error


async def while_there(
    receive: Receive, work: Coroutine[Any, Any, Found], seconds: float | None = None
) -> Found:
    """Await ``work`` while the client is connected. Returns its result.

    Cancels the work and raises ConnectionResetError if the client disconnects, or TimeoutError
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
            # The canceled task still closes its resources.
            await asyncio.wait([working])


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """Open a listening socket. Raises UserError, also for a public address without a token."""
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


def address_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
