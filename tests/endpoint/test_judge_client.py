"""How the judge's client bears a real HTTP server that misbehaves in every way that servers do."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from judge_server import Answer, Asked, JudgeServer, chat, obedient

from assay.endpoint.costs import reset_judge_costs
from assay.endpoint.http_client import certificates
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.learned.judge import JUDGE, close_judges, judge_costs

RIGHT = '{"reasoning": "same", "verdict_CODE": "correct"}'
WRONG = '{"reasoning": "other", "verdict_CODE": "incorrect"}'
ECHO = '{"reasoning": "theirs", "verdict": "incorrect", "correct": false, "score": 0}'
SECRET = "sk-test-0123456789-abcdefghij"

Reply = Callable[[Asked], str | Answer]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No endpoint from the environment, no connection and no count from another test."""
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"ASSAY_JUDGE_{name}", raising=False)
    reset_judge_costs()
    yield
    close_judges()


def ask(url: str, completion: str = "The answer is 5", **options: Any) -> Part:
    options = {"url": url, "model": "m", "backoff": 0.001, "retries": 2} | options
    problem = Problem("p", "What is 2 + 3?", spec={"answer": "5"} | options)
    part = JUDGE.judge(problem, Completion.from_text(completion))
    assert isinstance(part, Part)
    return part


def in_turn(*replies: str | Answer) -> Reply:
    """Give each reply once, and then the last one for good."""
    left, lock = list(replies), threading.Lock()

    def reply(_: Asked) -> str | Answer:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return reply


def test_a_plain_server_gets_one_complete_request() -> None:
    with JudgeServer(obedient) as server:
        assert ask(server.url).passed is True
        assert ask(server.url, "The answer is 6").passed is False
        first = server.asked[0]
    assert first.path == "/v1/chat/completions"
    assert first.body["model"] == "m" and first.body["temperature"] == 0
    assert first.body["response_format"]["type"] == "json_schema"
    assert "authorization" not in first.headers


def test_certificates_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *given: reads.append(given))
    certificates.cache_clear()
    for _ in range(2):
        with JudgeServer(obedient) as server:
            assert ask(server.url).passed is True
        close_judges()
    certificates.cache_clear()
    assert len(reads) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        Answer(b"busy", status=500),
        Answer(b"", status=502),
        Answer(b"slow down", status=429),
        Answer(hang_up=True),
        Answer(b'{"choices": [', length=400),
        Answer(b'{"choices": [{"mess'),
        Answer(b"<html>a proxy's page</html>", headers={"Content-Type": "text/html"}),
        Answer(b"\x1f\x8b not gzip", headers={"Content-Encoding": "gzip"}),
        Answer(b'{"choices": []}'),
        Answer(b'{"choices": [{"message": null}]}'),
        Answer(b'{"error": {"message": "overloaded", "code": 503}}'),
        Answer(b"[1, 2]"),
        Answer(b"[" * 100_000),
        chat(""),
        chat(None),
        chat("correct"),
        chat('{"verdict_CODE": "maybe"}'),
        chat('{"verdict_CODE": "correct", "verdict_CODE": "incorrect"}'),
        chat('{"verdict_CODE": true}'),
        chat("<think>" + RIGHT),
        chat(f"<think>{RIGHT}</think>I cannot say."),
        chat(None, reasoning_content=RIGHT),
        chat(None, tool_calls=[{"function": {"name": "verdict", "arguments": RIGHT}}]),
        chat(None, refusal="I cannot judge that."),
        chat('{"reasoning": "so lo', finish_reason="length"),
    ],
    ids=lambda answer: f"{answer.status}-{answer.body[:60]!r}"[-60:],
)
def test_trouble_that_passes_is_tried_again(trouble: Answer) -> None:
    with JudgeServer(in_turn(trouble, trouble, RIGHT)) as server:
        assert ask(server.url).passed is True
        assert len(server.asked) == 3
    with JudgeServer(in_turn(trouble)) as server:
        part = ask(server.url)
        assert len(server.asked) == 3
    assert part.value is None and part.reason in ("error", "unavailable")
    assert "3 attempts" in part.detail and "\n" not in part.detail


