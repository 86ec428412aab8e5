"""Server of one model over OpenAI's API, which withholds, shows or summarizes the reasoning.

    POST /v1/chat/completions   whole replies, or streams of server-sent events
    GET  /v1/models             the served model

The reasoning never leaves the server unless `Reasoning` is ``show``. The answer is what verifiers
judge in training (`assay.think`): the text after the last closed think block. Text before a later
closing tag is reasoning too, so the answer is known only when the completion has ended, and a
stream sends it then. Until then, the stream sends comments that keep the connection open.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from assay.host.terminal import warn
from assay.scale.chat_request import ChatRequest, read_chat_request
from assay.scale.http_server import Refused, Server, json_response, while_there

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from assay.scale.http_server import Endpoint

Reasoning = Literal["hide", "show", "summary"]
REASONING: tuple[str, ...] = get_args(Reasoning)
KEEP_ALIVE_SECONDS = 10.0
"""Seconds between two comments of a stream whose completion is still sampled."""
PIECE = 64
"""Characters of the answer in one event of a stream."""
LONGEST_SENTENCE = 200


@dataclass(frozen=True)
class ChatChoice:
    """One completion. reasoning, answer: its two parts, without tags. cut: it reached its limit.

    tokens, reasoning_tokens: numbers of tokens; reasoning_tokens: those of the think block. None:
    the backend does not know the number.
    """

    reasoning: str
    answer: str
    cut: bool
    tokens: int | None
    reasoning_tokens: int | None


@dataclass(frozen=True)
class ChatReply:
    """The completions of a request. prompt_tokens: number of tokens; None: unknown."""

    choices: Sequence[ChatChoice]
    prompt_tokens: int | None

    def usage(self) -> dict[str, Any] | None:
        """Return the token counts in OpenAI's format, or None if they are unknown."""
        written = _sum(one.tokens for one in self.choices)
        # OpenAI's format allows no missing count except in the details.
        if self.prompt_tokens is None or written is None:
            return None
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }
        reasoning = _sum(one.reasoning_tokens for one in self.choices)
        if reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers, or None if one of them is unknown."""
    listed = [*numbers]
    known = [one for one in listed if one is not None]
    return sum(known) if len(known) == len(listed) else None


class ChatBackend(Protocol):
    """Source of completions: the built-in engine, or another server."""

    async def check(self, request: ChatRequest) -> Any:
        """Return the request in the backend's own form. Raises Refused for an invalid request."""
        ...

    async def reply(self, checked: Any) -> ChatReply:
        """Sample the completions of a checked request. Raises Refused if that fails."""
        ...

    async def close(self) -> None:
        """Release resources."""
        ...


