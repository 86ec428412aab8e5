"""What Assay's servers share: an ASGI application without a framework, its bounds and its socket.

    GET /health    whether there are answers; needs no token
    GET /metrics   counts, in the text format of Prometheus

What can wait is bounded: a request that finds no room is refused at once (503, Retry-After), so
that memory stays as it is. The work of a client that has gone is given up. A web page cannot use a
server of this machine: Host, Origin and the content type are checked.
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

MOST_BYTES = 32 * 2**20  # of a request
MOST_HELD = 8 * MOST_BYTES  # of all requests whose work is under way
BODY_SECONDS = 60.0  # for the whole of a request to arrive
SEND_SECONDS = 60.0  # for a client to read a part of a response
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Found = TypeVar("Found")
Headers = tuple[tuple[bytes, bytes], ...]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON: Headers = ((b"content-type", b"application/json"),)
TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4"),)


class Refused(Exception):
    """A request that is answered with a complaint. status: of HTTP."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What is sent for a request. headers: without the length."""

    raw: bytes
    headers: Headers = JSON
    status: int = 200

    @classmethod
    def of(cls, value: Any, status: int = 200, *more: tuple[bytes, bytes]) -> Answer:
        """Return the answer that is a value as JSON."""
        raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return cls(raw, (*JSON, *more), status)


class Server:
    """An application that answers under a token and within bounds; what it answers, a class below
    says.

    token: what requests must carry; None: they need none. max_waiting: of the unit that `room`
    counts.
    """

    def __init__(self, token: str | None, max_waiting: int) -> None:
        self.token = token
        self.max_waiting = max_waiting
        self.waiting = 0
        self.held = 0  # bytes of bodies
        self.answered: Counter[int] = Counter()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or live as long as the server does."""
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
            return  # nobody reads what we would say
        except Exception as error:  # a defect: the others are answered as before
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
        """Return what is sent; None where it was sent already. Raises Refused."""
        raise NotImplementedError

    def health(self) -> dict[str, Any]:
        """Return what /health says; raises Refused where there are no answers."""
        return {"status": "ok", "waiting": self.waiting}

    def counts(self) -> Iterator[str]:
        """Yield the lines of /metrics that are this server's own."""
        yield from ()

    def complaint(self, said: str) -> dict[str, Any]:
        """Return the body of a refusal."""
        return {"error": said}

    async def close(self) -> None:
        """Close what is open, when the server ends."""

    @contextmanager
    def room(self, count: int, what: str) -> Iterator[None]:
        """Take room for so many meanwhile; raises Refused where there is none."""
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
        """Refuse the requests that a browser sends for a web page.

        A page may send POST without asking where its content type is that of a form, and by a name
        of its own that leads to this machine it may even read the reply.
        """
        host, origin = headers.get(b"host"), headers.get(b"origin")
        # A token is known to no page; without one, only the names of this machine are ours.
        if self.token is None and host is not None and _name_of(host) not in LOOPBACK:
            raise Refused(403, f"Host: accepted: {', '.join(LOOPBACK)}, where there is no token")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refused(403, "Origin: accepted: none, or that of this server")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            raise Refused(415, "Content-Type: accepted: application/json")

    @asynccontextmanager
    async def body(self, receive: Receive) -> AsyncIterator[bytes]:
        """Yield a request's body, which counts as held meanwhile; raises Refused."""
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
    """Return the name or address in a Host header, without its port; "" where there is none."""
    with suppress(ValueError):
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    return ""


def _patient(send: Send) -> Send:
    """Return a way to send that gives a client up who takes nothing: ConnectionResetError."""

    async def sent(event: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await send(event)
        except TimeoutError:
            raise ConnectionResetError from None

    return sent


async def whole_body(receive: Receive, hold: Callable[[int], None] = lambda more: None) -> bytes:
    """Return a request's body; raises Refused for one that is too large, or does not arrive.

    hold: is given the bytes of each part, and may refuse them.
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
    """Return what some work gives. Raises ConnectionResetError where the client leaves first, and
    TimeoutError where it takes too long; the work is cancelled then."""
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
            await asyncio.wait([working])  # it closes what it has opened


async def _left(receive: Receive) -> None:
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


def address_of(listening: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
