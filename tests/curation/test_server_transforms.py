"""Data transforms that sample from a model server: the rows of the built-in engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer, Asked
from model_server import ModelServer, said
from stage_runs import run_on, took

from assay.errors import UserError
from assay.testing import save_tiny_model

SUMS = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(4)]
DONE = [
    {"id": f"c{n}", "prompt": f"{n} + 1 =", "answer": f"{n + 1}", "completion": "a\nb\nc"}
    for n in range(2)
]
SERVICE = {"verification": {"num_workers": 1}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    server = ModelServer(save_tiny_model(tmp_path / "model", max_positions=96))
    with server:
        yield server


def rows_by(tmp_path: Path, stage: str, rows: Any, **settings: Any) -> Any:
    given = {"model": str(tmp_path / "model"), "num_samples": 1, "max_tokens": 6, "config": SERVICE}
    name = "server" if "server" in settings else "engine"
    return run_on(tmp_path / name, stage, rows, **{**given, **settings})


def test_collected_rows_equal_those_of_the_engine(tmp_path: Path, server: ModelServer) -> None:
    engine, _ = rows_by(tmp_path, "collect", SUMS, temperature=0.0)
    found, manifest = rows_by(tmp_path, "collect", SUMS, temperature=0.0, server=server.url)
    for row in (*engine, *found):
        row.pop("source")
    assert found == engine and manifest.measured["completions"] == 4


def test_step_labels_continue_the_given_text(tmp_path: Path, server: ModelServer) -> None:
    # So cold that each rollout takes the most probable token.
    engine, _ = rows_by(tmp_path, "label_steps", DONE, temperature=0.01)
    found, _ = rows_by(tmp_path, "label_steps", DONE, temperature=0.01, server=server.url)
    facts = [row.pop("labelled_by") for row in found]
    assert {one["server"] for one in facts} == {server.url}
    assert found == [{key: row[key] for key in row if key != "labelled_by"} for row in engine]
    assert {bytes(body["prompt"][7:]) for body in server.completed[1:]} == {b"\na\n", b"\na\nb\n"}


def test_a_rollout_that_cannot_be_had_is_no_wrong_one(tmp_path: Path, server: ModelServer) -> None:
    def spoil(asked: Asked, number: int, answer: Answer) -> Answer:
        gone = bytes(asked.body["prompt"]).endswith(b"1 + 1 =\na\n") and number > 1
        return said({}, 400) if gone else answer

    server.change = spoil
    asked = {"temperature": 0.01, "server": server.url}
    (row,), manifest = rows_by(tmp_path, "label_steps", DONE, **asked)
    assert row["id"] == "c0" and took(manifest)["not_labelled"] == 1


def test_a_problem_without_a_completion_is_counted(tmp_path: Path, server: ModelServer) -> None:
    def spoil(asked: Asked, number: int, answer: Answer) -> Answer:
        return said({}, 400) if bytes(asked.body["prompt"]).startswith(b"2 ") else answer

    server.change = spoil
    rows, manifest = rows_by(tmp_path, "collect", SUMS, num_samples=2, server=server.url)
    assert took(manifest) == {"no_reply": 1} and {row["problem_id"] for row in rows} == {
        "p0",
        "p1",
        "p3",
    }


def test_one_generator_is_named(tmp_path: Path, server: ModelServer) -> None:
    with pytest.raises(UserError, match="url: accepted: without server and actors"):
        rows_by(tmp_path, "collect", SUMS, server=server.url, url=server.url)
    with pytest.raises(UserError, match=r"server\.url: found tools \(calculator\)"):
        tools = {"config": {**SERVICE, "tools": {"names": ["calculator"]}}}
        rows_by(tmp_path, "collect", SUMS, server=server.url, **tools)
    assert not server.asked
