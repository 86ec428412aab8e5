"""Runs with tools: what is sampled, logged, learned, resumed after a kill in a call, and
refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tool_worlds
from tool_worlds import CALL, QUESTIONS, RESULT, check_a_kill_changes_nothing, rollouts_of

import assay
from assay import config as configuration
from assay.errors import ConfigError, RunError
from assay.report.report import write_report
from assay.training.api import train

HERE = Path(tool_worlds.__file__).parent
SAID = "<calculator>6*7</calculator>=42;42"


@pytest.fixture(autouse=True)
def _modules_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def tree_of(folder: Path, caller: Path, name: str, **sections: Any) -> dict[str, Any]:
    problems = folder / "problems.jsonl"
    rows = [{"question": question, "answer": "42"} for question in QUESTIONS]
    problems.write_text("\n".join(map(json.dumps, rows)))
    tree: dict[str, Any] = {
        "run": {"name": name, "directory": str(folder / "runs"), "threads": 1},
        "model": {"path": str(caller)},
        "data": {"train": [str(problems)], "verifier": "exact", "prompt_template": "{question}"},
        "sampling": {"max_tokens": 48},
        "tools": {"names": ["calculator"], "call": CALL, "result": RESULT, "introduction": ""},
        "rl": {"steps": 2, "num_prompts": 2, "group_size": 4},
        "optimizer": {"learning_rate": 1e-4},
        "verification": {"num_workers": 1},
    }
    return {**tree, **{key: {**tree.get(key, {}), **value} for key, value in sections.items()}}


def test_a_run_learns_from_what_the_policy_said(tmp_path: Path, caller: Path) -> None:
    run = train(tree_of(tmp_path, caller, "run"), quiet=True).run
    rows = rollouts_of(run)
    called = [row for row in rows if row["text"] == SAID]
    assert len(rows) == 16 and len(called) >= 12
    for row in called:
        sampled = np.array(row["sampled"])
        given = np.array(row["tokens"])[~sampled]
        assert bytes(given.tolist()).decode() == "=42;"
        for name in ("behavior_logprobs", "model_logprobs", "advantages"):
            assert not np.array(row[name])[~sampled].any(), name
        assert row["said"] == [[0, 28], [32, 34]] and row["turn_ends"] == [28, len(sampled)]
        assert row["status"] == "passed", "the verifier read the last turn alone"
    assert "2 turns" in write_report(Path(run)).read_text(encoding="utf-8")


def test_a_kill_in_the_middle_of_a_call_changes_nothing(tmp_path: Path, caller: Path) -> None:
    """The process ends inside of the fifteenth call; the run that goes on has the same log."""
    tools = {"names": ["slow_tools:CALCULATOR"]}
    whole, killed = (tree_of(tmp_path, caller, name, tools=tools) for name in ("whole", "killed"))
    check_a_kill_changes_nothing(whole, killed, SLOW_TOOLS_END_AT="15")


def test_evaluation_with_and_without_tools(tmp_path: Path, caller: Path) -> None:
    """As the run had them, by the same door; without them the prompt and the sampling are plain."""
    run = train(tree_of(tmp_path, caller, "run", rl={"steps": 1}), quiet=True).run
    rows = [{"question": question, "answer": "42"} for question in QUESTIONS]
    how: dict[str, Any] = {"quiet": True, "num_samples": 2, "temperature": 0.5}
    found = assay.evaluate(f"{run}@last", rows, **how)
    alone = assay.evaluate(f"{run}@last", rows, overrides=["tools.names=[]"], **how)
    assert found.pass_at_1 > 0.8 > 0.2 > alone.pass_at_1
    (sample, *_) = assay.sample(f"{run}@last", QUESTIONS[0], num_samples=2, quiet=True).samples
    assert sample["completion"] == SAID and sample["injected"] == 4


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (
            {"names": ["calculater"]},
            "found 'calculater'; accepted: python, calculator, search, or your",
        ),
        ({"names": ["calculator", "calculator"]}, "two tools with the name calculator"),
        ({"names": ["own_tools:untyped"]}, "parameter text without a type"),
        ({"names": ["own_tools:absent"]}, "absent"),
    ],
)
def test_missing_tools_are_refused(
    tmp_path: Path, caller: Path, tools: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(tree_of(tmp_path, caller, "run", tools=tools), quiet=True)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("call", "{tool}{input}", "text with {tool} and {input}, or with {call}, that something"),
        ("call", "so {call}", "or {call} alone"),
        ("call", "<{call}>{input}", "text with {tool} and {input}"),
        ("result", "none", "text that holds {result} once"),
        ("seconds", 0.0, "seconds"),
    ],
)
def test_settings_that_cannot_be(key: str, value: Any, words: str) -> None:
    tree = {"model": {"path": "m"}, "rl": {}, "data": {"train": ["x"]}, "tools": {key: value}}
    with pytest.raises(ConfigError, match=f"tools.{key}") as told:
        configuration.parse(tree)
    assert words in str(told.value)


def test_a_run_from_elsewhere_brings_no_tools(
    tmp_path: Path, caller: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {"names": ["own_tools:double"]}
    run = train(tree_of(tmp_path, caller, "run", tools=tools), quiet=True).run
    monkeypatch.setattr("assay.session.consent.why_not_own", lambda path: "it came by mail")
    with pytest.raises(RunError, match=r"tools\.names = own_tools:double"):
        assay.sample(f"{run}@last", "1", quiet=True)
