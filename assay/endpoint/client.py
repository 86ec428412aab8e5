"""Client of one OpenAI-compatible endpoint, with retries and a deadline."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from assay.endpoint.costs import Budget, count, count_reply
from assay.endpoint.replies import EndpointFailure, Reply, read_body, shown
from assay.endpoint.settings import KEEP_SECRET, NEEDS, Endpoint, Settings
from assay.errors import VerifierError
from assay.host.imports import slow_import

if TYPE_CHECKING:
    import ssl

    import httpx2

Read = TypeVar("Read")

# Size limit of a reply in bytes.
MAX_BODY = 8 * 2**20
# Longest backoff in seconds, unless the endpoint requests another delay.
MAX_WAIT = 60.0
# Status codes that are retried, in addition to every 5xx.
TRY_AGAIN = frozenset({408, 409, 425, 429})
REFUSES_A_KEY = frozenset({400, 415, 422, 501})
REMINDER = "Your reply is read by a program: it must be one JSON object of the form asked for."


@dataclass(frozen=True, slots=True)
class Dialect:
    """Request features that the endpoint supports. A rejected request is retried with fewer.

    format: reply format: ``json_schema``, ``json_object`` or ``text``.
    """

    format: str = "json_schema"
    tokens_key: str = "max_tokens"
    temperature: bool = True
    system: bool = True

    def simpler(self, complaint: str) -> Dialect | None:
        """Return the next simpler dialect after a rejected request; None: none is left."""
        if self.tokens_key == "max_tokens" and "max_completion_tokens" in complaint:
            return replace(self, tokens_key="max_completion_tokens")
        if self.temperature and re.search(
            r"unsupported[^:]*: '?temperature|'temperature' (does not|is not)", complaint, re.I
        ):
            return replace(self, temperature=False)
        if self.system and re.search(r"system role|role[^a-z]{1,3}system", complaint, re.I):
            return replace(self, system=False)
        if self.format == "json_schema":
            return replace(self, format="json_object")
        return replace(self, format="text") if self.format == "json_object" else None

    def body(
        self, judge: Endpoint, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the request body."""
        turns = [dict(turn) for turn in messages]
        if not self.system and turns[0]["role"] == "system":
            turns[1]["content"] = f"{turns[0]['content']}\n\n{turns[1]['content']}"
            del turns[0]
        body: dict[str, Any] = {
            "model": judge.model,
            "messages": turns,
            self.tokens_key: judge.max_tokens,
        }
        if self.temperature:
            body["temperature"] = judge.temperature
        if self.format == "json_schema":
            form = {"name": "verdict", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        elif self.format == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body | json.loads(judge.request)


class EndpointClient:
    """Client of one judge. Thread-safe, with at most ``concurrency`` simultaneous requests.

    Each request reads the API key from the environment. The client stores no copy, and removes the
    key from everything that the endpoint returns. read: parses a response body into a reply.
    """

    def __init__(
        self,
        judge: Endpoint,
        settings: Settings,
        budget: Budget,
        read: Callable[[Any], Reply] = read_body,
    ) -> None:
        self.judge = judge
        self.settings = settings
        self.budget = budget
        self._read = read
        self.dialect = Dialect()
        self.max_body = MAX_BODY
        self._slots = threading.BoundedSemaphore(settings.concurrency)
        self._http: httpx2.Client | None = None
        self._process = 0
        self._lock = threading.Lock()

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any],
        read: Callable[[Reply], Read],
        deadline: float,
        seed: str,
    ) -> tuple[Read, Reply, dict[str, Any]]:
        """Ask for a judgement with retries. Raises EndpointFailure.

        Returns the result of ``read`` on the reply, the reply, and the response body.

        deadline: time on the `time.monotonic` clock, for all attempts together.
        seed: seed of the backoff jitter.
        """

        asked = [*messages]

        def once(before: EndpointFailure | None) -> tuple[Read, Reply, dict[str, Any]]:
            if before is not None and before.reason == "error":
                # An identical request would often get an identical reply.
                asked[-1] = _reminded(asked[-1])
            try:
                reply, body = self._once(asked, schema, deadline)
                try:
                    return read(reply), reply, body
                except EndpointFailure as error:
                    if schema and self.dialect.format != "json_schema":
                        error.detail += " (the endpoint refused the schema of the reply)"
                    raise
            except EndpointFailure:
                count(self.judge.model, failures=1)
                raise

        return self._tried(once, deadline, seed)

    def send(
        self,
        body: Mapping[str, Any] | None,
        read: Callable[[Any], Read],
        deadline: float,
        seed: str,
    ) -> Read:
        """Send a body and return the result of ``read`` on the answer.

        Raises EndpointFailure as `ask` does. body: None: send a GET request.
        """

        def once(_: EndpointFailure | None) -> Read:
            status, headers, raw = self._exchange(body, deadline)
            if status != 200:
                raise self._refused(status, headers, self._complaint(raw))
            return read(self._parsed(raw))

        return self._tried(once, deadline, seed)

    def _tried(
        self, once: Callable[[EndpointFailure | None], Read], deadline: float, seed: str
    ) -> Read:
        """Call ``once`` with retries. Its argument is the failure of the previous attempt."""
        trouble: EndpointFailure | None = None
        for attempt in range(self.settings.retries + 1):
            if trouble is not None:
                self._wait(trouble, attempt, deadline, seed)
            try:
                return once(trouble)
            except EndpointFailure as error:
                trouble = error
                if not error.retry:
                    break
        assert trouble is not None
        num = self.settings.retries + 1 if trouble.retry else 1
        times = f" ({num} attempts)" if num > 1 else ""
        raise EndpointFailure(trouble.reason, f"{self._name}: {trouble.detail}{times}", retry=False)

    @property
    def _name(self) -> str:
        return f"{self.judge.model} at {self.judge.host}"

    def _wait(self, trouble: EndpointFailure, attempt: int, deadline: float, seed: str) -> None:
        seconds = trouble.wait
        if seconds is None:
            digest = hashlib.sha256(f"{seed} {attempt}".encode()).digest()
            # Jitter in [0.5, 1), a function of seed and attempt.
            jitter = 0.5 + int.from_bytes(digest[:4]) / 2**33
            seconds = min(MAX_WAIT, self.settings.backoff * 2 ** (attempt - 1)) * jitter
        if time.monotonic() + seconds >= deadline:
            raise EndpointFailure(
                trouble.reason,
                f"{self._name}: {trouble.detail} (no time for another attempt in {seconds:.0f} s)",
                retry=False,
            )
        time.sleep(seconds)

    def _once(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], deadline: float
    ) -> tuple[Reply, dict[str, Any]]:
        if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise EndpointFailure("timeout", "no request slot came free in time", retry=False)
        try:
            chars = sum(len(turn["content"]) for turn in messages)
            with self.budget.request(self.judge, chars) as expenses:
                body = self._answer(messages, schema, deadline)
                size = len(json.dumps(body))
                expenses.append(count_reply(self.judge, body, chars, size))
                count(self.judge.model, unstructured=self.dialect.format != "json_schema")
                return self._read(body), cast("dict[str, Any]", body)
        finally:
            self._slots.release()

    def _answer(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], deadline: float
    ) -> Any:
        """Return the parsed body of a 200, in the richest dialect that the endpoint accepts."""
        dialect = self.dialect
        while True:
            body = dialect.body(self.judge, messages, schema)
            status, headers, raw = self._exchange(body, deadline)
            if status == 200:
                break
            said = self._complaint(raw)
            simpler = dialect.simpler(said) if status in REFUSES_A_KEY else None
            if simpler is None:
                raise self._refused(status, headers, said)
            dialect = simpler
        self.dialect = dialect
        return self._parsed(raw)

    def _parsed(self, raw: bytes) -> Any:
        try:
            body = json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            said = shown(self._without_key(raw.decode("utf-8", "replace")))
            raise EndpointFailure("error", f"the endpoint's reply is not JSON: {said}") from None
        return self._without_key(body)

    def _exchange(
        self, body: Mapping[str, Any] | None, deadline: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        client = self._client()
        import httpx2

        limit = min(deadline, time.monotonic() + self.settings.timeout)
        if time.monotonic() >= limit:
            raise EndpointFailure("timeout", "no time is left for a request", retry=False)
        key = self.judge.key()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        content = None if body is None else json.dumps(body).encode()
        try:
            with client.stream(
                "GET" if body is None else "POST",
                self.judge.url,
                content=content,
                headers=headers,
                extensions={"timeout": _TimeLeft(limit)},
            ) as response:
                chunks = bytearray()
                for chunk in response.iter_bytes():
                    chunks += chunk
                    if len(chunks) > self.max_body:
                        raise EndpointFailure(
                            "error", f"the endpoint's reply exceeds {self.max_body} bytes"
                        )
                    if time.monotonic() > limit:
                        raise httpx2.ReadTimeout("")
                return response.status_code, response.headers, bytes(chunks)
        except httpx2.TimeoutException:
            seconds = f"{self.settings.timeout:g} s"
            raise EndpointFailure("timeout", f"no reply within {seconds}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            said = str(self._without_key(str(error)))[:200]
            cause = type(error).__name__ + (f": {said}" if said else "")
            raise EndpointFailure("unavailable", cause) from None

    def _client(self) -> httpx2.Client:
        with self._lock:
            # A forked process must not share sockets with its parent.
            if self._http is None or self._process != os.getpid():
                self._http = _open_client(self.settings)
                self._process = os.getpid()
            return self._http

    def _refused(self, status: int, headers: Mapping[str, str], said: str) -> EndpointFailure:
        if status in (401, 403):
            return EndpointFailure(
                "unavailable",
                f"HTTP {status}: the endpoint refuses the key in the environment variable "
                f"{self.judge.api_key_env}",
                retry=False,
            )
        again = status in TRY_AGAIN or status >= 500
        wait = _retry_after(headers) if again else None
        return EndpointFailure("unavailable", f"HTTP {status}: {said}", retry=again, wait=wait)

    def _complaint(self, raw: bytes) -> str:
        """Return the endpoint's error message, shortened: it may quote the text under judgement."""
        text: Any = raw.decode("utf-8", "replace")
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            error: Any = json.loads(text)["error"]
            text = error["message"] if isinstance(error, dict) else error
        return shown(self._without_key(text))

    def _without_key(self, value: Any) -> Any:
        key = self.judge.key()
        return _replaced(value, key) if len(key) >= KEEP_SECRET else value

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._http is not None and self._process == os.getpid():
                self._http.close()
            self._http = None


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


def _open_client(settings: Settings) -> httpx2.Client:
    with slow_import():
        try:
            import httpx2
        except ImportError as error:
            raise VerifierError(NEEDS) from error
        return httpx2.Client(**connection(settings.concurrency))


def connection(concurrency: int) -> dict[str, Any]:
    """Return the connection settings of an httpx2 client. Local addresses bypass proxies."""
    import httpx2

    limits = httpx2.Limits(max_keepalive_connections=concurrency)
    no_proxy = {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}
    known = {"verify": certificates(), "limits": limits, "mounts": no_proxy}
    return {**known, "follow_redirects": False}


@cache
def certificates() -> ssl.SSLContext:
    """Return the trusted certificates. Cached, because loading them takes longer than a reply."""
    import httpx2

    return httpx2.create_ssl_context()


def _reminded(turn: Mapping[str, str]) -> dict[str, str]:
    content = turn["content"].removesuffix(f"\n\n{REMINDER}")
    return {**turn, "content": f"{content}\n\n{REMINDER}"}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (number or date); None: no header."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _replaced(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return value.replace(key, "[key]")
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {name.replace(key, "[key]"): _replaced(each, key) for name, each in table.items()}
    if isinstance(value, list):
        return [_replaced(each, key) for each in cast("list[Any]", value)]
    return value