class ReasoningServer(Server):
    """The application. model: name of the model. seconds: time limit of a request."""

    accepted = "POST /v1/chat/completions, GET /v1/models"
    # The parser holds the interpreter's lock, so a thread would not help: a body of 30 MB of
    # nested lists stops the server for seconds. Text of a whole context is far below this limit.
    most_bytes = 2 * 2**20

    def __init__(
        self,
        backend: ChatBackend,
        model: str,
        reasoning: Reasoning = "hide",
        *,
        token: str | None = None,
        max_waiting: int = 64,
        seconds: float = 600.0,
    ) -> None:
        super().__init__(token, max_waiting)
        self.backend, self.model, self.reasoning = backend, model, reasoning
        self.seconds = seconds
        # unknown: completion tokens of backends that do not count the reasoning apart.
        self.tokens = {"prompt": 0, "answer": 0, "reasoning": 0, "unknown": 0}

    def complaint(self, said: str) -> dict[str, Any]:
        """Format an error response in OpenAI's format."""
        return {"error": {"message": said, "type": "assay_serve"}}

    async def close(self) -> None:
        """Release the backend's resources."""
        await self.backend.close()

    def endpoints(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the endpoints of OpenAI's API."""
        return {
            ("GET", "/v1/models"): self._list_models,
            ("POST", "/v1/chat/completions"): self._complete,
        }

    def counts(self) -> Iterator[str]:
        """Yield the numbers of tokens so far."""
        yield "# TYPE assay_serve_tokens_total counter"
        for kind, number in self.tokens.items():
            yield f'assay_serve_tokens_total{{kind="{kind}"}} {number}'

    async def _list_models(self, request: Request) -> Response:
        listed = {"id": self.model, "object": "model", "created": 0, "owned_by": "assay"}
        return json_response({"object": "list", "data": [listed]})

    async def _complete(self, request: Request) -> ASGIApp:
        """Return an ASGI application that responds with the completions."""
        async with self.body(request) as raw:
            asked = read_chat_request(raw, self.model)
        # All invalid requests are refused before a stream begins, with a status of their own.
        with self.room(1, "requests"):
            checked = await self._checked(request, asked)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            with self.room(1, "requests"):
                if asked.stream:
                    await while_there(receive, self._stream(asked, checked, send))
                    return
                response = await while_there(receive, self._whole(checked))
            await response(scope, receive, send)

        return respond

    async def _checked(self, request: Request, asked: ChatRequest) -> Any:
        # A long prompt waits for the tokenizer, so its check has the limits of a completion.
        try:
            return await while_there(request.receive, self.backend.check(asked), self.seconds)
        except TimeoutError:
            raise Refused(504, f"no completion within {self.seconds:g} s") from None

    async def _reply(self, checked: Any) -> ChatReply:
        try:
            async with asyncio.timeout(self.seconds):
                reply = await self.backend.reply(checked)
        except TimeoutError:
            raise Refused(504, f"no completion within {self.seconds:g} s") from None
        self.tokens["prompt"] += reply.prompt_tokens or 0
        for one in reply.choices:
            if one.reasoning_tokens is None:
                self.tokens["unknown"] += one.tokens or 0
            else:
                self.tokens["reasoning"] += one.reasoning_tokens
                self.tokens["answer"] += max(0, (one.tokens or 0) - one.reasoning_tokens)
        return reply

    async def _whole(self, checked: Any) -> Response:
        reply = await self._reply(checked)
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": one.answer, **self._thoughts(one)},
                "logprobs": None,
                "finish_reason": "length" if one.cut else "stop",
            }
            for index, one in enumerate(reply.choices)
        ]
        head = self._head("chat.completion")
        return json_response({**head, "choices": choices, "usage": reply.usage()})

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chatcmpl-{uuid.uuid4().hex}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.model}

    def _thoughts(self, choice: ChatChoice) -> dict[str, str]:
        """Return the field that shows the reasoning, if the server shows any."""
        if self.reasoning == "show":
            return {"reasoning_content": choice.reasoning}
        if self.reasoning == "summary":
            return {"reasoning_summary": summary_of(choice.reasoning)}
        return {}

    async def _stream(self, asked: ChatRequest, checked: Any, send: Send) -> None:
        from starlette.responses import StreamingResponse

        headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        # Closed at once, so that the work for a client that stopped reading ends.
        async with aclosing(self._events(asked, checked)) as events:
            await StreamingResponse(events, 200, headers).stream_response(send)

    async def _events(self, asked: ChatRequest, checked: Any) -> AsyncGenerator[bytes]:
        head = self._head("chat.completion.chunk")
        if asked.include_usage:
            head["usage"] = None
        first = {"role": "assistant", "content": ""}
        for index in range(asked.n):
            yield _event({**head, "choices": [_choice(index, first)]})
        work = asyncio.ensure_future(self._reply(checked))
        try:
            while not (await asyncio.wait({work}, timeout=KEEP_ALIVE_SECONDS))[0]:
                yield b": sampling\n\n"
            reply = work.result()
        # The status 200 is already sent, so a failure is an event.
        except Refused as refused:
            yield _event(self.complaint(str(refused)))
            return
        except Exception as error:  # a defect that one request reveals must not stop the server
            warn(f"a request failed: {type(error).__name__}: {error}")
            yield _event(self.complaint("this request failed; see the server's log"))
            return
        finally:
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
        for index, one in enumerate(reply.choices):
            parts = [*self._thoughts(one).items(), ("content", one.answer)]
            for name, text in parts:
                for start in range(0, len(text), PIECE):
                    delta = {name: text[start : start + PIECE]}
                    yield _event({**head, "choices": [_choice(index, delta)]})
            reason = "length" if one.cut else "stop"
            yield _event({**head, "choices": [_choice(index, {}, reason)]})
        if asked.include_usage:
            yield _event({**head, "choices": [], "usage": reply.usage()})
        yield b"data: [DONE]\n\n"


def _choice(index: int, delta: Mapping[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": dict(delta), "logprobs": None, "finish_reason": reason}


def _event(value: Mapping[str, Any]) -> bytes:
    # ASCII only, so that a piece that cuts a surrogate pair is still valid.
    return f"data: {json.dumps(value)}\n\n".encode()


def summary_of(reasoning: str) -> str:
    """Return the first and the last sentence of a reasoning, each cut after 200 characters."""
    # A rule and no model call: a small model's own summary is often wrong about its reasoning.
    sentences = [one.strip() for one in re.split(r"(?<=[.!?])\s+|\n+", reasoning) if one.strip()]
    shown = sentences[:1] + sentences[1:][-1:]
    return " ... ".join(
        one if len(one) <= LONGEST_SENTENCE else f"{one[:LONGEST_SENTENCE]}..." for one in shown
    )


def cut_at(answer: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return an answer up to its first stop string, and whether there was one."""
    ends = [at for at in map(answer.find, stop) if at >= 0]
    return (answer[: min(ends)], True) if ends else (answer, False)
