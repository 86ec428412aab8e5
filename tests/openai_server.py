"""Servers on this machine for tests: any ASGI application, and an OpenAI server that does as told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from assay.scale.listening import address_of, bind


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application from a thread meanwhile; yield its URL."""
    with bind("127.0.0.1", 0, None) as listening:
        running = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        try:
            yield address_of(listening)
        finally:
            running.should_exit = True
            thread.join()


class Model:
    """An OpenAI server whose reply is a text, in words; asked: the bodies so far.

    before: seconds until it says anything. status: 200, or what it refuses with. cut: words after
    which it says no more: it ends a stream there, or hangs (hangs).
    """

    def __init__(self, text: str, logprob: float = -0.1) -> None:
        self.text, self.logprob = text, logprob
        self.asked: list[dict[str, Any]] = []
        self.before, self.status, self.usage = 0.0, 200, True
        self.cut: int | None = None
        self.hangs = False
        self.instead: dict[str, Any] | None = None  # keys of a reply or an event
        self.drip = b""  # sent again and again, before anything else
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Callable[..., Any], send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            event = await receive()
            raw += event.get("body", b"")
            if not event.get("more_body"):
                break
        body = json.loads(raw)
        self.asked.append({**body, "key": dict(scope["headers"]).get(b"authorization")})
        leaving = asyncio.ensure_future(self._leave(receive))
        work = asyncio.ensure_future(self._reply(body, send))
        await asyncio.wait({leaving, work}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, work):
            task.cancel()

    async def _leave(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def _reply(self, body: dict[str, Any], send: Any) -> None:
        await asyncio.sleep(self.before)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})

        async def part(raw: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": raw, "more_body": more})

        if self.status != 200:
            await part(json.dumps({"error": {"message": "no: my-secret-key"}}).encode(), False)
            return
        while self.drip:
            await part(self.drip)
            await asyncio.sleep(0.02)
        for raw in self._events(body) if body.get("stream") else [self._whole(body)]:
            await part(raw)
            await asyncio.sleep(0.01)
        if self.hangs:
            await asyncio.sleep(60)
        await part(b"", False)

    def _whole(self, body: dict[str, Any]) -> bytes:
        message = {"role": "assistant", "content": self.text}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        if body.get("logprobs"):
            content = [{"token": one, "logprob": self.logprob} for one in self.text.split()]
            choice["logprobs"] = {"content": content}
        found = {"id": "1", "object": "chat.completion", "choices": [choice]}
        found |= self.instead or {}
        raw = json.dumps({**found, **self._usage()}).encode()
        return raw if self.cut is None else raw[: self.cut]

    def _events(self, body: dict[str, Any]) -> Iterator[bytes]:
        for word in self.text.split()[: self.cut]:
            choice = {"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}
            event = {"id": "1", "choices": [choice]} | (self.instead or {})
            yield f"data: {json.dumps(event)}\r\n\r\n".encode()
        if self.cut is None:
            if (body.get("stream_options") or {}).get("include_usage") and self.usage:
                yield f"data: {json.dumps({'choices': [], **self._usage()})}\n\n".encode()
            yield b"data: [DO"
            yield b"NE]\n\n"

    def _usage(self) -> dict[str, Any]:
        counts = {"prompt_tokens": 10, "completion_tokens": len(self.text.split())}
        return {"usage": counts} if self.usage else {}
