"""`assay plan --device`: the estimate of a run on a GPU that this machine does not have."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from assay import cli
from assay import config as configuration
from assay.errors import ConfigError, ModelError
from assay.host.files import write_json
from assay.plan.devices import default_config, find_gpu, gpus
from assay.plan.measured.on_device import DevicePlan, plan_on
from assay.testing import save_tiny_model
from bench.devices import cell, plan_of

# Qwen2.5-0.5B.
SHAPE = Qwen2Config(
    num_hidden_layers=24,
    hidden_size=896,
    intermediate_size=4864,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
BASE = {"model": {"path": "m"}, "data": {"train": ["rows.jsonl"], "verifier": "math"}}


def plan(device: str, **sections: Any) -> DevicePlan:
    tree = {**BASE, **({} if {"sft", "preference"} & sections.keys() else {"rl": {}}), **sections}
    return plan_on(find_gpu(device), configuration.build(tree), 128, shape=SHAPE)


@pytest.mark.parametrize(
    ("prompts", "prompt", "new", "slots", "peak_mib", "generation", "update"),
    [
        # One H100, Qwen2.5-0.5B's shape with random weights (docs/gpu.md, `bench.gpu`).
        (8, 128, 256, 64, 12701, 0.466, 0.315),
        (64, 256, 160, 512, 13.1 * 1024, 0.794, 1.475),
    ],
)
def test_the_estimate_is_near_what_an_h100_measured(
    prompts: int,
    prompt: int,
    new: int,
    slots: int,
    peak_mib: float,
    generation: float,
    update: float,
) -> None:
    tree = {
        **BASE,
        "rl": {"num_prompts": prompts, "group_size": 8},
        "sampling": {"max_tokens": new},
        "engine": {"num_slots": slots},
    }
    found = plan_on(find_gpu("H100"), configuration.build(tree), prompt, shape=SHAPE).variants[0]
    assert found.expected is not None
    assert found.memory.total_mib == pytest.approx(peak_mib, rel=0.15)
    assert found.expected.step.generation == pytest.approx(generation, rel=0.15)
    assert found.expected.step.update == pytest.approx(update, rel=0.15)


def test_the_first_variant_that_fits_is_chosen_and_lighter_ones_need_less() -> None:
    found = plan("RTX3060")
    assert not found.variants[0].fits
    for adapted in (False, True):
        variants = [one for one in found.variants if ("model.lora" in one.settings) is adapted]
        peaks = [one.memory.total_mib for one in variants]
        assert len(peaks) >= 3 and peaks == sorted(peaks, reverse=True)
    assert found.chosen is not None
    assert found.chosen is next(one for one in found.variants if one.fits)
    assert found.chosen.memory.total_mib <= found.gpu.usable_mib


def test_printed_settings_can_be_pasted_into_the_configuration() -> None:
    found = plan("RTX3060")
    assert found.chosen is not None
    shown = str(found).partition("settings of the first line that fits:\n")[2]
    pasted = configuration.build(
        {**BASE, "rl": {}}, [f"{key}={json.dumps(value)}" for key, value in _keys(shown).items()]
    )
    again = plan_on(found.gpu, pasted, 128, shape=SHAPE).variants[0]
    assert again.settings == {}
    assert again.memory.total_mib == pytest.approx(found.chosen.memory.total_mib)


def _keys(shown: str) -> dict[str, Any]:
    """Return the dotted keys of the printed tables."""
    lines = [line for line in shown.splitlines() if line.startswith("  ")]
    tables = "\n".join(lines[: next(n for n, line in enumerate(lines) if "MiB" in line)])
    return {
        f"{table}.{key}": value
        for table, rows in tomllib.loads(tables).items()
        for key, value in rows.items()
    }


def test_a_model_that_fits_nowhere_is_told_with_remedies() -> None:
    found = plan_of("RTX3060", "Qwen3-8B")
    assert found.chosen is None
    assert "nothing fits: take a larger GPU or a smaller model" in str(found)


def test_the_table_of_the_page_has_the_numbers_of_the_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| RTX3060 |"))
    assert cell(plan_of("RTX3060", "Qwen3-0.6B")) in row


def test_adapters_of_a_model_are_trained_further(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason='needs peft: pip install "assay-rl[lora]"')
    full, adapted = plan("H100").variants[0], plan("H100", model={"path": "m", "lora": {}})
    assert adapted.variants[0].memory.parts["gradients"] < full.memory.parts["gradients"] / 20
    assert all("model.lora" not in one.settings for one in adapted.variants)


def test_a_method_with_a_reference_and_a_critic_needs_more() -> None:
    plain = plan("H100").variants[0].memory.parts
    assert not {"reference", "critic"} & plain.keys()
    full = plan("H100", algorithm={"name": "ppo"}).variants[0].memory.parts
    assert full["critic"] > full["weights"]
    pairs = {"pairs": ["p.jsonl"]}
    assert plan("H100", preference=pairs).variants[0].memory.parts["reference"]
    free = plan("H100", preference={**pairs, "reference_free": True})
    assert "reference" not in free.variants[0].memory.parts


def test_seconds_are_unknown_for_rows_that_were_not_read() -> None:
    found = plan("H100", sft={"traces": ["t.jsonl"]})
    assert found.variants[0].expected is None
    assert "the run:" not in str(found)
    assert found.variants[0].memory.total_mib > 0


def test_a_stage_without_an_estimate_is_refused() -> None:
    tree = {"model": {"path": "m"}, "reward_model": {"rows": ["r.jsonl"]}}
    with pytest.raises(ConfigError, match=r"found \[reward_model\]; accepted: \[rl\], \[sft\]"):
        plan_on(find_gpu("H100"), configuration.build(tree), shape=SHAPE)


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "rtx-4090"])
def test_a_gpu_is_found_in_any_spelling(name: str) -> None:
    assert find_gpu(name).name == "RTX4090"


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"accepted: B200, H200, H100.*did you mean RTX4090"):
        find_gpu("RTX4091")


def test_every_gpu_has_plausible_figures() -> None:
    for one in gpus().values():
        assert 8 <= one.memory_mib / 1024 <= 300
        assert 1e13 <= one.operations <= 1e16
        assert 1e11 <= one.bandwidth <= 1e13


def test_a_folder_without_weights_is_enough(tmp_path: Path) -> None:
    SHAPE.save_pretrained(tmp_path)
    found = plan_on(find_gpu("L4"), default_config(str(tmp_path)))
    assert found.num_weights == 494_032_768
    assert found.chosen is not None


def test_an_absurd_configuration_is_refused_before_it_is_built(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {**SHAPE.to_dict(), "num_hidden_layers": 10**9})
    with pytest.raises(ModelError):
        plan_on(find_gpu("L4"), default_config(str(tmp_path)))


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str, str]:
    """Run `assay plan`; return its exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["assay", "plan", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr()
    return end.value.code, shown.out, shown.err


def test_the_command_prints_the_plan_of_a_file_and_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "tiny")
    tree = {**BASE, "model": {"path": str(tmp_path / "tiny")}, "rl": {"steps": 7}}
    (tmp_path / "run.toml").write_text(configuration.dump(configuration.build(tree)))
    asked = (monkeypatch, capsys, str(tmp_path / "run.toml"), "--device", "L4")
    code, out, err = run_command(*asked, "--price", "2")
    assert code in (0, None), err
    assert "on one L4: 24 GiB" in out
    assert "7 steps of" in out and " at 2 an hour" in out
    assert not (tmp_path / "decision.md").exists()
    _, out, _ = run_command(*asked, "--json")
    assert json.loads(out)["variants"][0]["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--device", "H100"], "found neither; accepted: a CONFIG file or --model NAME"),
        (["run.toml", "--device", "H100", "--model", "m"], "found both"),
        (["--device", "H100", "--model", "m", "--measure", "3"], "--measure: found given with"),
        (["run.toml", "--price", "2"], "--price: found no --device"),
        (["--device", "H100", "--model", "nothing/here/at/all"], "model.path nothing/here/at/all"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run_command(monkeypatch, capsys, *arguments)
    assert code == 2
    assert line in err and err.count("\n") == 1


def test_models_outside_the_lean_families_are_planned_without_a_gpu() -> None:
    from transformers import GPT2Config

    shape = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=512)
    for lora in ({}, {"lora": {"targets": ["c_attn"]}}):
        model = {"path": "m", **lora}
        tree = {"model": model, "data": {"train": ["r.jsonl"], "verifier": "math"}, "rl": {}}
        found = plan_on(find_gpu("H100"), configuration.build(tree), shape=shape)
        assert found.chosen is not None and found.chosen.memory.total_mib > 0
