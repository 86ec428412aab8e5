"""Traces with calls: collected with their results, selected by their verdicts, and learned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from taught import teach
from tool_worlds import CALL, QUESTIONS, RESULT

from assay.curation.base import run_stage
from assay.errors import ConfigError
from assay.generate.turns.interpreter import check_sandbox
from assay.training.api import train
from assay.verify.sandbox import SandboxUnavailable

BY_CALCULATOR = "<calculator>6*7</calculator>=42;42"
BY_PYTHON = "<python>print(6 * 7)</python>=42;42"
TOOLS = {"names": ["calculator", "python"], "call": CALL, "result": RESULT, "introduction": ""}
END = 1  # token, behind the answer


@pytest.fixture(scope="module")
def calls_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the calculator, or writes a program, and then says what it was told."""
    replies = (
        [(f"{reply.partition('=')[0]}", True), ("=42;", False), ("42", True)]
        for reply in (BY_CALCULATOR, BY_PYTHON)
    )
    torch.manual_seed(0)
    calculator, python = replies
    return teach(tmp_path_factory.mktemp("both") / "model", calculator, QUESTIONS, python)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_traces_with_calls(tmp_path: Path, calls_both: Path, one_thread: None) -> None:
    try:
        check_sandbox(False)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    problems = tmp_path / "problems.jsonl"
    asked = [
        {"id": f"p{number}", "question": question, "answer": "42" if number % 2 else "41"}
        for number, question in enumerate(QUESTIONS)
    ]
    problems.write_text("\n".join(map(json.dumps, asked)))
    data = {"prompt_template": "{question}"}
    service = {"num_workers": 1}
    how = {"num_samples": 6, "temperature": 1.0, "max_tokens": 64, "verifier": "exact"}
    collected, selected = tmp_path / "collected", tmp_path / "selected"
    config = {"tools": TOOLS, "data": data, "verification": service}
    settings = {"inputs": [str(problems)], "model": str(calls_both), **how, "config": config}
    run_stage("collect", settings, collected)
    rows = rows_of(collected)
    texts = [row["completion"] for row in rows]
    assert len(rows) == 48 and min(texts.count(BY_CALCULATOR), texts.count(BY_PYTHON)) > 3
    for row in rows:
        if row["completion"] in (BY_CALCULATOR, BY_PYTHON):
            (start, call), (answer, end) = row["said"]
            assert (start, end) == (0, len(row["completion"]))
            assert row["completion"][call:answer] == "=42;", "what the tool really said"
            right = int(row["problem_id"][1:]) % 2 == 1
            assert row["verdict"]["status"] == ("passed" if right else "failed")

    run_stage("select", {"inputs": [str(collected)], "k": 2}, selected)
    kept = rows_of(selected)
    assert {BY_CALCULATOR, BY_PYTHON} <= {row["completion"] for row in kept}
    assert all(row["answer"] == "42" and row["completion"].endswith("42") for row in kept)

    tree: dict[str, Any] = {
        "run": {"name": "sft", "directory": str(tmp_path / "runs"), "threads": 1},
        "model": {"path": str(calls_both)},
        "data": data,
        "tools": TOOLS,
        "sft": {"traces": [str(selected / "rows.jsonl")], "epochs": 1},
        "optimizer": {"learning_rate": 1e-4},
    }
    run = Path(train(tree, quiet=True).run)
    metrics = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    learned = sum(row.get("tokens/trained", 0.0) for row in metrics)
    said = (row.get("said") or [[0, len(row["completion"])]] for row in kept)
    own = sum(END + sum(end - start for start, end in spans) for spans in said)
    assert learned == own < sum(END + len(row["completion"]) for row in kept)


def test_the_calls_of_a_server_are_not_answered(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "6*7", "answer": "42"}')
    settings = {"inputs": [str(problems)], "model": "m", "url": "http://localhost:9/v1"}
    with pytest.raises(ConfigError, match=r"config\.tools: found calculator; accepted: none with"):
        run_stage(
            "collect",
            {**settings, "config": {"tools": {"names": ["calculator"]}}},
            tmp_path / "out",
        )
