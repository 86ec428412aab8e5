"""Model servers that fail: a completion that cannot be had is not judged, and never counts as 0."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer, Asked
from model_server import ModelServer, said
from train_worlds import REWARD, World

from assay.errors import AssayError, UserError
from assay.session import completion_server
from assay.training.api import evaluate


@pytest.fixture
def server(world: World) -> Iterator[ModelServer]:
    server = ModelServer(world.folder / "model")
    with server:
        yield server


def measured(world: World, out: Path, **more: Any) -> Any:
    model, problems = str(world.folder / "model"), [str(world.folder / "train.jsonl")]
    overrides = ["server.retries=0", "server.concurrency=2", *more.pop("more", [])]
    given = {"max_tokens": 8, "verifier": REWARD, "overrides": overrides, "quiet": True}
    return evaluate(model, problems, out=out, **{**given, **more})


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows}


def changed(answer: Answer, **keys: Any) -> Answer:
    """Return an answer whose choice has other keys; None: the key is left out."""
    body = json.loads(answer.body)
    choice = {**body["choices"][0], **keys}
    body["choices"] = [{key: value for key, value in choice.items() if value is not None}]
    return said(body)


FAULTS: dict[str, tuple[Callable[[Answer], Answer], str, str]] = {
    "slow": (lambda answer: Answer(answer.body, delay=9.0), "timeout", "no reply within 5 s"),
    "error 500": (lambda _: said({"error": {"message": "dead"}}, 500), "unavailable", "HTTP 500"),
    "not JSON": (lambda _: Answer(b"<html>"), "error", "is not JSON"),
    "a list": (lambda _: said([1, 2]), "error", "a reply with 0 choices"),
    "no choices": (lambda _: said({"choices": []}), "error", "a reply with 0 choices"),
    "no text": (lambda one: changed(one, text=None), "error", "a reply without a text"),
    "no finish_reason": (lambda one: changed(one, finish_reason=None), "error", "that ended by"),
    "filtered": (
        lambda one: changed(one, finish_reason="content_filter"),
        "error",
        "ended by 'content_filter'",
    ),
    "no tokens": (lambda one: changed(one, token_ids=None), "error", "lacks the tokens"),
    "strange tokens": (lambda one: changed(one, token_ids=[1.5]), "error", "token ids that are"),
    "unknown tokens": (lambda one: changed(one, token_ids=[2**30]), "error", "does not have"),
    "cut": (lambda one: Answer(one.body[:9], length=len(one.body)), "unavailable", "peer closed"),
    "hung up": (lambda one: Answer(hang_up=True), "unavailable", "disconnected"),
    "huge": (lambda one: Answer(b" " * 2**21), "error", "exceeds"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_completion_that_cannot_be_had_is_not_judged(
    world: World, server: ModelServer, fault: str
) -> None:
    change, reason, words = FAULTS[fault]

    def spoil(asked: Asked, number: int, answer: Answer) -> Answer:
        return change(answer) if asked.body["prompt"][:2] == [*b"3 "] else answer

    whole = measured(world, world.folder / "whole.jsonl", server=server.url)
    server.change = spoil
    patience = ["server.timeout=5"] if fault == "slow" else []
    found = measured(world, world.folder / "spoiled.jsonl", server=server.url, more=patience)
    assert (found.num_completions, found.num_problems, found.num_not_judged) == (10, 9, 1)
    shares = {key: share for key, share in whole.by_problem.items() if key != "p3"}
    assert found.by_problem == shares
    assert found.pass_at_1 == pytest.approx(sum(shares.values()) / 9)
    rows, good = (rows_of(world.folder / f"{name}.jsonl") for name in ("spoiled", "whole"))
    lost = rows.pop("p3#0/0")
    assert (lost["status"], lost["reason"]) == ("not_judged", reason) and words in lost["detail"]
    assert lost["score"] is None and lost["finish_reason"] is None and lost["completion"] == ""
    del good["p3#0/0"]
    assert rows == good


def test_a_server_that_recovers_is_asked_again(world: World, server: ModelServer) -> None:
    server.change = lambda asked, number, answer: (
        said({"error": {"message": "busy"}}, 503) if number in (3, 5) else answer
    )
    whole = measured(world, world.folder / "engine.jsonl")
    overrides = ["server.retries=2"]
    found = measured(world, world.folder / "o.jsonl", server=server.url, overrides=overrides)
    assert found.num_not_judged == 0 and found.by_problem == whole.by_problem


def test_a_server_that_stops_answering_ends_the_command(world: World, server: ModelServer) -> None:
    server.change = lambda asked, number, answer: (
        answer if number == 1 else said({"error": {"message": "the engine is dead"}}, 500)
    )
    with pytest.raises(AssayError) as error:
        measured(world, world.folder / "o.jsonl", server=server.url)
    assert "no reply to the first 4 requests" in str(error.value) and "\n" not in str(error.value)
    assert "the engine is dead" in str(error.value)


UNSUITABLE: dict[str, tuple[Callable[[Answer], Answer], str]] = {
    "refuses token ids": (
        lambda _: said({"error": {"message": "prompt must be a string"}}, 400),
        "found .*HTTP 400: .prompt must be a string.; accepted: a server whose completions endpoint",
    ),
    "adds tokens": (
        lambda one: said({**json.loads(one.body), "usage": {"prompt_tokens": 99}}),
        "found a prompt of 99 tokens, where 5 were sent",
    ),
    "another tokenizer": (lambda one: changed(one, text="no such text"), "found another tokenizer"),
    "no counts": (
        lambda one: said({"choices": json.loads(changed(one, token_ids=None).body)["choices"]}),
        "without the number of its tokens",
    ),
}


@pytest.mark.parametrize("case", UNSUITABLE)
def test_an_unsuitable_server_is_refused_at_once(
    world: World, server: ModelServer, case: str
) -> None:
    change, complaint = UNSUITABLE[case]
    server.change = lambda asked, number, answer: change(answer)
    with pytest.raises(UserError, match=complaint) as error:
        measured(world, world.folder / "o.jsonl", server=server.url)
    assert "\n" not in str(error.value) and len(server.completed) <= 2


def test_openai_keys_alone_are_sent_to_a_server_that_takes_no_others(
    world: World, server: ModelServer
) -> None:
    def strict(asked: Asked, number: int, answer: Answer) -> Answer:
        words = {"error": {"message": "Unrecognized request argument: top_k"}}
        return said(words, 400) if "top_k" in asked.body else answer

    server.kind, server.change = "text", strict
    whole = measured(world, world.folder / "engine.jsonl", verifier="math")
    found = measured(world, world.folder / "o.jsonl", verifier="math", server=server.url)
    assert found.by_problem == whole.by_problem and found.num_not_judged == 0
    overrides = ["sampling.top_k=3"]
    with pytest.raises(UserError, match=r"sampling\.top_k: found 3, with a server that takes"):
        measured(world, world.folder / "p.jsonl", server=server.url, overrides=overrides)


def test_stop_strings_need_a_server_that_names_them(world: World, server: ModelServer) -> None:
    asked: dict[str, Any] = {"overrides": ["sampling.stop=['`', 'c']"]}
    files = [world.folder / "engine.jsonl", world.folder / "server.jsonl"]
    measured(world, files[0], **asked)
    measured(world, files[1], server=server.url, **asked)
    assert rows_of(files[0]) == rows_of(files[1])
    assert "stop_string" in {row["finish_reason"] for row in rows_of(files[0]).values()}
    server.kind = "llama.cpp"
    with pytest.raises(UserError, match=r"sampling\.stop: found '`', with a server that does not"):
        measured(world, files[1], server=server.url, **asked)


NAMES = {
    "the model's path": lambda world: ("other", str(world.folder / "model")),
    "the only one": lambda world: ("other",),
}


@pytest.mark.parametrize("case", NAMES)
def test_the_name_on_the_server_is_found(world: World, server: ModelServer, case: str) -> None:
    server.names = NAMES[case](world)
    assert measured(world, world.folder / "o.jsonl", server=server.url).num_problems == 10
    assert {body["model"] for body in server.completed} == {server.names[-1]}


def test_a_name_that_is_not_served_is_refused(world: World, server: ModelServer) -> None:
    server.names = ("a", "b")
    with pytest.raises(UserError, match=r"among a, b; .*--set server\.model=NAME"):
        measured(world, world.folder / "o.jsonl", server=server.url)
    overrides = ["server.model=b"]
    measured(world, world.folder / "o.jsonl", server=server.url, overrides=overrides)
    assert {body["model"] for body in server.completed} == {"b"}


def test_a_key_is_sent_and_never_shown(
    world: World, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_SERVER_KEY", "sk-0123456789abcdef")
    server.change = lambda asked, number, answer: (
        answer
        if number != 4
        else said({"error": {"message": f"bad {asked.headers['authorization']}"}}, 500)
    )
    measured(world, world.folder / "o.jsonl", server=server.url)
    assert server.asked[-1].headers["authorization"] == "Bearer sk-0123456789abcdef"
    text = (world.folder / "o.jsonl").read_text()
    assert "0123456789" not in text and "bad Bearer [key]" in text


@pytest.mark.parametrize("url", ["http://user:secret@localhost:1", "localhost:8000", "ftp://x/v1"])
def test_an_address_that_is_none_is_refused_without_showing_it(world: World, url: str) -> None:
    with pytest.raises(UserError, match=r"server\.url: accepted: an http or https") as error:
        measured(world, world.folder / "o.jsonl", server=url)
    assert "secret" not in str(error.value)


def test_a_server_that_is_not_there_is_one_line(world: World) -> None:
    with pytest.raises(UserError, match=r"server\.url http://localhost:9: found") as error:
        measured(world, world.folder / "o.jsonl", server="http://localhost:9")
    assert "\n" not in str(error.value)
    assert completion_server.ACCEPTED in str(error.value)
