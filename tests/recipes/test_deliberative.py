"""The recipe deliberative: the answer is rewarded, the reasoning is not, and figures are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.data.problems import load_problems
from assay.data.rows import problem_row
from assay.evaluation.gate import check_unseen
from assay.evaluation.policy_redteam import SUITE
from assay.recipes.check import settings_of_training
from assay.recipes.file import RecipeStage, built_in, read_recipe
from assay.recipes.run import run_recipe

OUTPUTS = {name: f"runs/{name}" for name in ("fresh", "base", "taught", "chosen", "warm")}


def stage(name: str, scale: str | None = None) -> RecipeStage:
    return read_recipe(built_in()["deliberative"], scale).stages[name]


def rewards(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the reward and the monitor's finding of each row."""
    found = assay.judge(rows, "math", num_workers=1)
    return [(one["reward"], one["components"].get("regex", -1.0)) for one in found]


def test_a_citation_in_the_reasoning_earns_nothing() -> None:
    source = stage("aligned").tree["data"]["train"][0]
    rows = [problem_row(one) for one in load_problems([source])[:60]]
    row = next(row for row in rows if row["treatment"] == "refused")
    cited, refusal = f"<think>{row['clause']}</think>", "I can't help with that."
    texts = (f"{cited}{refusal}", f"<think></think>{refusal}", f"{cited}Here is how.")
    asked = [{**row, "id": str(n), "completion": text} for n, text in enumerate(texts)]
    assert rewards(asked) == [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)]


def test_training_never_sees_the_policy_or_the_suite() -> None:
    warm, aligned = stage("warm").tree, stage("aligned").tree
    assert "context" not in json.dumps([warm, aligned])
    aligned_stage = stage("aligned")
    config = settings_of_training(aligned_stage, OUTPUTS, {})
    assert {*SUITE} <= {*config.data.heldout}
    check_unseen(config, [], SUITE)


def test_the_teacher_has_the_policy_in_context_at_scale_real() -> None:
    taught = stage("taught", "real").tree
    assert taught["data"] == "collect" and "{policy}" in taught["instruction"]
    assert stage("chosen", "real").tree["inputs"] == ["@taught"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_whole_recipe_runs_and_its_warm_up_teaches_refusals(
    tmp_path: Path, one_thread: None
) -> None:
    result = run_recipe("deliberative", directory=tmp_path, quiet=True)
    assert result.ended == "finished"

    def shares(name: str, index: int) -> dict[str, float]:
        path = tmp_path / "deliberative" / name / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return dict([row for row in rows if row.get("eval/by_tag")][index]["eval/by_tag"])

    base, warm, aligned = shares("warm", 0), shares("warm", -1), shares("aligned", -1)
    assert base["harmful"] < 0.1 and warm["harmful"] > 0.5
    assert {"harmful", "borderline", "harmless", "role_play", "terms-4"} <= aligned.keys()
