"""Verdicts over HTTP: the three values, bounds, tokens; and a verifier that asks a server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge_server import Answer, Asked, JudgeServer
from server_calls import ROWS, call

from assay.errors import UserError, VerifierError
from assay.scale.listening import bind
from assay.scale.serve import VerifierServer
from assay.types import Completion, Group, Problem, Prompt, StepScore, ThinkFormat, Verdict
from assay.verify import remote as remote_module
from assay.verify.service import VerifierService


@pytest.fixture(scope="module")
def service() -> Iterator[VerifierService]:
    with VerifierService("exact", num_workers=1) as found:
        yield found


def test_a_batch_has_a_verdict_for_each_row_in_order(service: VerifierService) -> None:
    app = VerifierServer(service)
    status, said = call(app, "POST", "/judge", {"rows": ROWS})
    assert status == 200 and app.waiting == 0
    assert [(one["id"], one["status"], one["score"]) for one in said["verdicts"]] == [
        ("right", "passed", 1.0),
        ("wrong", "failed", 0.0),
    ]
    assert call(app, "GET", "/health") == (200, {"status": "ok", "waiting": 0})
    metrics = call(app, "GET", "/metrics")[1]
    assert 'assay_verdicts_total{verifier="exact",judged="yes"}' in metrics
    assert 'assay_requests_total{status="200"} 2' in metrics
    assert call(app, "GET", "/verifiers/exact")[1]["hash"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, 'accepted: a JSON object {"rows"'),
        ({"rows": 3}, 400, "rows: a list"),
        ({"rows": [3]}, 400, "rows:0: found int"),
        ({"rows": [{"completion": "2"}]}, 400, "rows:0 answer: missing"),
        ({"rows": [{**ROWS[0], "verifier": "os:system"}]}, 400, "found os:system, Python code"),
        ({"rows": ROWS, "seconds": -1}, 400, "seconds: a number"),
        ({"rows": ROWS * 3}, 413, "completions wait, of 4"),
    ],
)
def test_a_wrong_request_is_told_in_one_line(
    service: VerifierService, body: Any, status: int, words: str
) -> None:
    found, said = call(VerifierServer(service, max_waiting=4), "POST", "/judge", body)
    assert found == status and words in said["error"] and "\n" not in said["error"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exact*2", "/verifiers: found 'exact*2'; accepted: the name of one verifier"),
        ("exact + constant", "accepted: the name of one verifier"),
        ("exakt", "did you mean exact"),
        ("os:system", "Python code"),
    ],
)
def test_what_is_no_verifier_has_no_facts(service: VerifierService, name: str, words: str) -> None:
    status, said = call(VerifierServer(service), "GET", f"/verifiers/{name}")
    assert status == 404 and words in said["error"]


def test_a_body_that_does_not_arrive_is_not_waited_for(
    service: VerifierService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.scale.http_server.BODY_SECONDS", 0.01)
    app, sent = VerifierServer(service), list[dict[str, Any]]()
    events: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> dict[str, Any]:
        return events.pop() if events else await asyncio.sleep(30, {"type": "http.disconnect"})

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/judge",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408 and b"did not arrive in 0.01 s" in sent[1]["body"]


def test_requests_beyond_the_capacity_are_refused_and_retried(service: VerifierService) -> None:
    app = VerifierServer(service, max_waiting=4)
    app.waiting = 3
    assert call(app, "POST", "/judge", {"rows": ROWS})[0] == 503


def test_a_token_is_asked_for_and_an_open_address_needs_one(service: VerifierService) -> None:
    app = VerifierServer(service, token="secret")
    assert call(app, "POST", "/judge", {"rows": ROWS})[0] == 401
    assert call(app, "GET", "/health")[0] == 200
    assert call(app, "POST", "/judge", {"rows": ROWS}, authorization="Bearer secret")[0] == 200
    with pytest.raises(UserError, match=r"--host: found 0\.0\.0\.0 without a token"):
        bind("0.0.0.0", 0, None)
    with bind("127.0.0.1", 0, None) as taken, pytest.raises(UserError, match="that is free"):
        bind("127.0.0.1", taken.getsockname()[1], None)


def test_slow_work_is_abandoned(service: VerifierService, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[bool] = []

    async def never(groups: Any) -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            given_up.append(True)

    monkeypatch.setattr(service, "judge_async", never)
    app = VerifierServer(service)
    status, said = call(app, "POST", "/judge", {"rows": ROWS, "seconds": 0.01})
    assert (status, said) == (504, {"error": "not judged in 0.01 s"})
    assert given_up and app.waiting == 0


@pytest.fixture
def server(service: VerifierService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that asks for a token."""
    uvicorn = pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "assay-rl[serve]"')
    pytest.importorskip("httpx2")
    monkeypatch.setenv("ASSAY_VERIFIERS_TOKEN", "secret")
    with bind("127.0.0.1", 0, "secret") as listening:
        app = VerifierServer(service, "secret", max_waiting=16)
        config = uvicorn.Config(app, log_level="error", lifespan="off")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        running.should_exit = True
        thread.join()


