"""Requests to the viewer, and runs for it to show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from run_fakes import FakeLearner, make_config, make_rollouts

from assay.report.viewer.view_server import ViewServer
from assay.run.directory import Run
from assay.types import Completion

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


def post(app: ViewServer, url: str, fields: Mapping[str, Any], **headers: str) -> Reply:
    """Return the reply to a form that a browser sends. url: path, with the token."""
    usual = {"content_type": "application/x-www-form-urlencoded", "origin": "http://localhost:8000"}
    body = urlencode(fields).encode()
    sent = {name: value for name, value in {**usual, **headers}.items() if value}
    return ask(app, url, "localhost:8000", "POST", body, **sent)


def ask(
    app: ViewServer, url: str, host: str, method: str = "GET", body: bytes = b"", **headers: str
) -> Reply:
    path, _, query = url.partition("?")
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}] if method == "POST" else []

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    pairs = [("host", host), *((name.replace("_", "-"), value) for name, value in headers.items())]
    scope = {
        "type": "http",
        "method": method,
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


@dataclass
class Form:
    """A form of a page, as a browser reads it. fields: hidden fields. buttons: values by name."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[tuple[str, str]] = field(default_factory=list)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        some = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append(Form(some["action"]))
        elif tag == "input" and some.get("type") == "hidden":
            self.found[-1].fields[some["name"]] = some["value"]
        elif tag == "button" and self.found and "name" in some:
            self.found[-1].buttons.append((some["name"], some["value"]))


def form_of(text: str, action: str = "label") -> Form | None:
    """Return the form of a page that sends to an action; None if the page has none."""
    reader = _Forms()
    reader.feed(text)
    return next((one for one in reader.found if one.action == f"/{TOKEN}/{action}"), None)


def make_labelled_run(parent: Path, num_steps: int = 2, num_groups: int = 3) -> Path:
    """A run whose problems are in a file, with completions that differ and have no injected
    tokens. Texts with an odd number are right."""
    rows = [
        {"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(num_groups)
    ]
    parent.mkdir(parents=True, exist_ok=True)
    problems = parent / "problems.jsonl"
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = make_config(parent, data={"train": [str(problems)]})
    with Run.create(config, quiet=True) as run:
        run.attach(learner=(learner := FakeLearner()))
        for _ in range(num_steps):
            groups, verdicts = make_rollouts(run.step + 1, num_groups)
            groups = [
                replace(one, completions=tuple(map(_told, one.completions))) for one in groups
            ]
            run.record(groups, verdicts)
            run.finish_step(learner.learn(groups, verdicts))
        return run.folder


def _told(one: Completion) -> Completion:
    text = f"I think.\nSo it is {one.id.rpartition('/')[2]}, by {one.id}."
    return replace(one, text=text, sampled=np.ones(len(one.tokens), np.bool_), finish_reason="eos")
