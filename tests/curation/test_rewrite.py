"""Rewrite, and tag by a model: what is asked, what is kept, and what a bad reply comes to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer, Asked, JudgeServer
from stage_runs import run_on, took

from assay.curation.asking import filled
from assay.curation.tag import named_tag
from assay.errors import ConfigError, DataError, ModelError
from assay.session.judging import judged_rows
from assay.testing import save_tiny_model

SERVICE = {"verification": {"num_workers": 1}}
Serve = Callable[[Callable[[Asked], str | Answer]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[JudgeServer] = []

    def start(reply: Callable[[Asked], str | Answer]) -> str:
        servers.append(JudgeServer(reply).__enter__())
        return servers[-1].url

    yield start
    for server in servers:
        server.__exit__()


def shown(asked: Asked) -> str:
    return asked.body["messages"][-1]["content"]


def trace(number: int, **keys: Any) -> dict[str, Any]:
    return {
        "id": f"c{number}",
        "problem_id": f"p{number}",
        "prompt": f"{number} + {number} =",
        "answer": str(2 * number),
        "completion": f"hm {{wait}} {number} und {number} ist {2 * number}",
        "tags": ["sums"],
        "verdict": {"status": "passed"},
        **keys,
    }


def rewrite(tmp_path: Path, url: str, rows: list[dict[str, Any]], **settings: Any) -> Any:
    return run_on(tmp_path, "rewrite", rows, model="m", url=url, config=SERVICE, **settings)


def test_only_what_is_still_right_stays(tmp_path: Path, serve: Serve) -> None:
    prompts: list[str] = []

    def reply(asked: Asked) -> str:
        prompts.append(shown(asked))
        return "The sum is 4." if "2 + 2" in prompts[-1] else "The sum is 7."

    kept, manifest = rewrite(tmp_path, serve(reply), [trace(2), trace(3)])
    (row,) = kept
    assert (row["completion"], row["verdict"]["status"]) == ("The sum is 4.", "passed")
    assert (row["problem_id"], row["rewritten_from"], row["tags"]) == ("p2", "c2", ["sums"])
    assert (row["prompt"], row["answer"]) == ("2 + 2 =", "4")
    assert row["id"] != "c2"
    assert any("### Solution\n\nhm {wait} 2 und 2 ist 4" in prompt for prompt in prompts)
    assert took(manifest)["no longer verified"] == 1
    assert manifest.filters[-1].examples[0]["row"]["rewritten"] == "The sum is 7."
    assert (manifest.measured["completions"], manifest.measured["passed"]) == (2, 1)
    assert [one["status"] for one in judged_rows(tmp_path / "rewrite" / "rows.jsonl")] == ["passed"]


def test_the_first_of_several_that_passes_stays(tmp_path: Path, serve: Serve) -> None:
    replies = iter(["It is 5.", "It is 4, so 4.", "Also 4."])
    url = serve(lambda asked: next(replies))
    (row,), _ = rewrite(tmp_path, url, [trace(2)], num_samples=3, concurrency=1)
    assert row["completion"] == "It is 4, so 4."


def test_messages_become_a_prompt_and_a_completion(tmp_path: Path, serve: Serve) -> None:
    chat = [{"role": "user", "content": "2 + 2 ="}, {"role": "assistant", "content": "vier"}]
    kept, _ = rewrite(
        tmp_path, serve(lambda asked: "It is 4."), [{"messages": chat, "answer": "4"}]
    )
    (row,) = kept
    assert (row["prompt"], row["completion"]) == (chat[:1], "It is 4.")
    assert "messages" not in row


def test_the_request_may_be_another(tmp_path: Path, serve: Serve) -> None:
    prompts: list[str] = []
    url = serve(lambda asked: prompts.append(shown(asked)) or "4")
    rewrite(tmp_path, url, [trace(2)], request="Shorter: {completion} {x}")
    assert prompts == ["Shorter: hm {wait} 2 und 2 ist 4 {x}"]
    with pytest.raises(ConfigError, match=r"rewrite request: found .*a text with {completion} in"):
        rewrite(tmp_path / "b", url, [trace(2)], request="Shorter!")


def test_a_name_in_braces_in_a_text_is_unchanged() -> None:
    assert filled("{a}{b}{c}", {"a": "{b}", "b": "x"}) == "{b}x{c}"


def test_a_row_without_a_completion_is_reported_before_a_request(tmp_path: Path) -> None:
    rows = [trace(2), {"prompt": "1 + 1 =", "answer": "2"}]
    with pytest.raises(DataError, match=r"input-0.jsonl:2 completion: found none among"):
        rewrite(tmp_path, "http://localhost:9/v1", rows)


def test_an_unreachable_server_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    rows = [trace(n) for n in range(1, 6)]
    with pytest.raises(ModelError) as caught:
        rewrite(tmp_path, "http://localhost:9/v1", rows)
    assert len(str(caught.value).splitlines()) == 1
    assert len(waits) >= 4, "a request is tried again"


def test_a_model_tags(tmp_path: Path, serve: Serve) -> None:
    prompts: list[str] = []

    def reply(asked: Asked) -> str:
        prompts.append(shown(asked))
        return {"A": "Math.", "B": "It is code, not math", "C": "?"}[prompts[-1][0]]

    rows = [
        {"prompt": "A", "tags": ["x"]},
        {"question": "B"},
        {"text": "C"},
        {"prompt": "A", "id": 7},
    ]
    url = serve(reply)
    kept, manifest = run_on(tmp_path, "tag", rows, model="m", url=url, tags=["math", "code"])
    assert [row["tags"] for row in kept] == [["math", "x"], ["code"], ["other"], ["math"]]
    assert manifest.measured == {"rows of math": 2, "rows of code": 1, "rows of other": 1}
    assert all("domains is the text above of: math, code?" in prompt for prompt in prompts)


def test_the_most_frequent_of_several_answers_counts(tmp_path: Path, serve: Serve) -> None:
    replies = iter(["logic", "science", "nothing", "science"])
    settings = {"model": "m", "num_samples": 4, "temperature": 1.0, "concurrency": 1}
    (row,), _ = run_on(
        tmp_path, "tag", [{"prompt": "A"}], url=serve(lambda asked: next(replies)), **settings
    )
    assert row["tags"] == ["science"]


def test_a_model_that_is_loaded_here_tags(tmp_path: Path, one_thread: None) -> None:
    model = str(save_tiny_model(tmp_path / "model", max_positions=64))
    settings = {"model": model, "max_tokens": 2, "request": "{text} {tags}", "config": SERVICE}
    rows = [{"prompt": "A"}, {"prompt": "B" * 200}, {"prompt": "C"}]
    kept, manifest = run_on(tmp_path, "tag", rows, **settings, tags=["math"])
    assert [(row["prompt"], row["tags"]) for row in kept] == [("A", ["other"]), ("C", ["other"])]
    assert took(manifest) == {"prompt": 1}


@pytest.mark.parametrize(
    ("answer", "tag"),
    [
        ("MATH", "math"),
        ("**math word problem**", "math word problem"),
        ("mathematics", None),
        ("code (not math)", "code"),
        ("", None),
    ],
)
def test_the_first_tag_of_an_answer_is_meant(answer: str, tag: str | None) -> None:
    assert named_tag(answer, ["math", "math word problem", "code"]) == tag