def group_of(*texts: str, answer: Any = "2") -> Group:
    completions = tuple(Completion.from_text(text, f"p#0/{n}") for n, text in enumerate(texts))
    spec = {} if answer is None else {"answer": answer}
    return Group(Problem("p", "1+1=", spec), Prompt("", completions[0].tokens), completions)


def test_a_remote_verifier_splits_a_completion_by_its_own_tags(server: str) -> None:
    """The answer stands outside the run's think tags, whatever they are."""
    think = ThinkFormat("free", "<r1>", "</r1>")
    texts = ("<r1>1 and 1</r1>2", "<r1>2</r1>3", "<r1>2")
    said = [Completion.from_text(text, f"p#0/{n}", think) for n, text in enumerate(texts)]
    group = replace(group_of("2"), completions=tuple(said))
    options = {"remote": {"url": server, "patience": 30.0}}
    with VerifierService("remote:exact + remote:think_format", options=options) as asking:
        (remote,) = asking.judge([group])
    with VerifierService("exact + think_format", num_workers=1) as own:
        (here,) = own.judge([group])
    assert [one.status for one in remote] == ["passed", "failed", "failed"]
    assert [one.status for one in remote] == [one.status for one in here]
    forms = [[one.components[name] for one in here] for name in ("think_format",)]
    assert forms == [[one.components["remote:think_format"] for one in remote]]


def test_a_remote_verifier_counts_tokens(server: str) -> None:
    long = Completion.from_text("2", "p#0/0", num_tokens=900)
    group = replace(group_of("2"), completions=(long, replace(long, tokens=long.tokens[:10])))
    group = replace(group, problem=Problem("p", "1+1=", {"max_tokens": 1000, "buffer": 200}))
    options = {"remote": {"url": server, "patience": 30.0}}
    with VerifierService("constant + remote:overlong", options=options) as asking:
        (found,) = asking.judge([group])
    assert [one.components["remote:overlong"] for one in found] == [-0.5, 0.0]


def judge_steps(problem: Problem, completion: Completion) -> Verdict:
    """Every odd token ends a step."""
    steps = tuple(StepScore(0.5, n) for n, one in enumerate(completion.tokens) if one % 2)
    return Verdict.of_score(1.0, "judge_steps@1", step_scores=steps)


def test_a_remote_verifier_scores_steps_at_the_policys_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"{__name__}:judge_steps"
    completions = [
        replace(Completion.from_text("2", f"p#0/{n}"), tokens=np.array(ids, np.int32))
        for n, ids in enumerate([[1, 2, 3], [2, 2], [2, 5]])
    ]
    group = replace(group_of("2"), completions=tuple(completions))
    with VerifierService(name, num_workers=1, allow=[name]) as here:
        (own,) = here.judge([group])
        app = VerifierServer(here)

        def ask(options: Any, method: str, path: str, limit: float, body: Any = None) -> Any:
            if method == "GET":
                return {}
            rows = [{**row, "verifier": name} for row in body["rows"]]
            status, said = call(app, method, path, {**body, "rows": rows})
            assert status == 200, said
            return said

        monkeypatch.setattr(remote_module, "_ask", ask)
        options = {"remote": {"url": "http://there"}}
        with VerifierService("remote:steps*0.5", options=options) as asking:
            (remote,) = asking.judge([group])
    assert [one.step_scores for one in remote] == [one.step_scores for one in own]
    assert [len(one.step_scores) for one in remote] == [2, 0, 1]
    assert [one.step_weight for one in remote] == [0.5] * 3


def test_tokens_of_a_row_that_are_none_are_told(service: VerifierService) -> None:
    for wrong in (["a"], 3, [-1], [1.5], [2**31], [True]):
        row = {**ROWS[0], "token_ids": wrong}
        status, said = call(VerifierServer(service), "POST", "/judge", {"rows": [row]})
        assert status == 400 and "rows:0 token_ids" in said["error"]


