"""What a run does where nothing is configured, and what the dry run says of it: learning rate, algorithm, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from train_worlds import World, rows_of

from assay.config.stages import LEARNING_RATES
from assay.training.api import dry_run, train


def stage_tree(world: World, stage: str, **sections: Any) -> dict[str, Any]:
    """A run of one step of a stage, without a learning rate of its own."""
    tree = world.tree(rl={"steps": 1}, evaluation={"max_problems": 1}, **sections)
    del tree["optimizer"]
    if stage == "rl":
        return tree
    del tree["rl"]
    if stage == "sft":
        tree["sft"] = {"traces": [str(world.folder / "traces.jsonl")], "epochs": 0.1}
        return tree
    if stage == "distill":
        tree["teacher"] = {"path": str(world.folder / "model")}
        return tree | {"distill": {"steps": 1, "num_prompts": 1}}
    tree["data"] = {"heldout": []}
    if stage == "pretrain":
        texts = str(world.write_rows("texts.jsonl", [{"text": "one and two"}] * 2))
        return tree | {"pretrain": {"texts": [texts]}}
    rows = [{"prompt": f"{n} + 1 =", "chosen": f" {n + 1}", "rejected": " 0"} for n in range(2)]
    pairs = [str(world.write_rows("pairs.jsonl", rows))]
    tree[stage] = {"pairs" if stage == "preference" else "rows": pairs}
    return tree


@pytest.mark.parametrize(
    ("stage", "adapters"),
    [
        ("rl", False),
        ("sft", False),
        ("preference", False),
        ("reward_model", False),
        ("pretrain", False),
        ("distill", False),
        ("rl", True),
    ],
)
def test_a_stage_has_its_own_and_shows_it(world: World, stage: str, adapters: bool) -> None:
    sections = {"model": {"lora": {"rank": 2}}} if adapters else {}
    tree = stage_tree(world, stage, **sections)
    rate = LEARNING_RATES[stage][adapters]
    words = f"{rate:g}, the default of [{stage}] for {'adapters' if adapters else 'all weights'}"
    assert f"learning rate {words}" in dry_run(tree).notes
    run = Path(train(tree, quiet=True).run)
    assert rows_of(run, "metrics")[0]["optimizer/learning_rate"] == rate
    assert words in (run / "decision.md").read_text()
    assert "learning_rate" not in (run / "config.toml").read_text(), "None stays None"


def test_adapters_that_are_trained_on_are_adapters_still(world: World) -> None:
    first = train(stage_tree(world, "sft", model={"lora": {"rank": 2}}), quiet=True)
    assert first.checkpoint is not None
    again = train(stage_tree(world, "rl", model={"path": first.checkpoint}), quiet=True)
    rate = rows_of(again.run, "metrics")[0]["optimizer/learning_rate"]
    assert rate == LEARNING_RATES["rl"][1]


def test_a_configured_learning_rate_is_used(world: World) -> None:
    run = Path(train(world.tree(rl={"steps": 1}), quiet=True).run)
    assert rows_of(run, "metrics")[0]["optimizer/learning_rate"] == 1e-3
    assert "0.001, as configured" in (run / "decision.md").read_text()


def test_the_default_algorithm_keeps_no_reference(world: World) -> None:
    found = dry_run(world.tree(rl={"steps": 1}))
    assert any(note.startswith("dr_grpo: ") for note in found.notes)
    assert "reference" not in found.memory.parts


def test_the_dry_run_counts_a_critic_and_the_guards_reference(world: World) -> None:
    lora = {"model": {"lora": {"rank": 2}}}
    tree = world.tree(algorithm={"name": "ppo", "kl_weight": 0.0}, guard={"max_kl": 1.0}, **lora)
    parts = dry_run(tree).memory.parts
    assert parts["critic"] > 2.5 * parts["weights"] and 0 < parts["reference"] < parts["weights"]


@pytest.mark.parametrize(("schedule", "is_told"), [("linear", True), ("constant", False)])
def test_a_longer_run_says_that_its_schedule_is_stretched(
    world: World, capsys: pytest.CaptureFixture[str], schedule: str, is_told: bool
) -> None:
    tree = world.tree(rl={"steps": 2}, optimizer={"schedule": schedule})
    run = train(tree).run
    capsys.readouterr()
    train(resume=run, overrides=["rl.steps=3"])
    line = (
        "rl.steps: 2 before, 3 now: the linear learning rate continues as in a run of the new length"
        ", not at the last step's 0.0001"
    )
    assert (f"warning: {line}" in capsys.readouterr().err) == is_told
    (event,) = [row for row in rows_of(run, "events") if row["kind"] == "resumed"]
    assert event.get("schedule") == (line if is_told else None)
    rate = rows_of(run, "metrics")[-1]["optimizer/learning_rate"]
    assert rate == pytest.approx(1e-4 if is_told else 1e-3)
