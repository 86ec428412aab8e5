"""How often a model solves a problem, with its interval, and how often without thinking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer, Asked, JudgeServer

from assay.curation.base import run_stage
from assay.data.problems import load_problems
from assay.errors import ConfigError
from assay.run.intervals import share_interval
from assay.testing import save_tiny_model

CONFIG = {"verification": {"num_workers": 1}}
PROBLEMS = [
    {"prompt": "easy", "answer": "1", "tags": ["t"], "more": {"kept": True}},
    {"prompt": "hard", "answer": "2"},
    {"prompt": "gone", "answer": "3"},
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    """Solves what is easy always, and what is hard by thinking; it has no reply to what is gone."""

    def reply(asked: Asked) -> str | Answer:
        question = asked.body["messages"][-1]["content"]
        thinks = "chat_template_kwargs" not in asked.body
        if question == "gone":
            return Answer(b"{}", status=400)
        return "It is 1." if question == "easy" else f"It is {2 if thinks else 3}."

    with JudgeServer(reply) as served:
        yield served


def label(url: str | None = None, **settings: Any) -> Any:
    tree: dict[str, Any] = {"inputs": ["problems.jsonl"], "model": "m", "config": CONFIG}
    return run_stage(
        "label_difficulty", {**tree, **({"url": url} if url else {}), **settings}, "out"
    )


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out/rows.jsonl").read_text().splitlines()]


def test_rows_are_those_of_the_problems_and_a_label(server: JudgeServer) -> None:
    manifest = label(server.url, num_samples=3, also_without_thinking=True)
    low, _ = share_interval(1.0, 3)
    full = {"passed": 3, "judged": 3, "low": round(low, 4), "high": 1.0}
    easy, hard = rows()
    assert easy == {
        "id": "problems.jsonl:1",
        **PROBLEMS[0],
        "difficulty": {**full, "without_thinking": {"passed": 3, "judged": 3}},
    }
    assert hard["difficulty"] == {**full, "without_thinking": {"passed": 0, "judged": 3}}
    assert [(each.name, each.took) for each in manifest.filters] == [
        ("not_judged", 0),
        ("no_reply", 1),
    ]
    assert manifest.measured["pass_rate"] == 1.0
    assert manifest.measured["without_thinking"]["pass_rate"] == 0.5
    problems = load_problems(["out/rows.jsonl"])  # the label is of the spec
    assert problems[0].spec["difficulty"]["passed"] == 3 and problems[0].tags == ("t",)


def test_without_thinking_is_asked_for_only_on_request(server: JudgeServer) -> None:
    label(server.url, num_samples=1)
    assert "without_thinking" not in rows()[0]["difficulty"]
    assert not any("chat_template_kwargs" in asked.body for asked in server.asked)


def test_what_was_never_judged_has_no_label(
    server: JudgeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("difficulty_rewards.py").write_text(
        "def sure(problem, completion):\n    return None if problem.prompt == 'hard' else 1.0\n"
    )
    manifest = label(server.url, num_samples=2, verifier="difficulty_rewards:sure", max_problems=2)
    assert manifest.filters[0].took == 1 and len(rows()) == 1
    assert manifest.filters[0].examples[0]["row"]["prompt"] == "hard"


def test_the_engine_is_asked_without_thinking_too(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", max_positions=64)
    seen = {"data": {"think": "opened"}}
    manifest = label(
        model=str(model),
        num_samples=2,
        max_tokens=3,
        also_without_thinking=True,
        config={**CONFIG, **seen},
    )
    assert len(rows()) == 3
    assert manifest.measured["without_thinking"]["completions"] == 6


def test_greedy_samples_would_be_equal() -> None:
    with pytest.raises(ConfigError, match="label_difficulty temperature: found 0 with several"):
        label(temperature=0.0)
