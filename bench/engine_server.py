"""A chat-completions server with Assay's engine, and a helper that serves an application in a
thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.config import SamplingConfig, parse
from assay.scale.http_server import Server, json_response
from assay.scale.listening import address_of, bind
from assay.session.assemble import open_session
from assay.types import Problem
from assay.verify.service import VerifierService

SAMPLING = SamplingConfig(max_tokens=64, temperature=0.0)
Row = dict[str, Any]


class EngineServer:
    """Chat completions by Assay's engine, with greedy decoding.

    Simultaneous requests are sampled in one batch. Equal prompts get equal replies.
    """

    def __init__(self, checkpoint: Path, data: Mapping[str, Any], service: VerifierService) -> None:
        tree = {
            "model": {"path": str(checkpoint)},
            "data": {"train": ["none"], **data},
            "sampling": {"max_tokens": SAMPLING.max_tokens},
            "rl": {},
        }
        self.engine = open_session(parse(tree), service).generator
        self.replies: dict[str, Row] = {}
        self.queue: set[str] = set()
        self.work = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request. Errors are returned to the client."""
        from starlette.requests import Request

        prompt = (await Request(scope, receive).json())["messages"][-1]["content"]
        self.queue.add(prompt)
        await asyncio.sleep(0.2)  # others come, and are sampled with it
        try:
            async with self.work:
                if prompt not in self.replies:
                    batch, self.queue = self.queue - self.replies.keys(), set()
                    self.replies |= await asyncio.to_thread(self._sample, batch)
            status, reply = 200, self.replies[prompt]
        except Exception as error:
            status, reply = 500, {"error": {"message": f"{type(error).__name__}: {error}"}}
        await json_response(reply, status)(scope, receive, send)

    def _sample(self, prompts: Collection[str]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for group in self.engine.generate([Problem(one, one) for one in prompts], SAMPLING, 1):
            (one,) = group.completions
            assert one.model_logprobs is not None
            scores = [{"logprob": score} for score in one.model_logprobs.tolist()]
            choice = {
                "index": 0,
                "finish_reason": "length" if one.finish_reason == "length" else "stop",
            }
            choice["message"] = {"role": "assistant", "content": one.text}
            choice["logprobs"] = {"content": scores}
            usage = {"prompt_tokens": len(group.prompt.tokens), "completion_tokens": len(scores)}
            found[group.problem.id] = {"choices": [choice], "usage": usage}
        return found


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application in a thread within this context. Yields the URL of the server."""
    import uvicorn  # pyright: ignore[reportMissingImports]

    with bind("127.0.0.1", 0, None) as listening:
        lifespan = "on" if isinstance(app, Server) else "off"
        running = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan=lifespan))
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        try:
            yield address_of(listening)
        finally:
            running.should_exit = True
            thread.join()
