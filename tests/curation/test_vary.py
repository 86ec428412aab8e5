"""Each row once for each way to ask: prompts, reasoning, keys, ids and tags."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_runs import run_on, written

from assay.curation.base import run_stage
from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.errors import ConfigError, DataError

SWITCHES = {
    "think": {"append": " /think"},
    "no_think": {
        "append": " /no_think",
        "reasoning": "empty",
        "keys": {"think": "free", "think_block": "empty"},
    },
}


def test_a_trace_is_written_in_each_variant(tmp_path: Path) -> None:
    rows = [{"id": "a", "question": "3+5=", "completion": "<think>3+5=8</think>8", "tags": ["sum"]}]
    (think, fast), manifest = run_on(tmp_path, "vary", rows, variants=SWITCHES)
    assert think == {
        **rows[0],
        "id": "a-think",
        "question": "3+5= /think",
        "tags": ["sum", "think"],
    }
    assert fast["completion"] == "<think>\n\n</think>\n\n8" and fast["question"] == "3+5= /no_think"
    assert (fast["id"], fast["tags"]) == ("a-no_think", ["sum", "no_think"])
    assert fast["think"] == "free" and fast["think_block"] == "empty"
    assert (manifest.rows_read, manifest.rows) == (1, 2)


def test_chats_get_the_text_in_the_last_turn_of_the_user(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "3+5="}, {"role": "assistant", "content": "8"}]
    reply = {"role": "assistant", "content": "9", "reasoning_content": "2+7=9"}
    last = {"role": "user", "content": "2+7="}
    rows = [{"id": "p", "prompt": [*asked, last]}, {"id": "t", "messages": [*asked, last, reply]}]
    found, _ = run_on(tmp_path, "vary", rows, variants={"no_think": SWITCHES["no_think"]})
    turns = [*asked, {"role": "user", "content": "2+7= /no_think"}]
    assert found[0]["prompt"] == turns
    answer = {"role": "assistant", "content": "<think>\n\n</think>\n\n9"}
    assert found[1]["messages"] == [*turns, answer]


def test_built_in_problems_and_traces_are_rows(tmp_path: Path) -> None:
    tasks = "assay.data.tasks:"
    inputs = [f"{tasks}chain_sums?size=3", f"{tasks}imperfect_traces?size=2&guessed=0&corrupted=0"]
    run_stage("vary", {"inputs": inputs, "variants": SWITCHES}, tmp_path / "out")
    file = str(tmp_path / "out" / "rows.jsonl")
    rows = written(tmp_path / "out")
    assert len(rows) == 10 and all("completion" in row for row in rows[6:])
    traces = load_traces([inputs[1]])
    assert rows[-1]["completion"].endswith(traces[1].completion.rpartition(">")[2])
    problems = load_problems([file], limit=6)
    assert problems[1].prompt == f"{problems[0].prompt.removesuffix(' /think')} /no_think"  # type: ignore[union-attr]
    assert problems[1].spec["answer"] == problems[0].spec["answer"]
    assert problems[1].tags == ("terms-4", "no_think") and problems[1].think == "free"


@pytest.mark.parametrize(
    ("variants", "complaint"),
    [
        ({}, "variants"),
        ({"a": {"apend": "x"}}, r"variants.a.apend: unknown key; did you mean \S*append"),
        ({"a": {"reasoning": "none"}}, r'variants.a.reasoning: found "none"; accepted: .*keep'),
        ({"a": "x"}, r'variants.a: found "x"; accepted: a section'),
    ],
)
def test_wrong_variants_are_told(tmp_path: Path, variants: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_stage("vary", {"inputs": ["rows.jsonl"], "variants": variants}, tmp_path / "out")


def test_a_row_without_a_prompt_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"input-0.jsonl:2 prompt: found none among: text"):
        run_on(tmp_path, "vary", [{"prompt": "x"}, {"text": "y"}], variants=SWITCHES)
