"""Every stage and feature on a GPU: the CPU's numbers, and a killed run's bits after a resume.

The device is that of ``ASSAY_TEST_DEVICE`` if it is set: ``cpu`` tries the tests themselves, and
``standin`` runs them on the stand-in (tests/standin).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from combination_cells import FEATURES
from test_combinations import SHOWS, caller, completions_of, tree_of  # noqa: F401 (a fixture)
from test_reward_model_stage import KINDS, config_of
from train_killer import STAGES, fingerprint
from train_worlds import World, rows_of

from assay.evaluation.test_time.search import search
from assay.reward_models.learned import close_reward_models
from assay.run.directory import Run
from assay.run.metrics import is_timing
from assay.testing import save_tiny_model
from assay.training.api import evaluate, sample, train

DEVICE = os.environ.get("ASSAY_TEST_DEVICE", "cuda")
ON_CUDA = [pytest.mark.gpu] if DEVICE.startswith("cuda") else []
pytestmark = [*ON_CUDA, pytest.mark.filterwarnings("ignore")]

Tree = dict[str, Any]


def reward_model_tree(world: World) -> Tree:
    return config_of(world, KINDS["preference"]).model_dump(mode="json", exclude_none=True)


def process_model_tree(world: World) -> Tree:
    return config_of(world, KINDS["process"]).model_dump(mode="json", exclude_none=True)


def sft_tree(world: World) -> Tree:
    return world.sft_tree(sft={"epochs": 2.0})


def changed(tree: Tree, **sections: Any) -> Tree:
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return tree


VARIANTS: Mapping[str, Callable[[World], Tree]] = {
    **{name: tree for name, tree in STAGES.items() if name != "kept"},
    "sft": sft_tree,
    "reward_model": reward_model_tree,
    "process_model": process_model_tree,
    "lora": lambda world: changed(STAGES["rl"](world), model={"lora": {"rank": 2}}),
    "checkpointing": lambda world: changed(
        STAGES["rl"](world), model={"activation_checkpointing": True}
    ),
    "temperature": lambda world: changed(STAGES["rl"](world), sampling={"temperature": 0.8}),
    "trust_region": lambda world: changed(
        STAGES["rl"](world), algorithm={"name": "trpo"}, model={"dtype": "float32"}
    ),
    "gspo": lambda world: changed(STAGES["rl"](world), algorithm={"name": "gspo"}),
}
BFLOAT16 = ("rl", "lora", "critic", "sft", "reward_model", "given", "pretrain", "thinking")


def run_of(tree: Tree, name: str, device: str) -> Path:
    """Train on a device and return the run's folder."""
    tree["run"] = {**tree["run"], "name": name, "device": device}
    return Path(train(tree, quiet=True).run)


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, float) and not is_timing(key) and not key.startswith("memory/")
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_step_has_the_numbers_of_the_cpu(world: World, variant: str) -> None:
    """float32 differs by rounding alone, and a tiny model's samples survive that."""

    def tree() -> Tree:
        made = changed(VARIANTS[variant](world), model={"dtype": "float32"})
        return changed(made, teacher={"dtype": "float32"}) if "teacher" in made else made

    there, here = run_of(tree(), "there", DEVICE), run_of(tree(), "here", "cpu")
    found, expected = (rows_of(run, "metrics") for run in (there, here))
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    assert all(np.isfinite(value) for row in found for value in numbers_of(row).values())
    found, expected = numbers_of(found[0]), numbers_of(expected[0])
    assert found.keys() == expected.keys()
    far = {
        key: (found[key], expected[key])
        for key in found
        if found[key] != pytest.approx(expected[key], rel=2e-3, abs=2e-4)
    }
    assert not far


@pytest.mark.parametrize("variant", BFLOAT16)
def test_bfloat16_trains(world: World, variant: str) -> None:
    run = run_of(changed(VARIANTS[variant](world), model={"dtype": "bfloat16"}), "run", DEVICE)
    assert all(np.isfinite(v) for row in rows_of(run, "metrics") for v in numbers_of(row).values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_run_resumes_to_the_same_bits(
    world: World, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tree(name: str) -> Tree:
        made = changed(VARIANTS[variant](world), checkpoint={"every": 1, "keep_last": 9})
        made["run"] = {**made["run"], "name": name, "device": DEVICE}
        return made

    whole = Path(train(tree("whole"), quiet=True).run)
    with monkeypatch.context() as cut:
        cut.setattr(Run, "stop_reason", property(lambda run: "interrupted" if run.step else None))
        part = Path(train(tree("part"), quiet=True).run)
    assert len(rows_of(part, "metrics")) == 1
    train(resume=part, quiet=True)
    for run in (whole, part):
        (run / "evaluations.jsonl").touch()
    one, other = fingerprint(whole), fingerprint(part)
    assert [key for key in {*one, *other} if one.get(key) != other.get(key)] == []


@pytest.mark.parametrize(
    "feature", [name for name, one in FEATURES.items() if name in SHOWS and not one.slow]
)
def test_a_feature_shows_its_effect(
    world: World, feature: str, request: pytest.FixtureRequest
) -> None:
    if feature == "remote":
        pytest.skip("a server of verifiers does not depend on the device")
    tree = tree_of(world, (feature,), request)
    run = run_of(tree, "run", DEVICE)
    assert SHOWS[feature](run, completions_of(run))


def test_evaluation_sampling_and_search_agree_with_the_cpu(world: World) -> None:
    save_tiny_model(world.folder / "model", max_positions=192)
    problems = str(world.folder / "train.jsonl")
    asked: dict[str, Any] = {"verifier": "train_worlds:even_text", "max_tokens": 12, "quiet": True}
    model = str(world.folder / "model")

    def answers(device: str) -> list[Any]:
        out = world.folder / f"{device}.jsonl"
        asked.update(device=device, overrides=["model.dtype=float32"])
        found = evaluate(model, problems, num_samples=4, temperature=1.0, out=out, **asked)
        sample(model, problems=problems, num_samples=4, temperature=0.0, **asked)
        voted = search(model, problems, "self_consistency", budgets=[24], **asked)
        texts = [json.loads(line)["completion"] for line in out.read_text().splitlines()]
        return [found.pass_at_1, texts, [row.accuracy for row in voted.rows]]

    assert answers(DEVICE) == answers("cpu")


def test_a_learned_reward_judges_on_the_device(world: World) -> None:
    run = run_of(reward_model_tree(world), "scorer", DEVICE)
    tree = world.tree(
        verification={"options": {"reward_model": {"path": str(run), "device": DEVICE}}}
    )
    tree["data"]["verifier"] = "reward_model"
    try:
        rows = rows_of(run_of(tree, "judged", DEVICE), "metrics")
    finally:
        close_reward_models()
    assert rows[-1]["reward/mean"] != 0.0


def test_steps_are_timed_after_the_device_has_finished(world: World) -> None:
    """The parts of a step sum to the step, so no part's work is counted in a later one."""
    run = run_of(world.tree(), "run", DEVICE)
    for row in rows_of(run, "metrics"):
        parts = [row[key] for key in ("time/generate", "time/update") if key in row]
        assert parts and sum(parts) <= row["time/step"] * 1.01


def test_memory_of_the_device_is_a_metric(world: World) -> None:
    rows = rows_of(run_of(world.tree(), "run", DEVICE), "metrics")
    if torch.device(DEVICE).type == "cuda":
        assert all(row["memory/cuda_peak_mib"] > 0 for row in rows)
