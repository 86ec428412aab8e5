"""Every example's configuration is trained for two steps, with a tiny model in place of its own."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from assay import load_config
from assay.recipes.run import run_recipe
from assay.testing import CHAT_TEMPLATE, save_tiny_model
from assay.training import api

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))
# The tutorial's commands make its rows and its model: docs/tutorial.md. The recipes have tests of
# their own (tests/recipes/test_built_in.py), and so has the sweep (tests/sweep/test_sweep_example.py).
# `run` is the record of a finished run.
ELSEWHERE = ("tutorial", "recipe", "mixture", "sweep", "run")
EXAMPLES = [path for path in EXAMPLES if path.parent.name not in ELSEWHERE]
RECIPES = [path for path in EXAMPLES if "\n[stage." in path.read_text(encoding="utf-8")]
RUN = ROOT / "examples" / "gsm8k_cpu" / "run"
GPU_RUN = ROOT / "examples" / "gsm8k_gpu" / "run"
GSM8K = '{"question": "%d+1?", "answer": "So it is.\\n#### %d"}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "model"
    return save_tiny_model(folder, chat_template=CHAT_TEMPLATE, max_positions=1024)


def shortened(text: str, model: Path, folder: Path) -> str:
    """Return a configuration that takes two steps: of the tiny model, a few rows, short texts."""
    text = re.sub(r'(?m)^path = "[^@].*$', f'path = "{model}"', text)
    text = re.sub(r"(?m)^dtype = .*$", "", text)
    text = re.sub(r"size=\d+", "size=4", text)
    text = re.sub(r"(?m)^steps = .*$", "steps = 2", text)
    text = re.sub(r"(?m)^max_tokens = .*$", "max_tokens = 8", text)
    text = re.sub(
        r"(?m)^(num_prompts|group_size|pairs_per_step|rows_per_step) = .*$", r"\1 = 2", text
    )
    text = re.sub(r"(?m)^tokens_per_step = .*$", "tokens_per_step = 100", text)
    (folder / "gsm8k").mkdir(exist_ok=True)
    for number, name in enumerate(("rl", "choose")):
        rows = (GSM8K % (n, n + 1) for n in range(10 + 4 * number, 14 + 4 * number))
        (folder / "gsm8k" / f"{name}.jsonl").write_text("".join(rows))
    (folder / "teacher").mkdir(exist_ok=True)
    traces = ({"prompt": f"{n}+1?", "completion": f" {n + 1}\n\n"} for n in range(6))
    lines = "".join(json.dumps(one) + "\n" for one in traces)
    (folder / "teacher" / "selected.jsonl").write_text(lines)
    text = text.replace("teacher/selected/rows.jsonl", "teacher/selected.jsonl")
    for split in ("train", "test"):
        rows = "".join(
            GSM8K % (n, n + 1) for n in range(4 * (split == "test"), 4 + 4 * (split == "test"))
        )
        (folder / f"{split}.jsonl").write_text(rows)
        text = text.replace(f"hf:openai/gsm8k/main?split={split}", str(folder / f"{split}.jsonl"))
    return text


@pytest.mark.slow
def test_the_student_of_a_teacher_trains(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = [one for one in RECIPES if one.name == "student.toml"]
    (tmp_path / path.name).write_text(shortened(path.read_text("utf-8"), model, tmp_path))
    result = run_recipe(str(tmp_path / path.name), quiet=True)
    assert [one.stage for one in result.stages] == ["imitate", "reason"]
    assert (tmp_path / "runs" / "student" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in EXAMPLES if path not in RECIPES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_example_trains(
    path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    config = tmp_path / path.name
    config.write_text(shortened(path.read_text(encoding="utf-8"), model, tmp_path))
    result = api.train(config, quiet=True)
    assert result.finished and result.steps >= 2, str(result)


def test_the_page_lists_every_example() -> None:
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in EXAMPLES if path.name not in page]
    assert not missing, "describe these in examples/README.md"


@pytest.mark.parametrize("run_folder", [RUN, GPU_RUN], ids=lambda path: path.parent.name)
def test_the_reported_run_is_whole_and_is_the_configuration_of_its_example(
    run_folder: Path,
) -> None:
    (checkpoint,) = (run_folder / "checkpoints").iterdir()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name, known in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == known["sha256"], name
    assert sum(known["bytes"] for known in manifest["files"].values()) < 5e6
    (file,) = run_folder.parent.glob("*.toml")
    example, run = load_config(file), load_config(run_folder / "config.toml")
    assert run.data == example.data and run.sampling == example.sampling
    assert run.rl == example.rl and run.optimizer == example.optimizer


def test_the_page_has_the_measured_figures() -> None:
    measured = json.loads((RUN.parent / "measured" / "real_model.json").read_text())
    page = (RUN.parent / "README.md").read_text(encoding="utf-8")
    for one in measured["sets"]:
        for side in ("a", "b"):
            assert f"{100 * one[side]['pass_at_1']:.1f} %" in page, one["name"]


def test_the_page_has_the_figures_of_the_other_harness() -> None:
    measured = json.loads((RUN.parent / "measured" / "lm_eval.json").read_text())
    page = (RUN.parent / "README.md").read_text(encoding="utf-8")
    for side in ("before", "after"):
        for kind, harness in (("strict", "strict-match"), ("flexible", "flexible-extract")):
            right = sum(row[kind][1] for row in measured[side]["problems"])
            assert right == measured[side]["assay"][harness]["passed"]["lm-eval"]
            assert f"{right} of 64 ({100 * right / 64:.1f} %)" in page, (side, kind)
    gains = [
        after["strict"][1] - before["strict"][1]
        for before, after in zip(
            measured["before"]["problems"], measured["after"]["problems"], strict=True
        )
    ]
    assert f"{gains.count(1)} problems gained and {gains.count(-1)} lost" in page


def test_the_gpu_page_has_the_accuracy_of_its_completions() -> None:
    file = GPU_RUN.parent / "measured" / "report.jsonl"
    scores = [json.loads(line)["score"] for line in file.read_text(encoding="utf-8").splitlines()]
    page = (GPU_RUN.parent / "README.md").read_text(encoding="utf-8")
    assert len(scores) == 673 and f"**{100 * sum(scores) / 673:.1f} %" in page
