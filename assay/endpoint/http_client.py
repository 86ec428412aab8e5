"""HTTP client of judges, teachers, verifier servers and the router's models.

`HttpClient` returns only complete replies and is thread-safe. `AsyncHttpClient` streams a reply.
Both have one time limit for everything that a request does, bound the size of a reply, and raise
`EndpointFailure`. `with_retries` repeats requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from assay.errors import VerifierError
from assay.host.imports import slow_import
from assay.types import NotJudgedReason

if TYPE_CHECKING:
    import ssl

    import httpx2

Read = TypeVar("Read")

NEEDS = "judge: needs httpx2: install it with  pip install 'assay-rl[judge]'"
# Size limit of a reply, and of one event of a stream, in bytes.
MAX_BODY = 8 * 2**20
# Length of a server's error message that the router reports, in characters.
SHOWN = 200


class EndpointFailure(Exception):
    """Failure of a request: the reason, and whether a retry may succeed.

    wait: delay in seconds that the server requests before a retry; None: no request. status: HTTP
    status of the reply; 0: there was no reply, or it could not be used.
    """

    def __init__(
        self,
        reason: NotJudgedReason,
        detail: str,
        *,
        retry: bool = True,
        wait: float | None = None,
        status: int = 0,
    ) -> None:
        super().__init__(detail)
        self.reason: NotJudgedReason = reason
        self.detail = detail
        self.retry = retry
        self.wait = wait
        self.status = status


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts, unless the server requests another: doubled each time.

    first, longest: in seconds. seed: seed of the jitter. Each delay is multiplied by a number in
    [0.5, 1) that depends on seed and attempt; None: no jitter.
    """

    first: float
    longest: float
    seed: str | None = None

    def seconds(self, attempt: int) -> float:
        """Return the delay after an attempt, counted from 1."""
        delay = min(self.longest, self.first * 2 ** (attempt - 1))
        if self.seed is None:
            return delay
        digest = hashlib.sha256(f"{self.seed} {attempt}".encode()).digest()
        return delay * (0.5 + int.from_bytes(digest[:4]) / 2**33)


def with_retries(
    once: Callable[[EndpointFailure | None], Read],
    backoff: Backoff,
    deadline: float,
    retries: int | None = None,
) -> Read:
    """Call ``once`` until it succeeds. Its argument is the failure of the previous attempt.

    deadline: time on the `time.monotonic` clock, for all attempts together. retries: maximum number
    of retries; None: only the deadline limits them. Raises EndpointFailure, whose detail says how
    often it was tried.
    """
    # A library such as tenacity would need a stop rule, a wait rule and a formatter of ours, since
    # a failure carries its own delay and the last message says which limit ended the attempts.
    failure, note = None, ""
    for attempt in count(1):
        try:
            return once(failure)
        except EndpointFailure as error:
            failure = error
        note = f" ({attempt} attempts)" if attempt > 1 and failure.retry else ""
        if not failure.retry or (retries is not None and attempt > retries):
            break
        wait = backoff.seconds(attempt) if failure.wait is None else failure.wait
        if time.monotonic() + wait >= deadline:
            note = f" (no time for another attempt in {round(wait, 2):g} s)"
            break
        time.sleep(wait)
    assert failure is not None
    detail = f"{failure.detail}{note}"
    raise EndpointFailure(failure.reason, detail, retry=False, status=failure.status)


class HttpReply(NamedTuple):
    """Status, headers and body of a reply."""

    status: int
    headers: Mapping[str, str]
    raw: bytes