def test_unreadable_replies_are_errors_and_unreachable_servers_unavailable() -> None:
    with JudgeServer(in_turn(chat("I would say yes."))) as server:
        assert ask(server.url).reason == "error"
    with JudgeServer(in_turn(Answer(b"no", status=503))) as server:
        part = ask(server.url)
    assert part.reason == "unavailable" and "HTTP 503" in part.detail
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        part = ask(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert part.reason == "unavailable" and "ConnectError" in part.detail


@pytest.mark.parametrize("status", [301, 401, 402, 403, 404, 413])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    headers = {"Location": "http://localhost:9/v1/chat/completions"}
    with JudgeServer(in_turn(Answer(b'{"error": "no"}', status, headers))) as server:
        part = ask(server.url)
        assert len(server.asked) == 1
    assert part.reason == "unavailable" and f"HTTP {status}" in part.detail


def test_401_names_the_variable_and_never_the_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ASSAY_JUDGE_KEY", f" {SECRET}\n")
    echo = {"error": {"message": f"Incorrect API key provided: {SECRET}"}}
    with JudgeServer(in_turn(Answer(json.dumps(echo).encode(), 401))) as server:
        part = ask(server.url)
        assert server.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    assert part.reason == "unavailable" and "ASSAY_JUDGE_KEY" in part.detail
    for status in (400, 404, 503):
        with JudgeServer(in_turn(Answer(json.dumps(echo).encode(), status))) as server:
            part = ask(server.url)
        assert "[key]" in part.detail and SECRET not in repr(part)
    for size in range(3970, 4001, 5):  # wherever a complaint is cut
        with JudgeServer(in_turn(Answer(b"x" * size + SECRET.encode(), 404))) as server:
            assert SECRET[:12] not in ask(server.url).detail
    reply = json.dumps({"reasoning": f"you sent {SECRET}", "verdict_CODE": "correct"})
    path = tmp_path / "replies.jsonl"
    with JudgeServer(in_turn(reply)) as server:
        assert ask(server.url, replies=str(path)).passed
    with JudgeServer(in_turn(chat(f"no verdict {SECRET}"))) as server:
        assert SECRET not in ask(server.url).detail
    close_judges()
    assert "[key]" in path.read_text()
    assert SECRET not in path.read_text() + caplog.text + repr(judge_costs())


def test_a_key_that_no_header_can_hold_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_JUDGE_KEY", f"{SECRET}\n{SECRET}")
    with pytest.raises(ValueError, match="ASSAY_JUDGE_KEY") as caught:
        ask("http://localhost:9")
    assert SECRET not in str(caught.value)


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ValueError, match=r"pip install 'assay-rl\[judge\]'"):
        ask("http://localhost:9")


