"""Sampling from a model server: the completions of the built-in engine, or a refusal in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import NAME, Kind, ModelServer
from train_worlds import REWARD, World

from assay.errors import UserError
from assay.training.api import evaluate, sample


@pytest.fixture
def server(world: World) -> Iterator[ModelServer]:
    server = ModelServer(world.folder / "model")
    with server:
        yield server


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row.pop("sampled_by", None)
    return rows


def settings(**more: Any) -> dict[str, Any]:
    return {"max_tokens": 12, "verifier": REWARD, "quiet": True, **more}


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp", "text"])
def test_greedy_completions_and_verdicts_equal_those_of_the_engine(
    world: World, server: ModelServer, kind: Kind
) -> None:
    server.kind = kind
    model, problems = str(world.folder / "model"), [str(world.folder / "train.jsonl")]
    files = [world.folder / "engine.jsonl", world.folder / "server.jsonl"]
    # The test's reward reads token ids, which the third kind of server does not give.
    given = settings(verifier="math" if kind == "text" else REWARD)
    ours = evaluate(model, problems, out=files[0], **given)
    theirs = evaluate(model, problems, out=files[1], **given, server=server.url)
    assert rows_of(files[0]) == rows_of(files[1])
    assert all(row["status"] != "not_judged" for row in rows_of(files[1]))
    assert ours.by_problem == theirs.by_problem and ours.mean_tokens == theirs.mean_tokens
    asked = server.completed[1:]
    assert len(asked) == 10 and {body["model"] for body in asked} == {NAME}
    # The server's own defaults never apply.
    assert {(body["top_k"], body["min_p"], body["top_p"]) for body in asked} == {(-1, 0.0, 1.0)}


def test_samples_differ_and_repeat(world: World, server: ModelServer) -> None:
    model = str(world.folder / "model")
    asked = settings(prompt="1 + 1 =", answer="2", num_samples=4, server=server.url)
    first, again = sample(model, **asked).samples, sample(model, **asked).samples
    texts = [one["completion"] for one in first]
    assert texts == [one["completion"] for one in again] and len(set(texts)) == 4
    assert texts != [one["completion"] for one in sample(model, **asked, seed=1).samples]


REFUSED = {
    "tools": (["tools.names=['calculator']"], "server.url: found tools (calculator)"),
    "budget": (["sampling.think_budget=4"], "server.url: found a thinking budget, which injects"),
    "min_think": (["sampling.min_think=4"], "server.url: found min_think, which injects tokens"),
    "actors": (["scale.rollout_actors=2"], "server.url: found scale.rollout_actors beside"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_server_cannot_do_is_refused_before_anything_is_loaded(
    world: World, server: ModelServer, case: str
) -> None:
    overrides, complaint = REFUSED[case]
    with pytest.raises(UserError) as error:
        evaluate("no/model", ["none.jsonl"], **settings(server=server.url, overrides=overrides))
    assert complaint in str(error.value) and "\n" not in str(error.value)
    assert not server.asked
