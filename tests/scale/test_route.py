"""`assay model route` between real servers: rules, fallbacks, streams, counts, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from assay.cli.command import app as command_line
from assay.config import field_help
from assay.errors import UserError

uvicorn = pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "assay-rl[serve]"')
httpx2 = pytest.importorskip("httpx2", reason='needs httpx2: pip install "assay-rl[judge]"')

from openai_server import Model, served  # noqa: E402

from assay.scale.route import RouteServer  # noqa: E402
from assay.scale.route_config import RouteConfig, open_judge, read_config  # noqa: E402

CONFIG = """
[route]
{rule}
[cheap]
url = "{cheap}"
model = "small"
timeout = 0.5
price_input = 1.0
price_output = 2.0
request = {{ reasoning_effort = "low" }}
[strong]
url = "{strong}"
model = "large"
timeout = 0.5
price_output = 100.0
[verification]
num_workers = 1
"""
SCORES = """
def short(problem, completion):
    return 1.0 if len(problem.question) < 10 else 0.0

def broken(problem, completion):
    raise RuntimeError("no score today")
"""
JSON = {"content-type": "application/json"}
EASY, HARD = "1+1", "the sum of one and one and one"


@dataclass
class World:
    """A router in front of two models. lines: its log so far."""

    url: str
    server: RouteServer
    cheap: Model
    strong: Model
    capture: Any

    def ask(self, prompt: str = EASY, **more: Any) -> Any:
        body = {"model": "route", "messages": [{"role": "user", "content": prompt}], **more}
        return httpx2.post(
            f"{self.url}/v1/chat/completions", json=body, timeout=20, trust_env=False
        )

    def events(self, prompt: str = EASY, **more: Any) -> tuple[str, list[Any]]:
        """Return the header of the route, and the events of a stream."""
        reply = self.ask(prompt, stream=True, **more)
        assert reply.headers["content-type"] == "text/event-stream"
        data = [one.removeprefix("data: ") for one in reply.text.strip().split("\n\n")]
        route = reply.headers["x-assay-route"]
        return route, [json.loads(one) if one[0] == "{" else one for one in data]

    def line(self) -> dict[str, Any]:
        """Return the newest line of the log, once there is one."""
        for _ in range(200):
            lines = self.capture.readouterr().err.splitlines()
            if lines:
                return json.loads(lines[-1])
            time.sleep(0.01)
        raise AssertionError("no line in the log")


@pytest.fixture
def world(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., World]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_scores.py").write_text(SCORES)
    with ExitStack() as stack:

        def make(rule: str, **changes: Any) -> World:
            cheap, strong = Model("two"), Model("it is two indeed")
            models = {"cheap": cheap, "strong": strong}
            urls = {name: stack.enter_context(served(one)) for name, one in models.items()}
            path = tmp_path / "route.toml"
            path.write_text(CONFIG.format(rule=rule, **urls | changes))
            config = read_config(path)
            server = RouteServer(config, open_judge(config, str(path), stack))
            return World(stack.enter_context(served(server)), server, cheap, strong, capsys)

        yield make


def text_of(reply: Any) -> str:
    return reply.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("rule", "request_", "route"),
    [
        ('by = "length"\nthreshold = 10', {}, "cheap easy"),
        ('by = "length"\nthreshold = 10', {"prompt": HARD}, "strong hard"),
        ('by = "label"\nthreshold = 1', {"metadata": {"difficulty": "easy"}}, "cheap easy"),
        ('by = "label"\nthreshold = 1', {"metadata": {"difficulty": "medium"}}, "strong hard"),
        ('by = "label"\nthreshold = 1', {"metadata": {"difficulty": "0.5"}}, "cheap easy"),
        ('by = "label"\nthreshold = 1', {"metadata": {"difficulty": "so so"}}, "strong unknown"),
        ('by = "label"\nthreshold = 1', {}, "strong unknown"),
        ('by = "label"\nlabel = "level"\nlevels = ["a", "b"]\nthreshold = 1', {"metadata": {"level": "a"}}, "cheap easy"),
        ('by = "confidence"\nthreshold = 0.2', {}, "cheap easy"),
        ('by = "confidence"\nthreshold = 0.05', {}, "strong unsure"),
        ('by = "exact"\nthreshold = 0.5', {"metadata": {"answer": "two"}}, "cheap easy"),
        ('by = "exact"\nthreshold = 0.5', {"metadata": {"answer": "three"}}, "strong unsure"),
        ('by = "exact"\nthreshold = 0.5', {}, "strong unknown"),
        ('by = "my_scores:short"\nthreshold = 0.5\nreads = "prompt"', {}, "cheap easy"),
        ('by = "my_scores:short"\nthreshold = 0.5\nreads = "prompt"', {"prompt": HARD}, "strong hard"),
        ('by = "my_scores:broken"\nthreshold = 0.5\nreads = "prompt"', {}, "strong unknown"),
        ('by = "length"\nthreshold = 10', {"prompt": HARD, "model": "cheap"}, "cheap named"),
        ('by = "length"\nthreshold = 10', {"model": "strong"}, "strong named"),
    ],
)  # fmt: skip
def test_the_rule_or_the_client_chooses(
    world: Any, rule: str, request_: dict[str, Any], route: str
) -> None:
    here = world(rule)
    reply = here.ask(**request_)
    model = here.cheap if route.startswith("cheap") else here.strong
    assert (reply.status_code, reply.headers["x-assay-route"]) == (200, route)
    assert text_of(reply) == model.text
    assert "logprobs" not in reply.json()["choices"][0], "the client has not asked for them"
    line = here.line()
    assert line["ended"] == "answered" and bool(line["unknown"]) == ("unknown" in route)
    assert [line["calls"][-1]["model"], line["calls"][-1]["reason"]] == route.split() or (
        route == "cheap easy"
    )
    named = request_.get("prompt", EASY)
    assert named not in json.dumps(line), "no contents in the log"


def test_each_model_has_its_name_its_keys_and_the_clients(world: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("ASSAY_ROUTE_KEY", "my-secret-key")
    here = world('by = "length"\nthreshold = 10')
    here.ask(temperature=0.5, reasoning_effort="high")
    (asked,) = here.cheap.asked
    assert (asked["model"], asked["reasoning_effort"], asked["temperature"]) == (
        "small",
        "low",
        0.5,
    )
    assert asked["key"] == b"Bearer my-secret-key"
    here.cheap.status = here.strong.status = 500
    said = here.ask().text
    assert "[key]" in said and "my-secret-key" not in said
    models = httpx2.get(f"{here.url}/v1/models", trust_env=False).json()["data"]
    assert [one["id"] for one in models] == ["route", "cheap", "strong"]


@pytest.mark.parametrize("fault", ["down", "500", "slow", "half", "nonsense"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_fails_is_replaced_by_the_other(world: Any, fault: str, stream: bool) -> None:
    down = {"cheap": "http://localhost:9"} if fault == "down" else {}
    here = world('by = "length"\nthreshold = 10', **down)
    if fault == "500":
        here.cheap.status = 500
    elif fault == "slow":
        here.cheap.before = 5.0
    elif fault == "half":
        here.cheap.cut, here.cheap.hangs = (0 if stream else 20), True
    elif fault == "nonsense":
        here.cheap.cut = 0 if stream else 20
    reply = here.ask(stream=stream)
    assert reply.status_code == 200 and reply.headers["x-assay-route"] == "strong fallback"
    assert "indeed" in reply.text
    line = here.line()
    failed, answered = line["calls"]
    assert failed["trouble"] and not answered["trouble"] and failed["output_tokens"] == 0
    assert fault != "slow" or failed["trouble"].endswith(": no data for 0.5 s")
    assert here.server.counted["failures", "cheap", "easy"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "instead",
    [
        {"choices": [1]},
        {"choices": [None]},
        {"choices": None},
        {"choices": [{"message": 3, "delta": "x"}]},
        {"choices": [{"message": {"tool_calls": [1]}, "delta": {"tool_calls": 1}}]},
    ],
)
def test_a_reply_that_is_none_is_replaced_by_the_others(
    world: Any, instead: dict[str, Any], stream: bool
) -> None:
    for rule in ('by = "length"\nthreshold = 10', 'by = "confidence"\nthreshold = 0.2'):
        here = world(rule)
        here.cheap.instead = instead
        reply = here.ask(stream=stream)
        assert reply.status_code == 200 and reply.headers["x-assay-route"] == "strong fallback"
        assert "an invalid reply:" in here.line()["calls"][0]["trouble"]


@pytest.mark.parametrize(
    ("stream", "drip"), [(False, b" "), (True, b"data: {"), (True, b": still here\n\n")]
)
def test_a_model_that_drips_is_given_up_after_its_timeout(
    world: Any, stream: bool, drip: bytes
) -> None:
    here = world('by = "length"\nthreshold = 10')
    here.cheap.drip = drip
    reply = here.ask(stream=stream)
    if drip.startswith(b":"):  # comments are passed on, so that it is too late for the other
        assert "ReadTimeout: no data for 0.5 s" in reply.text and "[DONE]" not in reply.text
    else:
        assert reply.headers["x-assay-route"] == "strong fallback" and "indeed" in reply.text
    assert here.line()["calls"][0]["trouble"] == "ReadTimeout: no data for 0.5 s"
    assert here.cheap.left.wait(5.0)


def test_a_cheap_reply_stands_where_the_strong_model_fails(world: Any) -> None:
    here = world('by = "confidence"\nthreshold = 0.05')
    here.strong.status = 503
    reply = here.ask()
    assert (text_of(reply), reply.headers["x-assay-route"]) == ("two", "cheap fallback")
    here.cheap.status = 503
    refused = here.ask()
    assert refused.status_code == 502
    assert "cheap: HTTP 503" in refused.json()["error"]["message"]
    assert "strong: HTTP 503" in here.line()["ended"]


def test_a_request_that_a_model_refuses_is_not_sent_to_the_other(world: Any) -> None:
    here = world('by = "length"\nthreshold = 10')
    here.cheap.status = 400
    reply = here.ask()
    assert reply.status_code == 400 and "cheap: HTTP 400" in reply.json()["error"]["message"]
    assert not here.strong.asked


def test_events_are_passed_on_as_they_come(world: Any) -> None:
    here = world('by = "length"\nthreshold = 10')
    here.strong.text = "one two three"
    here.strong.hangs = True
    here.strong.cut = 2
    body = {"messages": [{"role": "user", "content": HARD}], "stream": True}
    seen: list[tuple[float, bytes]] = []
    with httpx2.stream(
        "POST", f"{here.url}/v1/chat/completions", json=body, trust_env=False
    ) as reply:
        for chunk in reply.iter_bytes():
            seen.append((time.perf_counter(), chunk))
    whole = b"".join(chunk for _, chunk in seen)
    assert b"one" in whole and b"two" in whole, "what came before it hung was passed on"
    assert b"ReadTimeout" in whole and b"[DONE]" not in whole, "an error, and no end"
    assert seen[-1][0] - seen[0][0] > 0.3, "the first event did not wait for the last"
    line = here.line()
    assert "ReadTimeout" in line["ended"] and line["calls"][0]["estimated"]


def test_a_stream_of_a_reply_that_was_looked_at(world: Any) -> None:
    here = world('by = "confidence"\nthreshold = 0.2')
    route, events = here.events()
    assert route == "cheap easy" and events[-1] == "[DONE]"
    assert events[0]["choices"][0]["delta"]["content"] == "two"
    assert events[0]["object"] == "chat.completion.chunk" and len(events) == 2
    _, events = here.events(stream_options={"include_usage": True})
    assert events[1]["usage"]["completion_tokens"] == 1 and events[1]["choices"] == []
    assert "stream" not in here.cheap.asked[0]


@pytest.mark.parametrize("wanted", [False, True])
def test_usage_is_counted_and_shown_only_to_who_asked(world: Any, wanted: bool) -> None:
    here = world('by = "length"\nthreshold = 10')
    options = {"stream_options": {"include_usage": True}} if wanted else {}
    _, events = here.events(HARD, **options)
    assert [one for one in events if one != "[DONE]" and not one["choices"]] == (
        [{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 4}}] if wanted else []
    )
    (call,) = here.line()["calls"]
    assert (call["input_tokens"], call["output_tokens"], call["estimated"]) == (10, 4, False)


def test_cost_is_counted_by_model_and_reason(world: Any) -> None:
    here = world('by = "confidence"\nthreshold = 0.2')
    here.ask()
    here.cheap.logprob = -1.0
    here.ask()
    here.cheap.usage = here.strong.usage = False
    here.ask("1" * 30)
    metrics = httpx2.get(f"{here.url}/metrics", trust_env=False).text
    found = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")

    def value(what: str, model: str, reason: str) -> float:
        return float(found[f'assay_route_{what}_total{{model="{model}",reason="{reason}"}}'])

    assert value("cost", "cheap", "easy") == pytest.approx((10 * 1.0 + 1 * 2.0) / 1e6)
    assert value("cost", "strong", "unsure") == pytest.approx((4 + 6) * 100.0 / 1e6)
    assert value("output_tokens", "cheap", "tried") == 1 + 1, "3 characters: a token"
    assert value("input_tokens", "strong", "unsure") == 10 + 10, "30 characters: 10 tokens"
    assert value("estimated", "strong", "unsure") == 1
    assert value("calls", "cheap", "tried") == 2
    assert found['assay_requests_total{status="200"}'] == "3"
    health = httpx2.get(f"{here.url}/health", trust_env=False).json()
    assert health == {"status": "ok", "waiting": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_model(world: Any, stream: bool) -> None:
    here = world('by = "length"\nthreshold = 10')
    here.server.models["cheap"].client.seconds = 30.0
    here.cheap.hangs, here.cheap.cut = True, (1 if stream else 20)
    body = {"messages": [{"role": "user", "content": EASY}], "stream": stream}
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{here.url}/v1/chat/completions", json=body, timeout=0.4, trust_env=False)
    assert here.cheap.left.wait(5.0), "its request was given up"
    assert here.line()["ended"] == "the client left"
    assert here.server.waiting == 0 and not here.strong.asked


def test_what_finds_no_room_is_refused(world: Any) -> None:
    here = world('by = "length"\nthreshold = 10\nmax_waiting = 2')
    here.cheap.before = 0.4
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(here.ask().status_code)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(found)) == [200, 503] and found.count(200) >= 2


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"messages": []}', b'{"messages": [3]}', b'{"messages": "hello"}',
             b'{"messages": [{"content": "x"}], "metadata": 3}', b'{"messages": [{"content": "x"}], "stream_options": [1]}',
             b'{"messages": [{"content": "x"}], "model": ["cheap"]}', b'{"messages": [{"content": "x"}], "stream": 3}',
             b'{"messages": [{"content": [3]}]}']
)  # fmt: skip
def test_a_wrong_body_is_told_in_one_line(world: Any, body: bytes) -> None:
    here = world('by = "length"\nthreshold = 10')
    reply = httpx2.post(
        f"{here.url}/v1/chat/completions", content=body, headers=JSON, trust_env=False
    )
    assert reply.status_code == 400
    assert "messages, a list of objects" in reply.json()["error"]["message"]
    assert httpx2.get(f"{here.url}/v1/nothing", trust_env=False).status_code == 404


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('by = "length"', 'bye = "length"'), "route.toml:3 route.bye: unknown key; did you mean route.by?"),
        (('model = "small"', "modell = 3"), "cheap.modell: unknown key; did you mean cheap.model?"),
        (('by = "length"', 'by = "confidense"'), "route.by: found 'confidense'"),
        (('by = "length"', 'by = "no_such_module:f"'), "no module 'no_such_module'"),
        (("threshold = 10", ""), "route.threshold: missing"),
        (("threshold = 10", 'threshold = "10"'), "write 10, without quotes"),
        (("http://c", "http://user:secret@c"), "cheap.url: accepted: an http or https address"),
        (("http://c", "http://c d"), "cheap.url: accepted: an http or https address"),
        (("threshold = 10", 'threshold = 1\nlevels = ["a", "a"]'), 'route.levels: found ["a", "a"]; accepted: each'),
        (("timeout = 0.5", "timeout = 0"), "cheap.timeout: found 0"),
        (("[strong]", "[stronger]"), "stronger: unknown key"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_told_before_a_port_is_opened(
    tmp_path: Path, change: tuple[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.scale.listening.bind", None)
    path = tmp_path / "route.toml"
    text = CONFIG.format(rule='by = "length"\nthreshold = 10', cheap="http://c", strong="http://s")
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    result = CliRunner().invoke(command_line, ["model", "route", str(path)])
    assert isinstance(result.exception, UserError) and result.exception.exit_code == 2
    assert words in str(result.exception) and "secret" not in str(result.exception)


def test_every_key_stands_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs/routing.md").read_text(encoding="utf-8")
    keys = [key for key, *_ in field_help(RouteConfig) if not key.startswith("verification.")]
    assert len(keys) > 10
    assert not [key for key in keys if f"`{key.split('.')[-1]}`" not in page]
