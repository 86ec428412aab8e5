"""`assay model merge`: arithmetic on weights, what is written, and what is measured before and after."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_worlds import World

from assay.cli import main
from assay.errors import ConfigError, ModelError, RunError
from assay.model.merge import merge_tensors
from assay.release.merge import merge
from assay.testing import save_tiny_model
from assay.training.api import evaluate, train

A = {"w": torch.tensor([1.0, 0.0]), "n": torch.tensor([3])}
B = {"w": torch.tensor([0.0, 2.0]), "n": torch.tensor([4])}
BASE = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor([5])}


@pytest.mark.parametrize(
    ("method", "weights", "want"),
    [
        ("linear", [1.0, 1.0], [0.5, 1.0]),
        ("linear", [3.0, 1.0], [0.75, 0.5]),
        ("task_arithmetic", [1.0, 0.5], [0.5, 0.5]),
        ("task_arithmetic", [-1.0, 0.0], [1.0, 2.0]),
        ("slerp", [1.0, 1.0], [math.sqrt(0.5), 2 * math.sqrt(0.5)]),
        ("slerp", [2.0, 1.0], [math.sin(math.pi / 3), 2 * math.sin(math.pi / 6)]),
        ("slerp", [1.0, 0.0], [1.0, 0.0]),
    ],
)
def test_merged_tensors_equal_those_by_hand(
    method: Any, weights: list[float], want: list[float]
) -> None:
    base = BASE if method == "task_arithmetic" else None
    merged = merge_tensors([A, B], weights, method, base)
    torch.testing.assert_close(merged["w"], torch.tensor(want))
    assert merged["n"].item() == 3, "counts are no weights"


def test_parallel_tensors_have_no_arc() -> None:
    same = {"w": torch.tensor([2.0, 0.0])}
    merged = merge_tensors([{"w": A["w"]}, same], [1.0, 1.0], "slerp")
    torch.testing.assert_close(merged["w"], torch.tensor([1.5, 0.0]))


def test_checkpoints_of_a_run_are_merged_and_measured(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of two checkpoints, each measured as a command of its own would measure it."""
    run = train(world.tree(rl={"steps": 2}, checkpoint={"every": 1}), quiet=True).run
    names, out = [f"{run}@1", f"{run}@2"], world.folder / "merged"
    problems = [str(world.folder / "train.jsonl")]
    arguments = ["model", "merge", *names, "--out", str(out), "--problems", *problems, "--json"]
    monkeypatch.setattr(sys, "argv", ["assay", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    found = json.loads(said.out)
    assert found["model"] == str(out)
    assert [row["model"] for row in found["accuracies"]] == [*names, "merged"]
    for row in found["accuracies"][:2]:
        alone = evaluate(row["model"], problems, quiet=True)
        assert row["pass_at_1"] == alone.pass_at_1 and row["num_problems"] == 10
    folders = [Path(run) / "checkpoints" / f"step-00000{n}" for n in (1, 2)]
    one, two, mean = (load_file(folder / "model.safetensors") for folder in (*folders, out))
    assert one.keys() == mean.keys()
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (one[name] + two[name]) / 2)
    again = evaluate(str(out), problems, max_tokens=4, verifier="exact", quiet=True)
    assert again.num_problems == 10


def test_models_of_other_shapes_are_refused(world: World) -> None:
    save_tiny_model(world.folder / "wide", hidden_size=64)
    model, wide = str(world.folder / "model"), str(world.folder / "wide")
    with pytest.raises(ModelError, match=rf"merge {wide}: found lm_head\.weight") as told:
        merge([model, wide], world.folder / "merged")
    assert "(259, 64); accepted: (259, 32), as in " in str(told.value)
    assert not (world.folder / "merged").exists()


def test_models_with_other_tokens_are_refused(world: World) -> None:
    """Of one shape, and yet each row of the embedding is another token's."""
    other = world.folder / "other"
    shutil.copytree(world.folder / "model", other)
    file = other / "tokenizer.json"
    tree = json.loads(file.read_text())
    vocabulary = tree["model"]["vocab"]
    (one, first), (two, second) = list(vocabulary.items())[:2]
    vocabulary |= {one: second, two: first}
    file.write_text(json.dumps(tree))
    found = f"found another tokenizer than that of .*model: {re.escape(repr(one))} is not {first}"
    with pytest.raises(ModelError, match=found):
        merge([str(world.folder / "model"), str(other)], world.folder / "merged")
    assert not (world.folder / "merged").exists()


def test_existing_files_are_kept(world: World) -> None:
    model, out = str(world.folder / "model"), world.folder / "kept"
    out.mkdir()
    (out / "notes").write_text("x")
    with pytest.raises(RunError, match=r"--out .*found a folder with files; accepted: a new or"):
        merge([model, f"{model}/../model"], out)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({"models": ["a"]}, "merge by linear: found 1 models; accepted: at least 2"),
    "three": (
        {"models": ["a", "b", "c"], "method": "slerp"},
        "found 3 models; accepted: exactly 2",
    ),
    "twice": ({"models": ["a", "a"]}, "merge: found a model twice; accepted: each once"),
    "weights": ({"weights": [1.0]}, "--weight: found 1 weights; accepted: 2, or none"),
    "nothing": ({"weights": [0.0, 0.0]}, "--weight: found .* accepted: numbers of 0 or more"),
    "no number": ({"weights": [math.nan, 1.0]}, "--weight: found .* accepted: finite numbers"),
    "infinite": (
        {"weights": [math.inf, 1.0], "method": "task_arithmetic", "base": "c"},
        "--weight: found .* accepted: finite numbers",
    ),
    "no base": ({"method": "task_arithmetic"}, "--base: found none; accepted: a base model with"),
    "a base": ({"base": "c"}, "--base: found c with linear"),
    "method": (
        {"method": "mean"},
        "--method: found mean; accepted: linear, task_arithmetic, slerp",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_merges_are_refused(case: str, tmp_path: Path) -> None:
    """Before a model is loaded: these are not there."""
    given, said = BAD[case]
    with pytest.raises(ConfigError, match=said):
        merge(**{"models": ["a", "b"], "out": tmp_path / "out", **given})
