"""Workloads as plain values: what peers read, and what Assay is configured to do with them."""

from __future__ import annotations

import argparse
import ast
import json
import zlib
from pathlib import Path

import pytest

from assay.config import TrainConfig, parse
from assay.types import Completion, Problem
from bench import workload as workloads
from bench.flops import ModelShape
from bench.reward import hash_of_text
from bench.scaling_point import Point
from bench.vs_trl import assay_config
from bench.workload import Workload, demo_workload, gsm8k_workload

ROOT = Path(__file__).resolve().parent.parent.parent
CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"})


@pytest.mark.parametrize("prompts", [("1+1=", "2+2="), (CHAT, CHAT)])
def test_a_workload_comes_back_from_json(prompts: tuple[str, ...], tmp_path: Path) -> None:
    work = Workload("demo", "folder", "float32", prompts, group_size=4, max_tokens=8)
    file = work.write(tmp_path / "work.json", micro_batch=2)
    assert Workload.read(file) == work
    assert json.loads(file.read_text())["micro_batch"] == 2


def test_a_point_comes_back_from_json(tmp_path: Path) -> None:
    point = Point(ModelShape(1, 4, 8, 2, 1, 2, 10)).varied(vocabulary=77, group_size=3)
    assert Point.read(point.write(tmp_path / "point.json")) == point
    assert (point.shape.vocabulary, point.group_size) == (77, 3)


def test_the_demos_step_is_the_demos(tmp_path: Path) -> None:
    from assay.recipes.demo import reinforce

    recipe = reinforce(tmp_path, "model", 0)
    work = demo_workload(tmp_path)
    assert (work.num_prompts, work.group_size) == (
        recipe["rl"]["num_prompts"],
        recipe["rl"]["group_size"],
    )
    assert work.max_tokens == recipe["sampling"]["max_tokens"]
    assert work.learning_rate == recipe["optimizer"]["learning_rate"]
    assert len(set(work.prompts)) == work.num_prompts
    assert (Path(work.model) / "tokenizer.json").is_file()


def test_gsm8ks_prompts_hold_questions_and_no_answers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"question": f"What is {n}+0?", "answer": f"It is so. #### {n}"}) + "\n"
            for n in range(20)
        )
    )
    work = gsm8k_workload("model", str(rows))
    assert work.num_rows == 64
    chats = [chat for chat in work.prompts if not isinstance(chat, str)]
    assert [chat[-1]["content"] for chat in chats][:2] == ["What is 0+0?", "What is 1+0?"]
    assert "####" not in json.dumps(work.prompts)


def test_assay_is_told_what_trl_is_told(tmp_path: Path) -> None:
    work = Workload("x", "model", "bfloat16", (CHAT,) * 2, group_size=4, max_tokens=8, steps=3)
    tree = assay_config(work, tmp_path / "problems.jsonl")
    config: TrainConfig = parse(tree)
    assert config.rl is not None
    assert (config.rl.steps, config.rl.num_prompts, config.rl.group_size) == (3, 2, 4)
    assert config.rl.epochs == config.rl.num_minibatches == 1
    assert config.algorithm.name == "dr_grpo"
    assert config.optimizer.learning_rate == work.learning_rate
    assert (config.optimizer.betas, config.optimizer.epsilon) == (work.betas, work.epsilon)
    assert config.optimizer.max_grad_norm == work.max_grad_norm
    assert config.optimizer.schedule == "constant" and config.optimizer.warmup_steps == 0
    assert not config.sampling.truncates
    assert not config.model.activation_checkpointing
    assert "state_dtype" not in tree["optimizer"]
    assert parse(assay_config(work, tmp_path / "p", "bfloat16")).optimizer.state_dtype == "bfloat16"


def test_the_reward_is_of_the_text() -> None:
    problem = Problem("p", "1+1=")
    rewards = {text: hash_of_text(problem, Completion.from_text(text)) for text in ("a", "b", "é")}
    assert rewards["é"] == zlib.crc32("é".encode()) % 1000 / 1000
    assert len(set(rewards.values())) == 3 and all(0 <= one < 1 for one in rewards.values())


@pytest.mark.parametrize("file", sorted((ROOT / "bench" / "peers").glob("*.py")), ids=str)
def test_peers_need_none_of_our_code(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & {"assay", "bench"}


def test_hardware_has_a_name() -> None:
    assert "cores" in workloads.hardware()


def test_the_recorded_hardware_includes_library_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert "held to ONEDNN_MAX_CPU_ISA=AVX2" in workloads.hardware()


def test_the_type_can_be_chosen(tmp_path: Path) -> None:
    rows = tmp_path / "train.jsonl"
    rows.write_text(json.dumps({"question": "1+1?", "answer": "1+1=2\n#### 2"}) + "\n")
    parser = argparse.ArgumentParser()
    workloads.add_arguments(parser)
    given = ["--model", "m", "--problems", str(rows), "--num-prompts", "1"]
    types = [
        workloads.chosen(parser.parse_args([*given, *more]), tmp_path).dtype
        for more in ([], ["--dtype", "float32"])
    ]
    assert types == ["bfloat16", "float32"]