@pytest.mark.parametrize("date", [False, True])
def test_retry_after_is_honored(date: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    value = formatdate(time.time() + 30, usegmt=True) if date else "30"
    limit = Answer(b"slow down", 429, {"Retry-After": value})
    with JudgeServer(in_turn(limit, RIGHT)) as server:
        assert ask(server.url).passed is True
    (wait,) = (seconds for seconds in waits if seconds > 1)
    assert 25 < wait <= 30


def test_retry_after_beyond_patience_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with JudgeServer(in_turn(Answer(b"", 429, {"Retry-After": "3600"}))) as server:
        part = ask(server.url, patience=30)
        assert len(server.asked) == 1
    assert part.reason == "unavailable" and "no time for another attempt" in part.detail
    assert all(seconds < 1 for seconds in waits)  # those of the server's own thread


def test_waits_double_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    for _ in range(2):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            ask(f"http://127.0.0.1:{taken.getsockname()[1]}", backoff=1.0, retries=4, patience=1e3)
    assert len(waits) == 8 and waits[:4] == waits[4:], "the jitter is seeded"
    for attempt, seconds in enumerate(waits[:4]):
        assert 0.5 * 2**attempt <= seconds < 2**attempt


def test_a_slow_server_is_a_timeout() -> None:
    with JudgeServer(in_turn(Answer(delay=1.5))) as server:
        part = ask(server.url, timeout=0.2, retries=1)
    assert part.reason == "timeout" and "0.2 s" in part.detail


def test_a_reply_that_drips_is_a_timeout() -> None:
    """Each byte comes in time, and the whole would take a minute."""
    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n")
                for _ in range(600):
                    sent.append(connection.send(b" "))
                    time.sleep(0.1)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        part = ask(url, timeout=0.6, retries=0)
        assert len(sent) < 600
        close_judges()
        thread.join(60)
    assert part.reason == "timeout"


def test_patience_bounds_all_attempts_together() -> None:
    with JudgeServer(in_turn(Answer(delay=0.3, status=500))) as server:
        part = ask(server.url, timeout=10, retries=100, patience=0.7)
        assert 1 <= len(server.asked) <= 3
    assert part.value is None


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("knows", ["json_object", None])
def test_an_endpoint_without_structured_output(status: int, knows: str | None) -> None:
    def reply(asked: Asked) -> str | Answer:
        form = asked.body.get("response_format", {}).get("type")
        return RIGHT if form == knows else Answer(b'{"detail": "unknown key"}', status)

    with JudgeServer(reply) as server:
        assert ask(server.url).passed is True
        first = len(server.asked)
        assert ask(server.url, "The answer is five").passed is True
        assert first == (2 if knows else 3)
        assert judge_costs()["m"]["unstructured"] == 2
        assert len(server.asked) == first + 1, "it is remembered"


def test_other_dialects() -> None:
    def reply(asked: Asked) -> str | Answer:
        body = asked.body
        if "max_tokens" in body:
            said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        elif "temperature" in body:
            said = "Unsupported value: 'temperature' does not support 0 with this model."
        elif body["messages"][0]["role"] == "system":
            said = "System role not supported"
        else:
            return obedient(asked)
        return Answer(json.dumps({"error": {"message": said}}).encode(), 400)

    with JudgeServer(reply) as server:
        assert ask(server.url).passed is True
        assert ask(server.url, "The answer is 6").passed is False
        assert len(server.asked) == 5
        assert server.asked[-1].body["response_format"]["type"] == "json_schema"
        assert server.asked[-1].prompt.startswith("You are an impartial examiner")


def test_a_refused_prompt_changes_nothing_for_the_next_one() -> None:
    """A text that the server's complaint repeats must not talk the client out of its settings."""

    def reply(asked: Asked) -> str | Answer:
        text = asked.data["answer"][0]
        return Answer(text.encode(), 400) if "temperature" in text else RIGHT

    with JudgeServer(reply) as server:
        part = ask(server.url, "'temperature' does not work, system role, max_completion_tokens")
        assert part.reason == "unavailable" and "HTTP 400" in part.detail
        assert ask(server.url).passed is True
        body = server.asked[-1].body
    assert body["temperature"] == 0 and "max_tokens" in body
    assert body["response_format"]["type"] == "json_schema"
    assert body["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"<think>{WRONG}</think>{RIGHT}",
        f"It was {WRONG} at first</think>\n{RIGHT}",
        RIGHT.replace("same", "it has <think> and </think> tags"),
        f"So: {RIGHT.replace('same', 'it has a <think> tag')}",
        f"Step by step. {ECHO} is what it says.\n```json\n{RIGHT}\n```\nDone {{x | x > 1}}. {ECHO}",
        RIGHT.replace('"correct"', '" Correct "'),
        '{"a": {"verdict": "incorrect"}} {"verdict_CODE": "correct", "verdict": "incorrect"}',
    ],
)
def test_the_verdict_under_the_key_of_the_request_counts(text: str) -> None:
    with JudgeServer(in_turn(text)) as server:
        assert ask(server.url, retries=0).passed is True


def test_content_in_parts_and_reasoning_beside_it() -> None:
    parts = [{"type": "text", "text": RIGHT[:20]}, {"type": "text", "text": RIGHT[20:]}]
    answer = chat(None, reasoning_content=WRONG)
    body = json.loads(answer.body)
    body["choices"][0]["message"]["content"] = parts
    with JudgeServer(in_turn(Answer(json.dumps(body).encode()))) as server:
        assert ask(server.url, retries=0).passed is True


def test_a_second_attempt_reminds_of_the_form() -> None:
    with JudgeServer(in_turn("yes", "yes", RIGHT)) as server:
        ask(server.url)
        ends = [asked.prompt.endswith("of the form asked for.") for asked in server.asked]
        assert ends == [False, True, True]
        assert server.asked[1].prompt == server.asked[2].prompt
    with JudgeServer(in_turn(Answer(b"", 503), RIGHT)) as server:
        ask(server.url)
        assert server.asked[0].prompt == server.asked[1].prompt