class HttpClient:
    """Connections to servers. Thread-safe. A forked process opens its own connections.

    concurrency: number of connections kept open. proxies: use those of the environment, except for
    local addresses.
    """

    def __init__(self, concurrency: int, proxies: bool = True) -> None:
        self._concurrency, self._proxies = concurrency, proxies
        self._http: httpx2.Client | None = None
        self._process = 0
        # Also runs when the client is deleted, and when the process ends.
        self._close: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def exchange(
        self,
        method: str,
        url: str,
        body: Any,
        *,
        key: str,
        deadline: float,
        seconds: float,
        max_body: int = MAX_BODY,
    ) -> HttpReply:
        """Send a JSON body, None: none, and return the whole reply. Raises EndpointFailure.

        key: bearer token; "": none. seconds: time limit of this request, until ``deadline`` at
        most. max_body: size limit of the reply in bytes.
        """
        client = self._client()
        import httpx2

        limit = min(deadline, time.monotonic() + seconds)
        if time.monotonic() >= limit:
            raise EndpointFailure("timeout", "no time is left for a request", retry=False)
        try:
            with client.stream(
                method,
                url,
                content=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"} | bearer(key),
                extensions={"timeout": _TimeLeft(limit)},
            ) as response:
                chunks = bytearray()
                for chunk in response.iter_bytes():
                    chunks += chunk
                    if len(chunks) > max_body:
                        said = f"the endpoint's reply exceeds {max_body} bytes"
                        raise EndpointFailure("error", said)
                    if time.monotonic() > limit:
                        raise httpx2.ReadTimeout("")
                return HttpReply(response.status_code, response.headers, bytes(chunks))
        except httpx2.TimeoutException:
            raise EndpointFailure("timeout", f"no reply within {seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            # The message is replaced: it quotes the invalid header, which may be the key.
            said = str(without_key(str(error), key))[:SHOWN]
            cause = type(error).__name__ + (f": {said}" if said else "")
            raise EndpointFailure("unavailable", cause) from None

    def _client(self) -> httpx2.Client:
        with self._lock:
            # A forked process must not share sockets with its parent.
            if self._http is None or self._process != os.getpid():
                self._http, self._process = self._opened(), os.getpid()
                self._close = weakref.finalize(self, _close, self._http, self._process)
            return self._http

    def _opened(self) -> httpx2.Client:
        with slow_import():
            try:
                import httpx2
            except ImportError as error:
                raise VerifierError(NEEDS) from error
            return httpx2.Client(**_connection(self._concurrency), trust_env=self._proxies)

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        with self._lock:
            self._close()
            self._http = None


def _close(http: httpx2.Client, process: int) -> None:
    # A forked process inherits the call, but must not close its parent's connections.
    if process == os.getpid():
        http.close()


class _TimeLeft(dict[str, float]):
    """Timeouts that share one limit. Each phase of a request gets the remaining time.

    httpx2 applies its own timeouts to each phase separately, so that a request could take several
    times as long.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def get(self, key: str, default: Any = None) -> float:  # type: ignore[override]
        """Return the seconds until the limit."""
        return max(0.001, self._limit - time.monotonic())


class AsyncHttpClient:
    """Connections to one server in an event loop.

    seconds: timeout of a complete reply, or of the next event of a stream.
    """

    def __init__(self, concurrency: int, seconds: float) -> None:
        import httpx2

        self.seconds = seconds
        self._http = httpx2.AsyncClient(**_connection(concurrency))

    @asynccontextmanager
    async def asking(self, url: str, body: Any, key: str) -> AsyncGenerator[ReplyStream]:
        """Send a JSON body; the context manager yields the reply stream.

        Raises EndpointFailure, also while the ``with`` block reads the stream.
        """
        import httpx2

        clock = Clock(self.seconds)
        try:
            async with AsyncExitStack() as stack:
                asked = self._http.stream(
                    "POST", url, json=body, headers=bearer(key), timeout=self.seconds
                )
                async with clock.running():
                    response = await stack.enter_async_context(asked)
                reply, status = ReplyStream(response, clock), response.status_code
                if status != 200:
                    said = without_key((await reply.whole()).decode("utf-8", "replace"), key)
                    detail = f"HTTP {status}: {said[:SHOWN]}"
                    raise EndpointFailure("unavailable", detail, status=status)
                yield reply
        except (httpx2.TimeoutException, TimeoutError) as error:
            name = "ReadTimeout" if isinstance(error, TimeoutError) else type(error).__name__
            raise EndpointFailure("timeout", f"{name}: no data for {self.seconds:g} s") from error
        except (httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError) as error:
            said = without_key(str(error), key)[:SHOWN]
            raise EndpointFailure("unavailable", f"{type(error).__name__}: {said}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class Clock:
    """Timeout for a server's next complete reply or event. Partial data does not reset it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.wind()

    def wind(self) -> None:
        """Reset the timeout."""
        self._end = asyncio.get_running_loop().time() + self._seconds

    def running(self) -> asyncio.Timeout:
        """Return a context manager that raises TimeoutError when the time is up."""
        return asyncio.timeout_at(self._end)


class ReplyStream:
    """A reply as it arrives."""

    def __init__(self, response: httpx2.Response, clock: Clock) -> None:
        self._response, self._clock = response, clock

    async def whole(self) -> bytes:
        """Return the body."""
        found = bytearray()
        async for chunk in self._chunks():
            found += chunk
            if len(found) > MAX_BODY:
                raise EndpointFailure("error", f"a reply of more than {MAX_BODY} bytes")
        return bytes(found)

    async def events(self) -> AsyncGenerator[tuple[bytes, Any]]:
        """Yield each event of a stream as (raw bytes, parsed JSON); None if it is not JSON."""
        pending, data = b"", b""
        async for chunk in self._chunks():
            *events, pending = re.split(rb"\r?\n\r?\n", pending + chunk)
            if len(pending) > MAX_BODY:
                raise EndpointFailure("error", f"an event of more than {MAX_BODY} bytes")
            for event in events:
                lines = (line.partition(b":") for line in event.splitlines())
                data = (
                    b"".join(value.strip() for name, _, value in lines if name == b"data") or data
                )
                said = json.loads(data) if b"{" in data[:1] else None
                yield event + b"\n\n", said
                if said is not None:
                    # The timeout restarts after the event was forwarded, so that a slow client's
                    # time does not count.
                    self._clock.wind()
        if data != b"[DONE]":
            raise EndpointFailure("error", "the stream ended before its [DONE]")

    async def _chunks(self) -> AsyncGenerator[bytes]:
        async with aclosing(self._response.aiter_bytes()) as chunks:
            while True:
                try:
                    async with self._clock.running():
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                yield chunk


def _connection(concurrency: int) -> dict[str, Any]:
    """Return the settings of an httpx2 client. Local addresses bypass proxies."""
    import httpx2

    limits = httpx2.Limits(max_keepalive_connections=concurrency)
    no_proxy = {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}
    known = {"verify": certificates(), "limits": limits, "mounts": no_proxy}
    return {**known, "follow_redirects": False}


@cache
def certificates() -> ssl.SSLContext:
    """Return the trusted certificates."""
    import httpx2

    # Cached, because loading them takes longer than a reply.
    return httpx2.create_ssl_context()


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def without_key(value: Any, key: str) -> Any:
    """Replace a key in all texts of a JSON value, so that messages and logs do not contain it."""
    if not key:
        return value
    if isinstance(value, str):
        return value.replace(key, "[key]")
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {name.replace(key, "[key]"): without_key(each, key) for name, each in table.items()}
    if isinstance(value, list):
        return [without_key(each, key) for each in cast("list[Any]", value)]
    return value