def judge_ranked(problem: Problem, group: Group) -> list[float]:
    return [float(n) for n, _ in enumerate(group.completions)]


def test_a_verifier_that_compares_siblings_cannot_be_remote() -> None:
    name = f"{__name__}:judge_ranked"
    with VerifierService("exact", num_workers=1, allow=[name]) as service:
        status, said = call(VerifierServer(service), "GET", f"/verifiers/{name}")
    assert status == 404 and "judges each completion by itself" in said["error"]


def test_a_servers_verifier_judges_as_ones_own(server: str, service: VerifierService) -> None:
    options = {"remote": {"url": server, "patience": 30.0}}
    with VerifierService("remote:exact*1.0 + answer_tags*0.1", options=options) as asking:
        groups = [group_of("2", "3", "4") for _ in range(40)]
        verdicts = asking.judge(groups)
        facts = asking.describe()
        (missing,) = asking.judge([group_of("2", answer=None)])
        talk = Completion.from_text("a call=7;2", "p#0/0", said=((0, 6), (9, 10)))
        (talked,) = asking.judge([replace(group_of("2"), completions=(talk,))])
    assert [one.status for one in verdicts[0]] == ["passed", "failed", "failed"]
    assert len(verdicts) == 40
    assert talked[0].correct, "the answer is the last turn"
    assert all(one.judged for row in verdicts for one in row), "no room is no end: asked again"
    assert facts["remote:exact"]["hash"] == service.describe()["exact"]["hash"]
    assert missing[0].reason == "error" and "answer: missing" in missing[0].detail


