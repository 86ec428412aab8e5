"""The evaluation of a real model, end to end on a tiny one with an adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.config import LoraConfig, ModelConfig
from assay.model.load import load_model, save_model
from assay.testing import CHAT_TEMPLATE, save_tiny_model
from bench.real_model import main, mbpp_rows

GSM8K = [{"id": f"g{n}", "question": f"{n}+1?", "answer": f"So.\n#### {n + 1}"} for n in range(3)]
IFEVAL = {
    "key": 1,
    "prompt": "Say it.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}
TESTS = ["assert f(1) == 2\r\n", "assert f(2) == 3", "assert f(3) == 4"]


def mbpp(task_id: int, split: str, passes: bool = True) -> dict[str, Any]:
    row = {"task_id": task_id, "text": " Add one. ", "test_list": TESTS, "test_setup_code": ""}
    return row | {"challenge_test_list": [], "split": split, "reference_passes": passes}


def test_held_out_programs_hide_all_tests_but_one() -> None:
    splits = [(5, "prompt"), (515, "validation"), (700, "train"), (801, "train"), (20, "test")]
    rows = [*mbpp_rows([*(mbpp(*one) for one in splits), mbpp(927, "train", False)])]
    assert [row["id"] for row in rows] == ["mbpp-5", "mbpp-515", "mbpp-801"]
    first = rows[0]
    assert first["prompt"].endswith("must pass this test:\nassert f(1) == 2\n")
    assert "f(2)" not in first["prompt"]
    assert [one["assert"] for one in first["hidden_tests"]] == TESTS[1:]


@pytest.fixture
def measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> Callable[..., Path]:
    """Call the command on a base and its adapter; returns the working folder."""
    base = save_tiny_model(tmp_path / "base", chat_template=CHAT_TEMPLATE)
    loaded = load_model(ModelConfig(path=str(base), lora=LoraConfig(rank=2)), "cpu", 0)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.3)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "adapter")
    line = ["real_model", str(base), "--adapter", str(tmp_path / "adapter")]
    for name, rows in {"gsm8k": GSM8K, "mbpp": [mbpp(1, "prompt")], "ifeval": [IFEVAL]}.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        line += [f"--{name}", str(file)]

    def call(*more: str) -> Path:
        settings = ["--work", str(tmp_path / "work"), "--set", "engine.num_slots=4", *more]
        monkeypatch.setattr("bench.real_model.MOST_TOKENS", 8)
        monkeypatch.setattr("sys.argv", [*line, *settings])
        main()
        return tmp_path / "work"

    return call


def test_every_benchmark_is_measured_once(
    measure: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = measure("--max-problems", "2")
    found = json.loads((work / "real_model.json").read_text())
    assert [Path(one["name"]).stem for one in found["sets"]] == ["gsm8k", "mbpp", "ifeval"]
    assert [one["out_of_domain"] for one in found["sets"]] == [False, True, True]
    assert [one["gain"]["num_problems"] for one in found["sets"]] == [2, 1, 1]
    assert all(one["p_value_of_all"] is not None for one in found["sets"])
    assert "adapter" in found["b"] and found["asked"]["adapter"]
    lines = (work / "real_model.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| gsm8k", "| mbpp", "| ifeval"]
    prompts = {}
    for name in ("gsm8k", "mbpp", "ifeval"):
        rows = map(json.loads, (work / f"{name}_completions.jsonl").read_text().splitlines())
        prompts[name] = [row["prompt"] for row in rows]
    assert all("in \\boxed{}." in prompt for prompt in prompts["gsm8k"])
    assert not any("boxed" in prompt for prompt in prompts["mbpp"] + prompts["ifeval"])

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was loaded again")

    monkeypatch.setattr("assay.evaluation.compare.open_sampling", never)
    measure("--max-problems", "2")
    again = json.loads((work / "real_model.json").read_text())
    assert [one["gain"] for one in again["sets"]] == [one["gain"] for one in found["sets"]]
    with pytest.raises(SystemExit, match="other settings"):
        measure("--max-problems", "1")


def test_gsm8k_is_asked_as_the_run_was(measure: Callable[..., Path], tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[data]\ntemplate = "base"\nprompt_template = "Q: {question}\\nA:"\n'
        '[sampling]\nstop = ["\\n\\n"]\nmax_tokens = 5\n'
    )
    work = measure("--max-problems", "1", "--config", str(config))
    read = {}
    for name in ("gsm8k", "mbpp"):
        text = (work / f"{name}_completions.jsonl").read_text()
        read[name] = json.loads(text.splitlines()[0])
    assert read["gsm8k"]["prompt"] == "Q: 0+1?\nA:"
    assert "helpful assistant" in read["mbpp"]["prompt"]
    found = json.loads((work / "real_model.json").read_text())
    assert found["asked"]["config"] == str(config)
    assert found["sets"][0]["a"]["mean_tokens"] <= 5 < found["sets"][1]["a"]["mean_tokens"]
