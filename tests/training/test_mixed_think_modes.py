"""One model, two ways to answer: rows that ask for reasoning and rows that do not, in one data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from train_worlds import World, rows_of

from assay.data.tasks import chain_sums, imperfect_traces
from assay.init.tiny_model import make_model
from assay.session.results import read_result
from assay.training.api import evaluate, train


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def in_both_modes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    modes = ("free", "empty")
    return [
        {**row, "id": f"{mode}-{n}", "think": mode} for n, row in enumerate(rows) for mode in modes
    ]


def test_a_run_tells_its_modes_apart(world: World) -> None:
    """Both modes in training, in held-out problems, in the rollout log and in what the run says."""
    rows = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(3)]
    heldout = write(world.folder / "both.jsonl", in_both_modes(rows))
    asked = [{"question": f"{n}-1?", "answer": "0", "think": "empty"} for n in range(2)]
    asked += [{"question": f"{n}*1?", "answer": "0"} for n in range(2)]
    data = {
        "heldout": [heldout],
        "train": [write(world.folder / "t.jsonl", asked)],
        "think": "opened",
    }
    result = train(world.tree(data=data, rl={"steps": 2, "num_prompts": 4}), quiet=True)
    for row in rows_of(result.run, "evaluations"):
        shares = row["eval/by_problem"]
        assert row["eval/by_think"].keys() == {"free", "empty"}
        for mode, found in row["eval/by_think"].items():
            own = [share for id, share in shares.items() if id.startswith(mode)]
            assert found["num_problems"] == len(own) == 3
            assert found["pass_at_1"] == pytest.approx(sum(own) / 3)
    assert read_result(Path(result.run)).after[0]["eval/by_think"] == row["eval/by_think"]
    lines = [line for line in str(result).splitlines() if line.startswith("  with think")]
    assert [line.split(":")[0] for line in lines] == ["  with think empty", "  with think free"]
    shard = pq.read_table(Path(result.run) / "rollouts" / "step-000001.parquet").to_pylist()
    modes = {one["prompt"]: one["prompt_think"]["mode"] for one in shard}
    assert {
        text.endswith("<think>\n\n</think>\n\n") for text, mode in modes.items() if mode == "empty"
    } == {True}
    assert {text.endswith("<think>") for text, mode in modes.items() if mode == "opened"} == {True}
    assert set(modes.values()) == {"empty", "opened"}
    assert all(one["think"]["mode"] == modes[one["prompt"]] for one in shard)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_model_reasons_where_the_row_asks_for_it(tmp_path: Path) -> None:
    """Supervised on both modes, the demo's model has both: with a block, and without."""
    traces = imperfect_traces(size=8000, num_terms=3, corrupted=0.0, guessed=0.0)
    rows = []
    for number, trace in enumerate(traces):
        answer = trace.completion.partition("</think>")[2]
        fast = {"prompt": trace.prompt, "completion": answer, "think": "empty"}
        slow = {"prompt": trace.prompt, "completion": trace.completion}
        rows.append(fast if number % 2 else slow)
    problems = chain_sums(size=100, num_terms=3, split="heldout")
    asked = [{"prompt": one.prompt, "answer": one.spec["answer"]} for one in problems]
    heldout = write(tmp_path / "heldout.jsonl", in_both_modes(asked))
    result = train(
        {
            "run": {"directory": str(tmp_path), "name": "both"},
            "model": {"path": str(make_model(tmp_path / "model", 0))},
            "data": {
                "template": "base",
                "prompt_template": "{question}",
                "think": "free",
                "heldout": [heldout],
            },
            "sampling": {"max_tokens": 48},
            "sft": {"traces": [write(tmp_path / "traces.jsonl", rows)], "tokens_per_step": 450},
            "optimizer": {"learning_rate": 2e-3, "warmup_steps": 50, "schedule": "linear"},
        },
        quiet=True,
    )
    found = evaluate(result.run, [heldout], out=tmp_path / "out.jsonl", temperature=0.0)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    said: dict[str, list[str]] = {"free": [], "empty": []}
    for row in map(json.loads, lines):
        said[row["think"]].append(row["completion"])
    assert all(len(texts) == len(problems) for texts in said.values())
    reasoned = [
        text.startswith("<think>") and "=" in text.partition("</think>")[0] for text in said["free"]
    ]
    at_once = ["think" not in text and "=" not in text for text in said["empty"]]
    assert sum(reasoned) >= 0.95 * len(problems) <= sum(at_once)
    free, empty = found.by_think["free"], found.by_think["empty"]
    assert free["mean_tokens"] > 3 * empty["mean_tokens"]
