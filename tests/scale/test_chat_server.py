"""`assay model serve`: the reasoning never leaves the server, and hostile requests are refused."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from assay.cli.command import app as command_line
from assay.config import SamplingConfig
from assay.errors import ConfigError, UserError
from assay.testing import save_tiny_model
from assay.types import Completion, Group, Message, Problem, Prompt, ThinkFormat

uvicorn = pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "assay-rl[serve]"')
httpx2 = pytest.importorskip("httpx2", reason='needs httpx2: pip install "assay-rl[judge]"')

from openai_server import Model, served  # noqa: E402

from assay.scale import chat_server  # noqa: E402
from assay.scale.chat_batches import ChatBatches, ChatJob, choice_of  # noqa: E402
from assay.scale.chat_server import ChatReply, ReasoningServer, summary_of  # noqa: E402
from assay.scale.chat_upstream import ChatUpstream  # noqa: E402
from assay.session.chat_model import open_chat_model  # noqa: E402

SECRET = "pineapple"
THOUGHT = f"I think of a {SECRET}. Then I add. So it is 4."
Reply = Callable[[Any], Sequence[Completion]]


def completion(text: str, think: ThinkFormat | None = None, cut: bool = False) -> Completion:
    reason: Any = "length" if cut else "eos"
    think = think or ThinkFormat("opened")
    return Completion.from_text(text, think=think, num_tokens=9, finish_reason=reason)


class Told:
    """A backend that returns given completions. asked: the requests so far."""

    def __init__(self, *completions: Completion) -> None:
        self.completions, self.asked = completions, list[Any]()
        self.seconds = self.checking = 0.0
        self.failure: Exception | None = None
        self.left = threading.Event()

    async def check(self, request: Any) -> Any:
        self.asked.append(request)
        await self._sleep(self.checking)
        return request

    async def reply(self, checked: Any) -> ChatReply:
        await self._sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return ChatReply([choice_of(one, checked.stop) for one in self.completions], 5)

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def close(self) -> None:
        """Nothing is held."""


def ask(url: str, prompt: Any = "2+2?", **more: Any) -> Any:
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    body = {"messages": messages, **more}
    # json.dumps escapes lone surrogates, which httpx2 itself refuses to send.
    sent = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
    return httpx2.post(f"{url}/v1/chat/completions", **sent, timeout=30, trust_env=False)


def events_of(text: str) -> list[Any]:
    data = [one.removeprefix("data: ") for one in text.strip().split("\n\n") if one[0] != ":"]
    return [json.loads(one) if one[0] == "{" else one for one in data]


CASES = [
    (f"{THOUGHT}</think>4", "4", "stop"),
    (f"<think>{THOUGHT}</think>\n\n4", "4", "stop"),
    (f"{THOUGHT}</think> no </think>4", "4", "stop"),
    (f"{THOUGHT} <think>{SECRET}</think> {SECRET}</think>4", "4", "stop"),
    (f"{THOUGHT}</think>4 <think>{SECRET}", "4", "stop"),
    (f"{THOUGHT}< / THINK >4", "4", "stop"),
    (f"{THOUGHT}", "", "length"),
    (f"{THOUGHT}</thin", "", "length"),
    (f"{THOUGHT} [/think] {SECRET}", "", "length"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_the_reasoning_leaves_the_server_in_no_field(stream: bool) -> None:
    for text, answer, reason in CASES:
        backend = Told(completion(text, cut=reason == "length"))
        with served(ReasoningServer(backend, "m")) as url:
            reply = ask(url, stream=stream, stream_options={"include_usage": True}, n=1)
            assert reply.status_code == 200
            whole = reply.text + str(reply.headers) + httpx2.get(f"{url}/metrics").text
        assert SECRET not in whole and "think" not in whole.lower(), text
        if stream:
            *events, done = events_of(reply.text)
            assert done == "[DONE]" and events[-1]["usage"]["prompt_tokens"] == 5
            choices = [one for event in events for one in event["choices"]]
            assert "".join(one["delta"].get("content", "") for one in choices) == answer
            assert choices[-1]["finish_reason"] == reason
        else:
            (choice,) = reply.json()["choices"]
            assert choice["message"] == {"role": "assistant", "content": answer}
            assert choice["finish_reason"] == reason


def test_the_reasoning_is_shown_or_summarized_on_request() -> None:
    backend = Told(completion(f"{THOUGHT}</think>4"))
    for how, key, text in (
        ("show", "reasoning_content", THOUGHT),
        ("summary", "reasoning_summary", f"I think of a {SECRET}. ... So it is 4."),
    ):
        with served(ReasoningServer(backend, "m", how)) as url:  # type: ignore[arg-type]
            message = ask(url).json()["choices"][0]["message"]
            assert message[key] == text and message["content"] == "4"
            deltas = [
                one["choices"][0]["delta"] for one in events_of(ask(url, stream=True).text)[:-1]
            ]
            assert "".join(one.get(key, "") for one in deltas) == text
    assert summary_of("") == "" and summary_of("One") == "One"
    assert len(summary_of("a" * 999 + ". " + "b" * 999)) < 450


def test_stop_strings_end_the_answer_and_not_the_reasoning() -> None:
    backend = Told(completion("a STOP b</think>x STOP y", cut=True))
    with served(ReasoningServer(backend, "m")) as url:
        (choice,) = ask(url, stop="STOP").json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("x ", "stop")


HOSTILE: list[tuple[dict[str, Any], int]] = [
    ({"content": b"{"}, 400),
    ({"content": b"[" * 100_000}, 400),
    ({"content": b"\xff\xfe"}, 400),
    ({"content": b"[]"}, 400),
    # The body is parsed in the event loop, where 30 MB would stop the server for seconds.
    ({"content": b" " * (2 * 2**20 + 1)}, 413),
    ({"content": b'{"messages": NaN}'}, 400),
    ({"json": {}}, 400),
    ({"json": {"messages": []}}, 400),
    ({"json": {"messages": [{"role": "root", "content": "x"}]}}, 400),
    ({"json": {"messages": [{"role": "user"}]}}, 400),
    ({"json": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}}, 400),
    ({"json": {"messages": [{"role": "user", "content": "x"}] * 1001}}, 400),
    ({"more": {"model": "other"}}, 404),
    ({"more": {"max_completion_tokens": 0}}, 400),
    ({"more": {"max_tokens": 2**40}}, 400),
    ({"more": {"max_tokens": 3, "max_completion_tokens": 4}}, 400),
    ({"more": {"temperature": -1}}, 400),
    ({"more": {"temperature": "hot"}}, 400),
    ({"more": {"temperature": int("9" * 400)}}, 400),
    ({"more": {"top_p": 0}}, 400),
    ({"more": {"n": 10**6}}, 400),
    ({"more": {"n": True}}, 400),
    ({"more": {"seed": 2**64}}, 400),
    ({"more": {"stop": [""]}}, 400),
    ({"more": {"stop": ["x"] * 9}}, 400),
    ({"more": {"stream": "yes"}}, 400),
    ({"more": {"stream_options": []}}, 400),
    ({"more": {"stream_options": {"include_usage": 3}}}, 400),
    ({"more": {"logprobs": True}}, 400),
    ({"more": {"tools": [{"type": "function"}]}}, 400),
    ({"more": {"response_format": {"type": "json_object"}}}, 400),
    ({"more": {"no\nsuch\nkey": 1}}, 400),
    ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
    ({"content": b"{}", "headers": {"host": "evil.example"}}, 403),
    ({"content": b"{}", "headers": {"origin": "http://evil.example"}}, 403),
]


def test_hostile_requests_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    backend = Told(completion("x"))
    with served(ReasoningServer(backend, "m")) as url:
        where = f"{url}/v1/chat/completions"
        for asked, status in HOSTILE:
            asked = dict(asked)
            if more := asked.pop("more", None):
                asked["json"] = {"messages": [{"role": "user", "content": "x"}], **more}
            headers = {"content-type": "application/json", **asked.pop("headers", {})}
            reply = httpx2.post(where, headers=headers, timeout=20, trust_env=False, **asked)
            assert reply.status_code == status, asked
            said = reply.json()["error"]["message"]
            assert said and "\n" not in said and len(said) < 300, asked
        assert httpx2.get(where, trust_env=False).status_code in (404, 405)
        assert ask(url, user="u", frequency_penalty=0, logprobs=False).status_code == 200
    assert len(backend.asked) == 1 and "Traceback" not in capsys.readouterr().err


def test_a_client_that_leaves_ends_its_request_and_a_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_server, "KEEP_ALIVE_SECONDS", 0.05)
    backend = Told(completion(f"{THOUGHT}</think>4"))
    backend.seconds = 30.0
    server = ReasoningServer(backend, "m", max_waiting=1)
    with served(server) as url:
        where, body = f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
        with httpx2.stream("POST", where, json={**body, "stream": True}, trust_env=False) as reply:
            lines = reply.iter_lines()
            assert any(line == ": sampling" for line in lines), "the connection is kept open"
            assert ask(url).status_code == 503, "the server is full"
        assert backend.left.wait(20), "the work for a client that left ends"
        while server.waiting:
            time.sleep(0.01)
        backend.seconds, backend.failure = 0.0, RuntimeError(SECRET)
        assert ask(url).status_code == 500
        text = ask(url, stream=True).text
        assert "see the server's log" in text and "[DONE]" not in text and SECRET not in text
        backend.failure, backend.seconds, server.seconds = None, 30.0, 0.05
        assert ask(url).status_code == 504


def test_the_check_of_a_request_ends_with_its_client_and_its_time() -> None:
    backend = Told(completion("x</think>4"))
    backend.checking = 30.0
    server = ReasoningServer(backend, "m", seconds=0.05)
    with served(server) as url:
        assert ask(url, stream=True).status_code == 504
        server.seconds = 30.0
        backend.left.clear()
        body = {"messages": [{"role": "user", "content": "x"}]}
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=0.5, trust_env=False)
        assert backend.left.wait(20), "the check for a client that left ends"


def upstream_case(model: Model, think: str = "free", **settings: Any) -> Iterator[str]:
    with served(model) as there:
        backend = ChatUpstream(there, "big", ThinkFormat(think), **settings)  # type: ignore[arg-type]
        with served(ReasoningServer(backend, "m")) as url:
            yield url


def test_an_upstream_server_is_split_and_its_faults_are_bounded() -> None:
    model = Model("")
    model.usage = False
    for said, think, answer in (
        ({"content": f"<think>{THOUGHT}</think>4"}, "free", "4"),
        ({"content": f"{THOUGHT}</think>4"}, "free", "4"),
        ({"content": "4", "reasoning_content": THOUGHT}, "opened", "4"),
        ({"content": THOUGHT}, "opened", ""),
        ({"content": None, "reasoning": THOUGHT}, "free", ""),
    ):
        choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": "length"}
        usage = {"prompt_tokens": 3, "completion_tokens": 8}
        usage |= {"completion_tokens_details": {"reasoning_tokens": 6}}  # type: ignore[dict-item]
        model.instead = {"choices": [choice], "usage": usage}
        for url in upstream_case(model, think):
            reply = ask(url, max_completion_tokens=7, stop="x", reasoning_effort="low")
            assert reply.status_code == 200, reply.text
            assert SECRET not in reply.text
            assert reply.json()["choices"][0]["message"]["content"] == answer
            assert reply.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
            assert ask(url, thinking_budget=5).status_code == 400
    sent = model.asked[0]
    assert sent["model"] == "big" and sent["max_tokens"] == 7
    assert sent["reasoning_effort"] == "low" and "stop" not in sent

    for fault, status in (
        ({"instead": {"choices": []}}, 502),
        ({"instead": {"choices": [{"message": {"content": [SECRET]}}]}}, 502),
        ({"instead": {"choices": [{"message": {"content": "4"}}], "usage": [1]}}, 502),
        ({"instead": {"choices": [{"message": {"content": "4"}}], "usage": "x"}}, 502),
        ({"status": 500}, 502),
        ({"status": 400}, 400),
        ({"before": 20.0}, 504),
    ):
        broken = Model(SECRET)
        broken.usage = False
        vars(broken).update(fault)
        for url in upstream_case(broken, seconds=0.3):
            reply = ask(url)
            assert reply.status_code == status and SECRET not in reply.text, fault
    with pytest.raises(ConfigError, match="--server"):
        ChatUpstream("ftp://x", "m", ThinkFormat())


def test_counts_that_an_upstream_server_does_not_report_are_unknown_and_not_zero() -> None:
    model = Model("")
    model.usage = False
    choice = {"index": 0, "message": {"content": f"{THOUGHT}</think>4"}, "finish_reason": "stop"}
    counts = {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    for usage, unknown in ((counts, 16), (None, 0)):
        model.instead = {"choices": [choice], "usage": usage}
        for url in upstream_case(model, "opened"):
            assert ask(url).json()["usage"] == usage
            options = {"stream": True, "stream_options": {"include_usage": True}}
            assert events_of(ask(url, **options).text)[-2]["usage"] == usage
            metrics = httpx2.get(f"{url}/metrics", trust_env=False).text
            assert f'kind="unknown"}} {unknown}\n' in metrics
            assert 'kind="answer"} 0\n' in metrics


class SlowEngine:
    """An engine whose calls can be held. calls: the ids of each batch."""

    def __init__(self) -> None:
        self.settings, self.calls = SimpleNamespace(slots=4), list[list[str]]()
        self.render: Any = None
        self.watch: Any = None
        self.go = threading.Event()

    def generate(
        self, problems: Sequence[Problem], sampling: Any, n: int, on_group: Any = None
    ) -> None:
        self.calls.append([one.id for one in problems])
        while not self.go.wait(0.01):
            self.watch(None)
        for problem in problems:
            prompt = self.render(problem)
            on_group(Group(problem, prompt, (completion(f"x</think>{problem.id}"),) * n))


def job(id: str, **sampling: Any) -> ChatJob:
    prompt = Prompt("?", np.ones(2, np.int32))
    return ChatJob(Problem(id, "?"), prompt, SamplingConfig(**sampling), 1)


def test_waiting_requests_with_equal_settings_share_a_batch() -> None:
    engine = SlowEngine()
    batches = ChatBatches(engine)  # type: ignore[arg-type]

    async def both() -> None:
        first = asyncio.ensure_future(batches.reply(job("a")))
        while not engine.calls:
            await asyncio.sleep(0.01)
        rest = [job("b"), job("c"), job("b"), job("d", max_tokens=5), job("e")]
        waiting = [asyncio.ensure_future(batches.reply(one)) for one in rest]
        await asyncio.sleep(0.05)
        waiting[-1].cancel()
        engine.go.set()
        assert (await first).choices[0].answer == "a"
        answers = [(await one).choices[0].answer for one in waiting[:-1]]
        assert answers == ["b", "c", "b", "d"]
        engine.go.clear()
        left = asyncio.ensure_future(batches.reply(job("f")))
        while len(engine.calls) < 5:
            await asyncio.sleep(0.01)
        left.cancel()
        engine.go.set()
        assert (await batches.reply(job("g"))).choices[0].answer == "g"

    asyncio.run(both())
    assert engine.calls[:4] == [["a"], ["b", "c"], ["b"], ["d"]]
    batches.close()


def test_jobs_of_clients_that_left_do_not_pile_up_during_a_batch() -> None:
    engine = SlowEngine()
    batches = ChatBatches(engine)  # type: ignore[arg-type]

    async def leave() -> None:
        first = asyncio.ensure_future(batches.reply(job("a")))
        while not engine.calls:
            await asyncio.sleep(0.01)
        left = [asyncio.ensure_future(batches.reply(job("b"))) for _ in range(9)]
        await asyncio.sleep(0.05)
        for one in left:
            one.cancel()
        await asyncio.wait(left)
        held = len(batches._waiting)
        engine.go.set()
        await first
        assert held == 0

    asyncio.run(leave())
    batches.close()


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served") / "model"
    save_tiny_model(folder, max_positions=256)
    settings = ["data.think=opened", "data.think_open={", "data.think_close=}"]
    settings += ["data.prompt_template={question}", "sampling.think_stop_text=!{close}"]
    settings += ["sampling.efforts={low=6, brief='Be brief.'}", "data.template=base"]
    backend, config = open_chat_model(str(folder), {"max_tokens": 24, "overrides": settings}, 4)
    assert config.engine.slots == 4
    with served(ReasoningServer(backend, "tiny", "show")) as url:
        yield url
    backend._batches.close()


def test_budgets_efforts_and_seeds_are_those_of_the_engine(served_model: str) -> None:
    def of(**more: Any) -> tuple[str, str, dict[str, Any]]:
        reply = ask(served_model, seed=3, **more)
        assert reply.status_code == 200, reply.text
        message = reply.json()["choices"][0]["message"]
        return message["reasoning_content"], message["content"], reply.json()["usage"]

    whole = of()
    assert of() == whole, "equal seeds give equal completions"
    short = of(thinking_budget=8)
    assert short[2]["completion_tokens_details"]["reasoning_tokens"] <= 8
    assert short[0].endswith("!") and whole[0].startswith(short[0][:4])
    low = of(reasoning_effort="low")
    assert low[2]["completion_tokens_details"]["reasoning_tokens"] <= 6
    assert of(max_completion_tokens=3)[2]["completion_tokens"] == 3
    assert of(n=3)[2]["completion_tokens"] > whole[2]["completion_tokens"]
    names = [one["id"] for one in httpx2.get(f"{served_model}/v1/models").json()["data"]]
    assert names == ["tiny"]
    for more, words in (
        ({"thinking_budget": 1}, "thinking_budget"),
        ({"thinking_budget": 24}, "thinking_budget"),
        ({"reasoning_effort": "huge"}, "low, brief"),
        ({"max_completion_tokens": 25}, "at most 24"),
        ({"prompt": "x" * 9999}, "at most"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "the user ends"),
        ({"prompt": "\ud800"}, "UTF-8"),
        ({"temperature": 101}, "temperature"),
    ):
        reply = ask(served_model, **more)  # type: ignore[arg-type]
        assert reply.status_code == 400 and words in reply.json()["error"]["message"], reply.text


def test_the_client_library_of_openai_reads_replies_and_streams(served_model: str) -> None:
    openai = pytest.importorskip("openai", reason="needs openai")
    client = openai.OpenAI(base_url=f"{served_model}/v1", api_key="none")
    asked: list[Message] = [{"role": "user", "content": "1+1"}]
    whole = client.chat.completions.create(model="tiny", messages=asked, seed=1)
    parts = client.chat.completions.create(model="tiny", messages=asked, seed=1, stream=True)
    said = "".join(one.choices[0].delta.content or "" for one in parts)
    assert said == whole.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--reasoning", "all"], "hide, show, summary"),
        (["--server", "http://localhost:9", "--think", "maybe"], "free, opened, off"),
        # A wrong guess would hand out the start of a reasoning that is cut off.
        (["--server", "http://localhost:9"], "--think"),
        (["--server", "http://localhost:9", "--max-tokens", "5"], "--max-tokens"),
        (["--host", "0.0.0.0"], "token"),
    ],
)
def test_the_command_refuses_bad_options_in_one_line(options: list[str], words: str) -> None:
    result = CliRunner().invoke(command_line, ["model", "serve", "m", "--port", "0", *options])
    assert isinstance(result.exception, UserError) and words in str(result.exception)


def test_a_run_whose_model_calls_tools_is_not_served(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="a model without tools"):
        open_chat_model(str(tmp_path / "model"), {"overrides": ['tools.names=["calculator"]']}, 1)
