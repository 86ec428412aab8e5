"""Server of one model with OpenAI's API, which withholds, shows or summarizes the model's
reasoning.

    POST /v1/chat/completions   whole replies, or streams of server-sent events
    GET  /v1/models             the served model

The reasoning never leaves the server unless `Reasoning` is ``show``. The answer is the text after
the last closed think block, as verifiers judge it in training (`assay.think`). Text before a later
closing tag is reasoning too, so the answer is known only when the completion has ended; a stream
sends the answer then. Until the completion has ended, the stream sends comments, which keep the
connection open.
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
    """One completion. reasoning, answer: the two parts of the completion, without think tags. cut:
    it reached its limit.

    tokens: number of tokens in the completion; reasoning_tokens: number of tokens in its think
    block. A number of tokens is None if the backend does not know it.
    """

    reasoning: str
    answer: str
    cut: bool
    tokens: int | None
    reasoning_tokens: int | None


@dataclass(frozen=True)
class ChatReply:
    """The completions of a request. prompt_tokens: number of tokens in the prompt; None if
    unknown."""

    choices: Sequence[ChatChoice]
    prompt_tokens: int | None

    def usage(self) -> dict[str, Any] | None:
        """Return the token counts in the format of OpenAI's API, or None if they are unknown."""
        written = _sum(one.tokens for one in self.choices)
        # In OpenAI's format, only the details may lack counts.
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
    """Return the sum of numbers, or None if one of the numbers is unknown."""
    listed = [*numbers]
    known = [one for one in listed if one is not None]
    return sum(known) if len(known) == len(listed) else None


class ChatBackend(Protocol):
    """Source of completions for the server: the built-in engine, or another server."""

    async def check(self, request: ChatRequest) -> Any:
        """Return a chat request in the form that the backend samples. Raises Refused if the chat
        request is invalid.
        """
        ...

    async def reply(self, checked: Any) -> ChatReply:
        """Sample the completions of a checked chat request. Raises Refused if that fails."""
        ...

    async def close(self) -> None:
        """Release resources."""
        ...


class ReasoningServer(Server):
    """The application. model: name of the model. seconds: time limit of each request."""

    accepted = "POST /v1/chat/completions, GET /v1/models"
    # The JSON parser holds the interpreter's lock: 30 MB of nested lists stop the server.
    # A thread for the parser would therefore not help.
    # The text of a model's whole context is far below this size limit.
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
        # unknown: completion tokens of backends that do not count the reasoning separately.
        self.tokens = {"prompt": 0, "answer": 0, "reasoning": 0, "unknown": 0}

    def complaint(self, said: str) -> dict[str, Any]:
        """Format an error response as OpenAI's API does."""
        return {"error": {"message": said, "type": "assay_serve"}}

    async def close(self) -> None:
        """Release the backend's resources."""
        await self.backend.close()

    def endpoints(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the endpoints of OpenAI's API that this server offers."""
        return {
            ("GET", "/v1/models"): self._list_models,
            ("POST", "/v1/chat/completions"): self._complete,
        }

    def counts(self) -> Iterator[str]:
        """Yield the numbers of prompt and completion tokens so far."""
        yield "# TYPE assay_serve_tokens_total counter"
        for kind, number in self.tokens.items():
            yield f'assay_serve_tokens_total{{kind="{kind}"}} {number}'

    async def _list_models(self, request: Request) -> Response:
        listed = {"id": self.model, "object": "model", "created": 0, "owned_by": "assay"}
        return json_response({"object": "list", "data": [listed]})

    async def _complete(self, request: Request) -> ASGIApp:
        """Return an ASGI application whose response has the completions of a request."""
        async with self.body(request) as raw:
            asked = read_chat_request(raw, self.model)
        # Invalid requests are refused before a stream begins, with their own HTTP status.
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
        # The check tokenizes the prompt, which may take long, so it has a completion's time limit.
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
        """Return the response field with the reasoning, if the server shows any reasoning."""
        if self.reasoning == "show":
            return {"reasoning_content": choice.reasoning}
        if self.reasoning == "summary":
            return {"reasoning_summary": summary_of(choice.reasoning)}
        return {}

    async def _stream(self, asked: ChatRequest, checked: Any, send: Send) -> None:
        from starlette.responses import StreamingResponse

        headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        # Closing at once ends the work for a client that has stopped reading.
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
        # The status 200 has already been sent, so a failure is sent as an event.
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
    # With ASCII only, a chunk that cuts a surrogate pair is still valid text.
    return f"data: {json.dumps(value)}\n\n".encode()


def summary_of(reasoning: str) -> str:
    """Return the first and the last sentence of a reasoning, each limited to 200 characters."""
    # A small model often summarizes its own reasoning wrongly, so a fixed rule is used.
    sentences = [one.strip() for one in re.split(r"(?<=[.!?])\s+|\n+", reasoning) if one.strip()]
    shown = sentences[:1] + sentences[1:][-1:]
    return " ... ".join(
        one if len(one) <= LONGEST_SENTENCE else f"{one[:LONGEST_SENTENCE]}..." for one in shown
    )


def cut_at(answer: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return an answer up to its first stop string, and whether it contained a stop string."""
    ends = [at for at in map(answer.find, stop) if at >= 0]
    return (answer[: min(ends)], True) if ends else (answer, False)
