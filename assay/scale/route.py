"""Router with OpenAI's API, which sends easy requests to a cheap model and hard requests to a
strong model.

    POST /v1/chat/completions   the model name "cheap" or "strong" selects that model; for any other
                                name, such as "route", the rule decides
    GET  /v1/models             the names "route", "cheap" and "strong"

If a model fails or exceeds its timeout, the other model replies, unless a part of the reply was
already sent. The router logs each request in one line. The page /metrics counts requests by model
and reason.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.endpoint.costs import CHARS_PER_TOKEN
from assay.endpoint.http_client import SHOWN, AsyncHttpClient, EndpointFailure
from assay.endpoint.replies import read_usage
from assay.host.terminal import say
from assay.scale.http_server import Refused, Server, json_response, while_there
from assay.scale.route_config import RouteConfig, UpstreamConfig, hardness, prompt_of
from assay.verify.service import VerifierService

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from assay.scale.http_server import Endpoint

CHEAP, STRONG, ROUTE = "cheap", "strong", "route"
# Status codes of invalid requests, which the other model would refuse as well.
REFUSED = (400, 413, 422)
COUNTS = ("calls", "failures", "estimated", "input_tokens", "output_tokens", "cost", "seconds")


@dataclass
class RoutedCall:
    """One request to a model, with the reason for the choice and the result.

    reason: ``easy`` or ``hard`` (the rule's decision), ``tried`` (cheap reply that the rule
    discarded), ``unsure`` (strong reply after a discarded cheap reply), ``unknown`` (the rule
    failed), ``fallback`` (the other model failed), ``named`` (the client's choice).
    chars: number of characters in the prompt and in the reply.
    """

    model: str
    reason: str
    chars: tuple[int, int]
    usage: tuple[int | None, int | None] = (None, None)
    trouble: str = ""
    seconds: float = 0.0

    def add(self, said: Any, part: str) -> None:
        """Count the tokens and characters of a model's reply. Raises EndpointFailure if the reply
        is invalid.

        part: ``message`` for a whole reply; ``delta`` for one event of a streamed reply.
        """
        if not _is_reply(said, part):
            raise EndpointFailure("error", f"an invalid reply: {json.dumps(said)[:SHOWN]}")
        usage = read_usage(said)
        if usage.input_tokens is not None:
            self.usage = (usage.input_tokens, usage.output_tokens)
        written = 0
        for choice in said["choices"]:
            content = (choice.get(part) or {}).get("content")
            written += len(content) if isinstance(content, str) else 0
        self.chars = (self.chars[0], self.chars[1] + written)

    def facts(self, upstream: Upstream) -> dict[str, float]:
        """Return the values of `COUNTS`. Token counts are estimated if the server of the model sent
        none.

        For a call that failed before its first output, no tokens are counted.
        """
        guess = [-(-chars // CHARS_PER_TOKEN) for chars in self.chars]
        guess = [0, 0] if self.trouble and not self.chars[1] else guess
        read, written = (g if u is None else u for u, g in zip(self.usage, guess, strict=True))
        cost, estimated = upstream.endpoint.cost(read, written), None in self.usage and any(guess)
        figures = (1, bool(self.trouble), estimated, read, written, cost, round(self.seconds, 4))
        return dict(zip(COUNTS, figures, strict=True))


class Upstream:
    """One of the two models, with its endpoint and settings."""

    def __init__(self, name: str, config: UpstreamConfig) -> None:
        self.config = config
        self.endpoint = config.endpoint(name)
        self.client = AsyncHttpClient(256, config.timeout)

    async def pieces(self, call: RoutedCall, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the whole reply of the model, or the events of a streamed reply. Raises
        EndpointFailure.
        """
        started = time.perf_counter()
        sent = {**body, **self.config.request, "model": self.config.model}
        options = body.get("stream_options") or {}
        # The cost needs token counts, which a stream of OpenAI's API contains only on request.
        if body.get("stream"):
            sent["stream_options"] = {**options, "include_usage": True}
        try:
            async with self.client.asking(self.endpoint.url, sent, self.endpoint.key()) as reply:
                if not body.get("stream"):
                    raw = await reply.whole()
                    call.add(json.loads(raw), "message")
                    yield raw
                    return
                async for event, said in reply.events():
                    if said is not None:
                        call.add(said, "delta")
                    # The event with the token counts has no choices.
                    # Only a client that requested token counts gets the event with the counts.
                    if said is None or said["choices"] or options.get("include_usage"):
                        yield event
        finally:
            call.seconds = time.perf_counter() - started


class RouteServer(Server):
    """The router application. judge: verifiers of the rule."""

    accepted = "POST /v1/chat/completions, GET /v1/models"

    def __init__(
        self, config: RouteConfig, judge: VerifierService | None, token: str | None = None
    ) -> None:
        super().__init__(token, config.route.max_waiting)
        self.rule, self.judge = config.route, judge
        self.models = {name: Upstream(name, getattr(config, name)) for name in (CHEAP, STRONG)}
        self.counted: Counter[tuple[str, str, str]] = Counter()

    def complaint(self, said: str) -> dict[str, Any]:
        """Format an error response as OpenAI's API does."""
        return {"error": {"message": said, "type": "assay_route"}}

    async def close(self) -> None:
        """Close all connections."""
        for model in self.models.values():
            await model.client.close()

    def endpoints(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the endpoints of OpenAI's API that the router offers."""
        return {
            ("GET", "/v1/models"): self._list_models,
            ("POST", "/v1/chat/completions"): self._complete,
        }

    async def _list_models(self, request: Request) -> Response:
        names = [{"id": name, "object": "model"} for name in (ROUTE, *self.models)]
        return json_response({"object": "list", "data": names})

    async def _complete(self, request: Request) -> ASGIApp:
        """Return an ASGI application whose response is the reply of a model."""
        async with self.body(request) as raw:
            body = _checked(raw)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            response = await self._routed(Routed(self, body, send), receive)
            if response is not None:
                await response(scope, receive, send)

        return respond

    async def _routed(self, routed: Routed, receive: Receive) -> Response | None:
        """Return the response to a request; None if it was already sent as a stream."""
        with self.room(1, "requests"):
            try:
                return await while_there(receive, routed.answer())
            except ConnectionResetError:
                routed.ended = "the client left"
                raise
            except Refused as refused:
                routed.ended = str(refused)
                raise
            finally:
                self._report(routed)

    def counts(self) -> Iterator[str]:
        """Yield the counters of all calls, by model and reason."""
        for what in COUNTS:
            yield f"# TYPE assay_route_{what}_total counter"
            for (name, model, reason), value in sorted(self.counted.items()):
                if name == what:
                    labels = f'model="{model}",reason="{reason}"'
                    yield f"assay_route_{what}_total{{{labels}}} {value:.10g}"

    def _report(self, routed: Routed) -> None:
        """Count a request, and write its line to the log."""
        row: dict[str, Any] = {"time": round(time.time(), 3), "ended": routed.ended}
        row |= {"hardness": routed.hardness, "unknown": routed.unknown, "calls": []}
        for call in routed.calls:
            facts = call.facts(self.models[call.model])
            for what, value in facts.items():
                self.counted[what, call.model, call.reason] += value  # type: ignore[assignment]
            named = {"model": call.model, "reason": call.reason, "trouble": call.trouble}
            row["calls"].append(named | {what: facts[what] for what in COUNTS[2:]})
        # If writing to the log fails, the client's request must not fail.
        with suppress(OSError):
            say(json.dumps(row))


class Routed:
    """One request in progress. unknown: error message of a rule that failed for the request."""

    def __init__(self, server: RouteServer, body: dict[str, Any], send: Send) -> None:
        self.server, self.rule, self.body, self.send = server, server.rule, body, send
        self.calls: list[RoutedCall] = []
        self.hardness: float | None = None
        self.unknown, self.ended = "", "answered"

    async def answer(self) -> Response | None:
        """Reply with the model that the client named, or else with the model that the rule
        chose."""
        if (named := self.body.get("model")) in self.server.models:
            return await self._by([named], "named")
        if self.rule.looks:
            return await self._after_a_look()
        await self._ask_rule({})
        if self._is_easy:
            return await self._by([CHEAP, STRONG], "easy")
        return await self._by([STRONG, CHEAP], "unknown" if self.unknown else "hard")

    @property
    def _is_easy(self) -> bool:
        return self.hardness is not None and self.hardness < self.rule.threshold

    async def _after_a_look(self) -> Response | None:
        """Judge the reply of the cheap model, then send this reply or that of the strong model."""
        from starlette.responses import Response

        # The rule judges the cheap reply before the client gets any of it: it is not streamed.
        body = {key: self.body[key] for key in self.body.keys() - {"stream", "stream_options"}}
        if scored := self.rule.by == "confidence":
            body["logprobs"] = True
        call = self._call(CHEAP, "tried")
        try:
            async with aclosing(self._pieces(call, body)) as pieces:
                reply = json.loads(await anext(pieces))
        except EndpointFailure as trouble:
            self._failed(call, trouble)
            return await self._by([STRONG], "fallback")
        await self._ask_rule(reply)
        if scored and not self.body.get("logprobs"):
            for choice in reply["choices"]:
                choice.pop("logprobs", None)
        if not self._is_easy:
            try:
                return await self._by([STRONG], "unknown" if self.unknown else "unsure")
            # If the strong model fails, the client gets the cheap reply, not an error.
            except Refused:
                call.reason = "fallback"
        else:
            call.reason = "easy"
        if not self.body.get("stream"):
            return json_response(reply, 200, _header(call))
        options = self.body.get("stream_options") or {}
        return Response(_as_events(reply, options), 200, _events_header(call))

    async def _ask_rule(self, reply: dict[str, Any]) -> None:
        try:
            self.hardness = await hardness(self.rule, self.server.judge, self.body, reply)
            if not math.isfinite(self.hardness):
                raise ValueError(f"a hardness of {self.hardness}")
        except Exception as error:  # the user's rule may fail on any request or reply
            self.hardness, self.unknown = None, f"{type(error).__name__}: {error}"[:SHOWN]

    async def _by(self, names: Sequence[str], reason: str) -> Response | None:
        """Respond with the reply of the first of these models that returns one."""
        for name in names:
            call = self._call(name, reason)
            try:
                return await self._pass_on(call)
            except EndpointFailure as trouble:
                self._failed(call, trouble)
            reason = "fallback"
        raise Refused(502, "; ".join(f"{one.model}: {one.trouble}" for one in self.calls))

    async def _pass_on(self, call: RoutedCall) -> Response | None:
        from starlette.responses import Response, StreamingResponse

        async with aclosing(self._pieces(call, self.body)) as pieces:
            # Until the first chunk is sent to the client, the other model can take over.
            first = await anext(pieces)
            if not self.body.get("stream"):
                return Response(first, headers=_header(call), media_type="application/json")
            reply = StreamingResponse(self._events(call, first, pieces), 200, _events_header(call))
            # StreamingResponse.__call__ would end without an error when the client disconnects.
            # Instead, `while_there` handles a disconnect.
            await reply.stream_response(self.send)
        return None

    async def _events(
        self, call: RoutedCall, first: bytes, rest: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a streamed reply. If the model fails, the last event of the stream is
        an error.
        """
        yield first
        try:
            async for piece in rest:
                yield piece
        # Part of the reply was already sent, so the other model cannot take over.
        except EndpointFailure as trouble:
            call.trouble = self.ended = trouble.detail
            said = json.dumps(self.server.complaint(f"{call.model}: {trouble.detail}"))
            yield f"data: {said}\n\n".encode()

    def _call(self, name: str, reason: str) -> RoutedCall:
        self.calls.append(RoutedCall(name, reason, (len(prompt_of(self.body)), 0)))
        return self.calls[-1]

    def _pieces(self, call: RoutedCall, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        return self.server.models[call.model].pieces(call, body)

    def _failed(self, call: RoutedCall, trouble: EndpointFailure) -> None:
        """Record a model's failure. Raises Refused if the chat request itself is invalid."""
        call.trouble = trouble.detail
        if trouble.status in REFUSED:
            raise Refused(trouble.status, f"{call.model}: {trouble.detail}")


def _is_reply(said: Any, part: str) -> bool:
    """Whether a value has those fields of a reply, or of a stream event, that the router reads."""
    if not isinstance(said, dict) or said.get("error"):
        return False
    choices = said.get("choices")
    if not isinstance(choices, list) or (part == "message" and not choices):
        return False
    return all(isinstance(one, dict) and _is_message(one.get(part), part) for one in choices)


def _is_message(one: Any, part: str) -> bool:
    if one is None:
        return part == "delta"
    if not isinstance(one, dict):
        return False
    calls = one.get("tool_calls")
    return calls is None or (isinstance(calls, list) and all(isinstance(c, dict) for c in calls))


def _checked(raw: bytes) -> dict[str, Any]:
    """Parse and validate the body of a request. Raises Refused."""
    accepted = (
        "a JSON object with messages, a list of objects; if any, model: text; stream: true or "
        "false; stream_options and metadata: objects"
    )
    try:
        body = json.loads(raw)
        prompt_of(body)
        kinds = {"model": str, "stream": bool, "stream_options": dict, "metadata": dict}
        known = {key: kind for key, kind in kinds.items() if body.get(key) is not None}
        if body["messages"] and all(isinstance(body[key], known[key]) for key in known):
            return body
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise Refused(400, f"body: accepted: {accepted}")


def _header(call: RoutedCall) -> dict[str, str]:
    return {"x-assay-route": f"{call.model} {call.reason}"}


def _events_header(call: RoutedCall) -> dict[str, str]:
    return {"content-type": "text/event-stream", "cache-control": "no-cache", **_header(call)}


def _as_events(reply: Mapping[str, Any], options: Mapping[str, Any]) -> bytes:
    """Convert a whole reply to the events of a streamed reply."""
    head = {**reply, "object": "chat.completion.chunk", "choices": []}
    usage = head.pop("usage", None)
    choices: list[dict[str, Any]] = []
    for choice in reply["choices"]:
        delta, rest = choice["message"], {k: v for k, v in choice.items() if k != "message"}
        # OpenAI's API requires an index for each tool call in a stream, but not in a whole reply.
        if calls := delta.get("tool_calls"):
            delta = {**delta, "tool_calls": [{"index": n, **one} for n, one in enumerate(calls)]}
        choices.append({**rest, "delta": delta})
    events = [{**head, "choices": choices}]
    events += [{**head, "usage": usage}] if options.get("include_usage") else []
    return b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in events) + b"data: [DONE]\n\n"
