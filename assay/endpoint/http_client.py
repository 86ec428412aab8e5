"""HTTP client of judges, teachers, verifier servers and the router's models.

`HttpClient` returns complete replies and is thread-safe. `AsyncHttpClient` streams a reply.
Both clients limit the time and the size of a reply, and raise `EndpointFailure`. `with_retries`
repeats failed requests.
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
# Size limit of a reply, and of one event of a reply stream, in bytes.
MAX_BODY = 8 * 2**20
# Length of a server's message that an error quotes, in characters.
SHOWN = 200


class EndpointFailure(Exception):
    """Failure of a request: the reason, and whether a retry may succeed.

    wait: seconds that the server asks a client to wait before a retry; None: not specified.
    status: HTTP status of the reply; 0: no reply, or an unusable reply.
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
    """Exponential backoff: the delay doubles after each attempt, unless the server sets a delay.

    first, longest: first and maximum delay in seconds. seed: seed of the jitter; None: no jitter.
    The jitter multiplies each delay by a number in [0.5, 1).
    """

    first: float
    longest: float
    seed: str | None = None

    def seconds(self, attempt: int) -> float:
        """Return the delay after an attempt, counted from 1."""
        delay = min(self.longest, self.first * 2 ** (attempt - 1))
        if self.seed is None:
            return delay
        # A hash replaces `random`, so that equal seeds give equal delays without a shared state.
        digest = hashlib.sha256(f"{self.seed} {attempt}".encode()).digest()
        return delay * (0.5 + int.from_bytes(digest[:4]) / 2**33)


def with_retries(
    once: Callable[[EndpointFailure | None], Read],
    backoff: Backoff,
    deadline: float,
    retries: int | None = None,
) -> Read:
    """Call ``once`` until a call succeeds or a limit is reached. Raises EndpointFailure.

    The detail of the raised error contains the number of attempts.

    once: receives the failure of the previous attempt, or None in the first attempt.
    deadline: time on the `time.monotonic` clock, for all attempts together.
    retries: maximum number of retries; None: only the deadline limits the number.
    """
    # Why not the library tenacity: it would need a custom stop rule, wait rule and message.
    # A custom rule is needed for a delay that the server requests.
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
    """Connections to servers. Thread-safe. A forked process opens its own connections, because
    sockets cannot be shared with its parent.

    concurrency: number of idle connections that stay open. proxies: whether requests to other
    machines use the proxies of the environment.
    """

    def __init__(self, concurrency: int, proxies: bool = True) -> None:
        self._concurrency, self._proxies = concurrency, proxies
        self._http: httpx2.Client | None = None
        self._process = 0
        # `_client` sets a finalizer here, which also runs when the client is deleted.
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
        """Send a request and return the whole reply. Raises EndpointFailure.

        body: JSON value; None: no body. key: bearer token; "": no token. deadline: latest end of
        the request, on the `time.monotonic` clock. seconds: time limit of the request. max_body:
        size limit of the reply in bytes.
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
                    # `iter_bytes` decompresses, so even a small reply could fill the memory.
                    if len(chunks) > max_body:
                        said = f"the endpoint's reply exceeds {max_body} bytes"
                        raise EndpointFailure("error", said)
                    # httpx2 applies the read timeout to each chunk, not to the reply.
                    if time.monotonic() > limit:
                        raise httpx2.ReadTimeout("")
                return HttpReply(response.status_code, response.headers, bytes(chunks))
        except httpx2.TimeoutException:
            raise EndpointFailure("timeout", f"no reply within {seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            # The library's error about an invalid header quotes the header, which contains the key.
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
        """Close the connections. Close the idle connections; the next request opens new
        connections."""
        with self._lock:
            self._close()
            self._http = None


def _close(http: httpx2.Client, process: int) -> None:
    # A forked process inherits this finalizer, but must not close its parent's connections.
    if process == os.getpid():
        http.close()


class _TimeLeft(dict[str, float]):
    """Timeouts of a request that share one deadline: each phase gets the remaining time.

    httpx2 applies its own timeouts to each phase (connect, write, read) separately, so a request
    could take several times as long.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def get(self, key: str, default: Any = None) -> float:  # type: ignore[override]
        """Return the seconds until the request's deadline, as the timeout of any phase."""
        # A socket timeout of 0 means non-blocking mode, not an immediate timeout.
        return max(0.001, self._limit - time.monotonic())


class AsyncHttpClient:
    """Connections to one server in an event loop.

    seconds: timeout for a complete reply, or for each event of a reply stream.
    """

    def __init__(self, concurrency: int, seconds: float) -> None:
        import httpx2

        self.seconds = seconds
        self._http = httpx2.AsyncClient(**_connection(concurrency))

    @asynccontextmanager
    async def asking(self, url: str, body: Any, key: str) -> AsyncGenerator[ReplyStream]:
        """Send a JSON body. The context manager yields the reply stream.

        Raises EndpointFailure, also while the ``with`` block reads the reply stream.
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
    """Timeout for a server's next reply or event. Partial data does not restart the timeout."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.wind()

    def wind(self) -> None:
        """Restart the timeout."""
        self._end = asyncio.get_running_loop().time() + self._seconds

    def running(self) -> asyncio.Timeout:
        """Return a context manager that raises TimeoutError when the timeout expires."""
        return asyncio.timeout_at(self._end)


class ReplyStream:
    """Reader of a reply while its data arrives."""

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
        """Yield each server-sent event as (raw bytes, JSON object).

        The object is None for an event without a JSON object. Raises EndpointFailure.
        """
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
                    # Restart the timeout after the yield: a slow client's time does not count.
                    self._clock.wind()
        # Without this check, a connection that breaks between events would look complete.
        if data != b"[DONE]":
            raise EndpointFailure("error", "the stream ended before its [DONE]")

    async def _chunks(self) -> AsyncGenerator[bytes]:
        async with aclosing(self._response.aiter_bytes()) as chunks:
            while True:
                try:
                    # A timeout around the yield would interrupt the chunks' reader.
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

    # Loading the certificates takes longer than a local server's reply, hence the cache.
    return httpx2.create_ssl_context()


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def without_key(value: Any, key: str) -> Any:
    """Replace an API key in all strings of a JSON value, to keep it out of messages and logs."""
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