@pytest.mark.parametrize(
    ("status", "reason", "num_asked"),
    [(503, None, 9), (504, "timeout", 1), (500, "error", 1), (401, "error", 1), (301, "error", 1)],
)
def test_only_a_full_server_is_asked_again(
    status: int, reason: str | None, num_asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("httpx2")
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    group = group_of("2")
    right = json.dumps({"verdicts": [{**SAID, "step_scores": []}]}).encode()

    def answer(asked: Asked) -> Answer:
        if asked.path != "/judge":
            return Answer(b"{}")
        done = sum(one.path == "/judge" for one in there.asked) == 9
        return Answer(right) if done else Answer(b"full", status, {"Retry-After": "1"})

    with JudgeServer(answer) as there:
        options = {"remote": {"url": there.url.removesuffix("/v1"), "patience": 600.0}}
        with VerifierService("remote:exact", options=options) as asking:
            ((found,),) = asking.judge([group])
        assert sum(one.path == "/judge" for one in there.asked) == num_asked
    assert found.reason == reason and (found.judged or f"HTTP {status}: full" in found.detail)
    assert [one for one in waits if one >= 0.25] == (
        [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0] if status == 503 else []
    )


SAID = {"score": 1.0, "reward": 1.0, "status": "passed", "extracted": "2", "detail": ""}
SAID |= {"components": {}, "step_scores": [[0.5, 2]]}


@pytest.mark.parametrize(
    ("reply", "words", "num_judged"),
    [
        ({"verdicts": [SAID]}, "holds 1 verdicts for 2 completions", 0),
        ({"verdicts": {"0": SAID, "1": SAID}}, "holds no verdicts for 2", 0),
        ([SAID, SAID], "holds no verdicts for 2", 0),
        (b"<html>\nnot ours</html>", "not JSON: '<html> not ours</html>'", 0),
        ({"verdicts": [SAID, 3]}, "verdict of another form (TypeError", 1),
        ({"verdicts": [SAID, {"score": 1.0}]}, "verdict of another form (KeyError: 'reward')", 1),
        ({"verdicts": [SAID, {**SAID, "reward": float("nan")}]}, "a reward of nan", 1),
        ({"verdicts": [SAID, {**SAID, "reward": 10**400}]}, "OverflowError", 1),
        ({"verdicts": [SAID, {**SAID, "components": [1]}]}, "verdict of another form", 1),
        ({"verdicts": [SAID, {**SAID, "extracted": 2}]}, "verdict of another form", 1),
        ({"verdicts": [SAID, {**SAID, "step_scores": [[0.5, 3]]}]}, "ends at token 3 of 3", 1),
        ({"verdicts": [SAID, {**SAID, "step_scores": [[0.5, -1]]}]}, "ends at token -1 of 3", 1),
    ],
)
def test_a_malformed_reply_of_a_server_is_not_judged_and_told_in_one_line(
    reply: Any, words: str, num_judged: int
) -> None:
    pytest.importorskip("httpx2")
    raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()

    def answer(asked: Asked) -> Answer:
        return Answer(raw if asked.path == "/judge" else b"{}")

    completions = [Completion.from_text("2", f"p#0/{n}", num_tokens=3) for n in range(2)]
    group = replace(group_of("2"), completions=tuple(completions))
    with JudgeServer(answer) as there:
        options = {"remote": {"url": there.url.removesuffix("/v1"), "patience": 30.0}}
        with VerifierService("remote:exact", options=options) as asking:
            (found,) = asking.judge([group])
        assert [one.path for one in there.asked].count("/judge") == 1
    assert [one.judged for one in found] == [num_judged == 1, False]
    assert found[1].reason == "error" and words in found[1].detail
    assert there.url.removesuffix("/v1") in found[1].detail and "\n" not in found[1].detail
    assert "assay verifier serve" in found[1].detail


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "verification.options.remote.url: found nothing"),
        ({"url": "http://localhost:9"}, "Connect"),
        ({"url": 3}, "verification.options.remote.url"),
        ({"port": 3}, "verification.options.remote.port: unknown key"),
    ],
)
def test_a_server_that_cannot_be_asked_is_told_before_a_run(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("httpx2")
    monkeypatch.setattr("assay.verify.remote.FIRST_SECONDS", 0.3)
    with ExitStack() as stack, pytest.raises(VerifierError) as told:
        asking = VerifierService("remote:exact", options={"remote": options})
        stack.enter_context(asking)
        asking.check([None])
    assert words in str(told.value) and "\n" not in str(told.value)


def test_expressions_of_clients_are_closed_when_newer_ones_come() -> None:
    """Ever new expressions take no more memory: neither sums, nor verifiers, executors or counts."""
    with VerifierService("exact", num_workers=1, max_open=3) as service:
        app = VerifierServer(service)

        def judge(verifier: str) -> str:
            rows = [{**ROWS[0], "verifier": verifier}]
            return call(app, "POST", "/judge", {"rows": rows})[1]["verdicts"][0]["status"]

        assert [judge(f"exact*{weight}.5") for weight in range(20)] == ["passed"] * 20
        assert list(service._sums) == [f"exact*{n}.5" for n in (17, 18, 19)]
        assert judge("exact*17.5") == "passed"
        assert [judge(f"math + constant*{n}.5") for n in (1, 2)] == ["passed"] * 2
        assert "exact*17.5" in service._sums, "the one used longest ago is closed"
        assert "exact*18.5" not in service._sums
        for n in range(5):
            judge(f"exact + answer_tags*{n}.5")
        assert set(service._verifiers) <= {"exact", "answer_tags"}
        assert set(service.stats["verifiers"]) <= {"exact", "answer_tags"}


def test_the_threads_of_a_closed_expression_end(server: str) -> None:
    options = {"remote": {"url": server, "patience": 30.0}}

    def threads() -> set[str]:
        return {one.name for one in threading.enumerate() if one.name.startswith("assay-remote")}

    with VerifierService("exact", options=options, max_open=1) as asking:
        for name in ("exact", "math", "constant"):
            group = replace(
                group_of("2"), problem=Problem("p", "?", {"answer": "2"}, f"remote:{name}")
            )
            assert asking.judge([group])[0][0].judged
        deadline = time.monotonic() + 10
        while threads() != {"assay-remote:constant"} and time.monotonic() < deadline:
            time.sleep(0.02)
        assert threads() == {"assay-remote:constant"}
        assert list(asking.engine._executors) == ["remote:constant@1"]


def test_connections_to_servers_are_closed_when_the_process_ends() -> None:
    pytest.importorskip("httpx2")
    program = (
        "import http.server, threading\n"
        "from assay.verify import remote\n"
        "class Found(http.server.BaseHTTPRequestHandler):\n"
        "    protocol_version = 'HTTP/1.1'\n"
        "    log_message = lambda *_: None\n"
        "    def do_GET(self):\n"
        "        self.send_response(204)\n"
        "        self.end_headers()\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Found)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "url = f'http://127.0.0.1:{server.server_address[1]}'\n"
        "asked = remote._client.exchange('GET', url, None, key='', deadline=1e9, seconds=60)\n"
        "assert asked.status == 204\n"
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "ResourceWarning" not in done.stderr, done.stderr
