"""What `assay init` chooses for a machine, of which the rates and the memory are made up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2Config

from assay.init import sizes
from assay.init.detection import LookedModel
from assay.init.sizes import LADDER, Lengths, Sizes, choose_sizes
from assay.plan import memory
from assay.plan.step_seconds import GivenWork
from assay.testing import byte_tokenizer

HALF_A_BILLION = Qwen2Config(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
LENGTHS = Lengths(prompt=200, typical=100, whole=512, cut=384)
BASE: dict[str, dict[str, Any]] = {"model": {"path": "m"}, "data": {"train": ["t"]}}
LAPTOP = {"float32": 3e11, "bfloat16": 5e9}
FAST = {"float32": 4e13, "bfloat16": 4e14}


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    rates: dict[str, float],
    gib: float,
    device: str = "cpu",
    num_heldout: int = 0,
    work: GivenWork | None = None,
    base: dict[str, dict[str, Any]] = BASE,
) -> Sizes:
    """Choose on a machine of these rates with so much memory free."""
    free = int(gib * 2**30)
    monkeypatch.setattr(sizes, "choose_device", lambda _: torch.device(device))
    monkeypatch.setattr(sizes, "rates_here", lambda _: (rates, True))
    monkeypatch.setattr("assay.plan.arithmetic.rates_here", lambda _: (rates, True))
    monkeypatch.setattr("assay.plan.arithmetic.memory_rate", lambda _: rates["float32"] / 20)
    monkeypatch.setattr(sizes, "free_mib", lambda: free / 2**20)
    monkeypatch.setattr(sizes, "resident_mib", lambda: 400.0)
    monkeypatch.setattr(memory, "default_kv_mib", lambda _: free / 2**22)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    model = LookedModel(
        "m", byte_tokenizer(), True, None, False, 4096, False, HALF_A_BILLION, False
    )
    return choose_sizes(base, model, LENGTHS, num_heldout, work)


def test_a_laptop_gets_adapters_where_all_weights_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = chosen(monkeypatch, LAPTOP, 8)
    assert found.model == {"lora": {}}, "bfloat16 is slow there, and float32 the default"
    assert found.memory_mib is not None and found.memory_mib < 8 * 1024
    assert found.expected is not None and found.expected.hours <= 4 and not found.warnings
    assert found.rung in LADDER[1:]
    roomy = chosen(monkeypatch, LAPTOP, 64)
    assert roomy.model == {} and roomy.memory_mib is not None
    assert roomy.memory_mib > found.memory_mib


def test_the_faster_type_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, {"float32": 3e11, "bfloat16": 9e11}, 64)
    assert found.model == {"dtype": "bfloat16"} and "bfloat16 is taken" in found.notes[0]
    old = chosen(monkeypatch, {"float32": 9e12, "bfloat16": 1e12}, 16, "cuda")
    assert old.model["dtype"] == "float32"


def test_a_gpu_is_used_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, FAST, 80, "cuda", num_heldout=1000)
    assert found.rung == LADDER[0] and found.model == {} and found.max_problems is None
    assert found.expected is not None and found.expected.hours < 1


def test_a_machine_that_is_too_slow_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, {"float32": 2e10, "bfloat16": 1e9}, 3)
    assert found.rung == LADDER[-1]
    assert found.model == {"lora": {}, "activation_checkpointing": True}
    slow, large = found.warnings
    assert "more than 4: lower rl.steps, rl.group_size or sampling.max_tokens" in slow
    assert "MiB are free: take a smaller model" in large
    assert [f"Warning: {one}" for one in found.warnings] == found.header("assay plan x")[3:]


def test_evaluations_do_not_outlast_training(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, LAPTOP, 64, num_heldout=5000)
    assert found.max_problems is not None and found.expected is not None
    assert found.expected.evaluations <= 3600


def test_a_stage_of_given_rows_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"model": {"path": "m"}, "preference": {"pairs": ["p"], "epochs": 1.0}}
    work = GivenWork(100, 32 * 400, scored=100 * 32 * 400)
    found = chosen(monkeypatch, LAPTOP, 8, work=work, base=base)
    assert found.model == {"lora": {}} and found.expected is not None
    assert found.expected.num_steps == 100 and found.expected.step.once > 0


def test_a_model_whose_shape_cannot_be_read_gets_plain_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise sizes.ModelError("the model's shape cannot be read")

    monkeypatch.setattr(sizes, "skeleton", refuse)
    found = chosen(monkeypatch, LAPTOP, 8)
    assert found.rung == sizes.UNKNOWN and found.expected is None
    assert found.header("assay plan f") == [
        "Time and memory are not known:  assay plan f  measures them."
    ]
