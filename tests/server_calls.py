"""Requests to an application of ours, made without a network."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from assay.scale.http_server import Server

ROWS = [
    {"id": "right", "prompt": "1+1=", "answer": "2", "completion": "2"},
    {"id": "wrong", "prompt": "1+1=", "answer": "2", "completion": "3"},
]


def call(app: Server, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Return (status, reply) of one request that is made without a network."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: list[dict[str, Any]] = []
    events = [{"type": "http.request", "body": raw}]

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop()
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    headers = {"content-type": "application/json", **headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    asyncio.run(app(scope, receive, send))
    said = sent[1]["body"].decode()
    is_json = dict(sent[0]["headers"])[b"content-type"] == b"application/json"
    return sent[0]["status"], json.loads(said) if is_json else said
