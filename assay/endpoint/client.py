"""Client of one OpenAI-compatible endpoint: chat completions, request dialects, budget, cost."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from assay.endpoint.costs import Budget, count, count_reply
from assay.endpoint.http_client import (
    MAX_BODY,
    Backoff,
    EndpointFailure,
    HttpClient,
    HttpReply,
    with_retries,
    without_key,
)
from assay.endpoint.replies import Reply, read_body, shown
from assay.endpoint.settings import KEEP_SECRET, Endpoint, Settings

Read = TypeVar("Read")

# Longest backoff in seconds, unless the endpoint requests another delay.
MAX_WAIT = 60.0
# HTTP status codes that are retried, in addition to every 5xx.
TRY_AGAIN = frozenset({408, 409, 425, 429})
# A server that does not support a request key answers with one of these status codes.
REFUSES_A_KEY = frozenset({400, 415, 422, 501})
REMINDER = "Your reply is read by a program: it must be one JSON object of the form asked for."


@dataclass(frozen=True, slots=True)
class Dialect:
    """Request features that an endpoint supports. The client drops an unsupported feature after the
    endpoint has rejected it.

    format: reply format, one of ``json_schema``, ``json_object`` and ``text``. tokens_key: request
    key of the completion length. temperature, system: whether the endpoint accepts a temperature
    and a system message.
    """

    format: str = "json_schema"
    tokens_key: str = "max_tokens"
    temperature: bool = True
    system: bool = True

    def simpler(self, complaint: str) -> Dialect | None:
        """Return the next simpler dialect after a rejected request; None if there is none.

        complaint: error message of the endpoint.
        """
        # OpenAI's reasoning models reject max_tokens and every temperature except the default.
        if self.tokens_key == "max_tokens" and "max_completion_tokens" in complaint:
            return replace(self, tokens_key="max_completion_tokens")
        if self.temperature and re.search(
            r"unsupported[^:]*: '?temperature|'temperature' (does not|is not)", complaint, re.I
        ):
            return replace(self, temperature=False)
        # The chat templates of some models, such as Gemma, have no system role.
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

    Each request reads the API key from the environment. The client stores no copy of the key, and
    removes the key from every response. read: parses a response body into a `Reply`.
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
        self._http = HttpClient(settings.concurrency)

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any],
        read: Callable[[Reply], Read],
        deadline: float,
        seed: str,
    ) -> tuple[Read, Reply, dict[str, Any]]:
        """Request one judgement, with retries. Raises EndpointFailure.

        Returns (result of ``read`` on the reply, reply, response body).

        deadline: time on the `time.monotonic` clock, for all attempts together.
        seed: seed of the backoff jitter.
        """

        asked = [*messages]

        def once(before: EndpointFailure | None) -> tuple[Read, Reply, dict[str, Any]]:
            if before is not None and before.reason == "error":
                # An identical request would often get the same malformed reply.
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
        """Send one request, with retries, and return the result of ``read`` on the parsed reply.

        Raises EndpointFailure. body: JSON body of a POST request; None sends a GET request.
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
        settings = self.settings
        backoff = Backoff(settings.backoff, MAX_WAIT, seed)
        try:
            return with_retries(once, backoff, deadline, settings.retries)
        except EndpointFailure as error:
            error.detail = f"{self.judge.model} at {self.judge.host}: {error.detail}"
            raise

    def _once(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], deadline: float
    ) -> tuple[Reply, dict[str, Any]]:
        # The slot is acquired before the budget, so that a waiting request reserves no money.
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
        """Send the request in the richest dialect that the endpoint accepts; return the reply."""
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
        # A simpler dialect is kept only after a success: a failure may have other causes.
        self.dialect = dialect
        return self._parsed(raw)

    def _parsed(self, raw: bytes) -> Any:
        try:
            body = json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            said = shown(self._without_key(raw.decode("utf-8", "replace")))
            raise EndpointFailure("error", f"the endpoint's reply is not JSON: {said}") from None
        return self._without_key(body)

    def _exchange(self, body: Mapping[str, Any] | None, deadline: float) -> HttpReply:
        return self._http.exchange(
            "GET" if body is None else "POST",
            self.judge.url,
            body,
            key=self.judge.key(),
            deadline=deadline,
            seconds=self.settings.timeout,
            max_body=self.max_body,
        )

    def _refused(self, status: int, headers: Mapping[str, str], said: str) -> EndpointFailure:
        if status in (401, 403):
            return EndpointFailure(
                "unavailable",
                f"HTTP {status}: the endpoint refuses the key in the environment variable "
                f"{self.judge.api_key_env}",
                retry=False,
                status=status,
            )
        again = status in TRY_AGAIN or status >= 500
        wait = _retry_after(headers) if again else None
        detail = f"HTTP {status}: {said}"
        return EndpointFailure("unavailable", detail, retry=again, wait=wait, status=status)

    def _complaint(self, raw: bytes) -> str:
        """Return the endpoint's error message, which may quote the examined text."""
        text: Any = raw.decode("utf-8", "replace")
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            error: Any = json.loads(text)["error"]
            text = error["message"] if isinstance(error, dict) else error
        return shown(self._without_key(text))

    def _without_key(self, value: Any) -> Any:
        # A placeholder such as "EMPTY", unlike a real key, may be a word of the reply.
        key = self.judge.key()
        return without_key(value, key) if len(key) >= KEEP_SECRET else value

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _reminded(turn: Mapping[str, str]) -> dict[str, str]:
    content = turn["content"].removesuffix(f"\n\n{REMINDER}")
    return {**turn, "content": f"{content}\n\n{REMINDER}"}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (number or date); None: no valid header."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