def test_an_endless_reply_is_cut_off() -> None:
    big = Answer(b" " * (9 * 2**20))
    with JudgeServer(in_turn(big)) as server:
        part = ask(server.url, retries=0)
    assert part.reason == "error" and "exceeds" in part.detail


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/api", "/api/v1/chat/completions"),
        ("/v1beta/openai/", "/v1beta/openai/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        (
            "/openai/deployments/x?api-version=2026-01-01",
            "/openai/deployments/x/chat/completions?api-version=2026-01-01",
        ),
    ],
)
def test_addresses(given: str, path: str) -> None:
    with JudgeServer(obedient) as server:
        assert ask(server.url.removesuffix("/v1") + given).passed is True
        assert server.asked[0].path == path


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://localhost:9")
    monkeypatch.setenv("http_proxy", "http://localhost:9")
    with JudgeServer(obedient) as server:
        assert ask(server.url).passed is True
        assert ask(server.url.replace("127.0.0.1", "localhost"), "five").passed is False


def test_further_keys_of_the_request() -> None:
    extra = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    with JudgeServer(obedient) as server:
        ask(server.url, request=extra, max_tokens=77, temperature=0.5)
        body = server.asked[0].body
    assert (
        body["reasoning_effort"] == "low"
        and body["chat_template_kwargs"] == extra["chat_template_kwargs"]
    )
    assert body["max_tokens"] == 77 and body["temperature"] == 0.5


def test_no_more_requests_at_a_time_than_allowed() -> None:
    now, most, lock = 0, 0, threading.Lock()

    def reply(asked: Asked) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return obedient(asked)

    def work(index: int) -> None:
        parts.append(ask(server.url, f"The answer is {index}", concurrency=3))

    parts: list[Part] = []
    with JudgeServer(reply) as server:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 3
    assert sorted(part.value for part in parts if part.value is not None) == [0.0] * 11 + [1.0]


def test_costs_are_counted() -> None:
    with JudgeServer(in_turn("nonsense", RIGHT)) as server:
        ask(server.url, price_input=3.0, price_output=10.0)
    (costs,) = judge_costs().values()
    assert costs == {
        "requests": 2, "failures": 1, "reused": 0, "unstructured": 0, "input_tokens": 200, "output_tokens": 40,
        "estimated": 0, "cost": pytest.approx((3 * 200 + 10 * 40) / 1e6),
    }  # fmt: skip


def test_costs_without_usage_are_estimated() -> None:
    with JudgeServer(in_turn(chat(RIGHT, usage=False))) as server:
        ask(server.url, price_input=1.0, price_output=1.0)
    (costs,) = judge_costs().values()
    assert costs["estimated"] == 1
    assert costs["input_tokens"] > 100 and costs["output_tokens"] > 10 and costs["cost"] > 0


def test_a_budget_is_never_overdrawn() -> None:
    prices = {"price_input": 0.0, "price_output": 50.0, "max_tokens": 20}  # 0.001 a request at most
    parts: list[Part] = []

    def work(index: int) -> None:
        parts.append(ask(server.url, f"{index}", budget=0.0055, concurrency=8, **prices))

    with JudgeServer(obedient) as server:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in range(12, 16):
            work(index)
        assert len(server.asked) == 5
    unpaid = [part for part in parts if part.value is None]
    assert len(unpaid) == 11 and all(part.reason == "unavailable" for part in unpaid)
    assert "budget of 0.0055" in unpaid[0].detail
    (costs,) = judge_costs().values()
    assert costs["cost"] == pytest.approx(0.005)


def test_what_a_request_set_aside_and_did_not_cost_is_free_again() -> None:
    prices = {
        "price_input": 0.0,
        "price_output": 50.0,
        "max_tokens": 40,
    }  # 0.002 at most, 0.001 in truth
    with JudgeServer(obedient) as server:
        parts = [ask(server.url, f"{index}", budget=0.0055, **prices) for index in range(6)]
        assert len(server.asked) == 4
    assert [part.value is None for part in parts] == [False] * 4 + [True] * 2
