"""Requests to the viewer, and runs for it to show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_fakes import FakeLearner, make_config, make_rollouts

from assay.report.viewer.view_server import ViewServer
from assay.run.directory import Run

TOKEN = "secret"
HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(2)> \u202e\x1b[31m & </div>'


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def get(app: ViewServer, page: str, host: str = "localhost:8000", **headers: str) -> Reply:
    """Return the reply to one request. page: with its query, behind the token."""
    return ask(app, f"/{TOKEN}/{page}", host, **headers)


def ask(app: ViewServer, url: str, host: str, **headers: str) -> Reply:
    path, _, query = url.partition("?")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    pairs = [("host", host), *((name.replace("_", "-"), value) for name, value in headers.items())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in pairs],
    }
    asyncio.run(app(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent).decode())


def make_run(parent: Path, num_steps: int = 3, **sections: Any) -> Path:
    with Run.create(make_config(parent, **sections), quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        row = {"eval/temperature": 0.0, "eval/stderr": 0.1, "eval/num_problems": 2}
        run.record_evaluation({**row, "eval/pass_at_1": 0.25})
        for _ in range(num_steps):
            groups, verdicts = make_rollouts(run.step + 1)
            run.record(groups, verdicts)
            run.finish_step(learner.learn(groups, verdicts))
        run.event("guard_note", rule="made_up", reason=HOSTILE)
        return run.folder
